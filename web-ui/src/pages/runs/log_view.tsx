// The log of a run. While the run works it follows the end, until someone scrolls up.

import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { withQuery } from '../../api/client'
import { useQuery } from '../../api/queries'
import type { Run, RunLogLines } from '../../api/types'
import { CopyButton, levelClass } from '../../components/code'
import { Empty, WithData } from '../../components/feedback'
import { Card } from '../../components/layout'

const LINES = 400
const MORE_LINES = 5_000
const FEW_LINES = 12

export function LogCard({ run, short = false }: { run: Run; short?: boolean }): JSX.Element {
  const [tail, setTail] = useState(short ? FEW_LINES : LINES)
  const works = run.status === 'running'
  const path = withQuery(`/runs/${encodeURIComponent(run.run_id)}/log`, { tail })
  const interest = works ? { about: run.run_id, every: 2_000 } : { about: run.run_id }
  const query = useQuery<RunLogLines>(path, interest)
  return (
    <Card
      title={short ? 'End of the log' : 'Log'}
      flush
      tools={
        short ? (
          <a href="?view=log">Whole log</a>
        ) : (
          <span class="row">
            {works && <span class="muted small">follows while the run works</span>}
            {query.data && <CopyButton text={query.data.lines.join('\n')} label="Copy the log" />}
          </span>
        )
      }
    >
      <WithData query={query} what="the log">
        {log => (
          <>
            {!short && log.lines.length >= tail && tail < MORE_LINES && (
              <div class="more">
                <button type="button" class="button narrow" onClick={() => setTail(MORE_LINES)}>
                  Show earlier lines
                </button>
              </div>
            )}
            {log.lines.length === 0 ? (
              <Empty title={works ? 'It has logged nothing yet' : 'This run has no log'} />
            ) : (
              <Lines lines={log.lines} follows={works} short={short} />
            )}
          </>
        )}
      </WithData>
    </Card>
  )
}

function Lines({
  lines,
  follows,
  short,
}: {
  lines: string[]
  follows: boolean
  short: boolean
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null)
  const isAtEnd = useRef(true)
  useEffect(() => {
    const element = box.current
    if (element && isAtEnd.current) element.scrollTop = element.scrollHeight
  }, [lines, follows])
  const watchScroll = () => {
    const element = box.current
    if (element) isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 24
  }
  return (
    <div
      ref={box}
      class={`log${short ? ' short' : ''}`}
      role="log"
      aria-live="off"
      aria-label="Log lines"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: keys must be able to scroll it
      tabIndex={0}
      onScroll={watchScroll}
    >
      {lines.map((line, index) => (
        <div key={index} class={levelClass(line)}>
          {line}
        </div>
      ))}
    </div>
  )
}
