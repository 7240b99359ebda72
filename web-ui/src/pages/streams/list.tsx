// All streams: what they follow and load, and how they keep up.

import type { JSX } from 'preact'
import { useQuery } from '../../api/queries'
import type { Stream } from '../../api/types'
import { Empty, WithData } from '../../components/feedback'
import { Page, Scrolling } from '../../components/layout'
import { Status } from '../../components/status'
import { Ago, Duration } from '../../components/time'
import { useRowCursor } from '../../keyboard'
import { navigate, pageOf } from '../../routing/router'
import { countText, rateText } from '../../text/numbers'
import { roughDuration } from '../../text/times'
import { firstLine } from '../../text/wording'
import { lagOf, rateOf } from './samples'

export function lagText(value: number | null, unit: string | null | undefined): string {
  if (value === null) return ''
  return unit === 'seconds' || unit === 's'
    ? `${roughDuration(value)} behind`
    : `${countText(value)} ${unit ?? 'messages'}`
}

export function StreamsPage(): JSX.Element {
  const query = useQuery<{ items: Stream[] }>('/streams', { kinds: ['run', 'stream', 'hold'], every: 10_000 })
  return (
    <Page title="Streams" tabTitle="Streams">
      <div class="card">
        <WithData query={query} what="streams">
          {({ items }) =>
            items.length === 0 ? (
              <Empty title="The module declares no stream">
                Declare one with <code>@ematix.streaming_pipeline</code>, then start flow web again.
              </Empty>
            ) : (
              <StreamTable streams={items} />
            )
          }
        </WithData>
      </div>
    </Page>
  )
}

function StreamTable({ streams }: { streams: Stream[] }): JSX.Element {
  const cursor = useRowCursor(
    streams.map(each => each.name),
    name => navigate(pageOf.stream(name)),
  )
  return (
    <Scrolling label="Streams">
      <table class="grid">
        <thead>
          <tr>
            <th>Stream</th>
            <th>State</th>
            <th class="number">Rows read</th>
            <th class="number">Lag</th>
            <th>Watermark</th>
            <th class="number">Dead letters</th>
            <th>From → to</th>
          </tr>
        </thead>
        <tbody>
          {streams.map(stream => (
            <StreamRow key={stream.name} stream={stream} isCursor={cursor === stream.name} />
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}

function StreamRow({ stream, isCursor }: { stream: Stream; isCursor: boolean }): JSX.Element {
  const { run, sample } = stream
  const works = run?.status === 'running'
  const letters = lettersOf(stream)
  const why = run && !works ? firstLine(run.error_message) : ''
  return (
    <tr class={isCursor ? 'is-cursor' : ''}>
      <td class="run-name">
        <a class="cell-main" href={pageOf.stream(stream.name)}>
          {stream.name}
        </a>
        {why ? (
          <div class="why">{why}</div>
        ) : (
          stream.description && <div class="why calm">{stream.description}</div>
        )}
      </td>
      <td>
        <Status status={run?.status} hold={Boolean(stream.hold)} />
        {run && (
          <span class="muted small second-line">
            {works ? (
              <>
                for <Duration seconds={null} since={run.started_at} />
              </>
            ) : (
              <Ago at={run.finished_at} />
            )}
          </span>
        )}
      </td>
      <td class="number">{works ? rateText(rateOf(sample)) : ''}</td>
      <td class="number">{works ? lagText(lagOf(sample), sample?.lag_unit) : ''}</td>
      <td>{works && sample?.watermark && <Ago at={sample.watermark} />}</td>
      <td class="number">
        {letters.open > 0 ? (
          <a class="tone-bad" href={pageOf.lettersOf(stream.name)}>
            {countText(letters.open)}
          </a>
        ) : stream.dead_letters ? (
          <span class="muted">0</span>
        ) : (
          ''
        )}
        {letters.parked > 0 && (
          <span class="muted small second-line">{countText(letters.parked)} parked</span>
        )}
      </td>
      <td class="small">
        {stream.sources.map(source => (
          <div key={source}>{source}</div>
        ))}
        {stream.targets.map(target => (
          <div key={target.target} class="muted">
            → {target.target} ({target.mode})
          </div>
        ))}
      </td>
    </tr>
  )
}

/** Letters that somebody should look at, and those that were set aside. */
export function lettersOf(stream: Stream): { open: number; parked: number } {
  const counts = stream.dead_letters?.by_status ?? {}
  let open = 0
  for (const [status, number] of Object.entries(counts)) {
    if (status !== 'parked' && status !== 'replayed') open += number
  }
  return { open, parked: counts.parked ?? 0 }
}
