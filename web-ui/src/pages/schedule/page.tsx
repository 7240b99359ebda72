// The schedule: what fired in the past hours, and what fires in the next ones.

import type { JSX } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import { useQuery } from '../../api/queries'
import type { Hold, ScheduleView } from '../../api/types'
import { Empty, WithData } from '../../components/feedback'
import { FilterText, Segments } from '../../components/fields'
import { Card, Page, Scrolling } from '../../components/layout'
import { useRowsInView } from '../../components/more'
import { Status } from '../../components/status'
import { eachTenSeconds, Time } from '../../components/time'
import { navigate, pageOf, queryValue } from '../../routing/router'
import { durationText, localText, relativeText, utcText } from '../../text/times'
import {
  hourTicks,
  isTrouble,
  type Lane,
  lanesOf,
  laneText,
  MARK_NAMES,
  type Mark,
  type MarkKind,
} from './marks'

const HOUR = 3_600_000
const SIDES: Record<string, number> = { '48h': 48 * HOUR, '12h': 12 * HOUR, '3h': 3 * HOUR }

const MARK_TONES: Record<MarkKind, string> = {
  succeeded: 'ok',
  gave_up: 'bad',
  skipped: 'idle',
  claimed: 'busy',
  late: 'wait',
  retry: 'wait',
  missed: 'bad',
  upcoming: 'idle',
}

export function SchedulePage(): JSX.Element {
  const query = useQuery<ScheduleView>('/schedule', { kinds: ['slot', 'run', 'hold'], every: 60_000 })
  const now = eachTenSeconds.value
  const search = queryValue('q').trim().toLowerCase()
  const side = SIDES[queryValue('side') || '48h'] ?? 48 * HOUR
  const lanes = useMemo(() => {
    if (!query.data) return []
    return lanesOf(query.data, now).filter(lane => lane.pipeline.toLowerCase().includes(search))
  }, [query.data, now, search])
  const [shown, end] = useRowsInView(lanes, search)
  return (
    <Page title="Schedule" tabTitle="Schedule">
      <div class="filters">
        <FilterText name="q" label="Pipeline" isSearch />
        <Segments
          name="side"
          label="Hours on each side of now"
          options={[
            ['48h', '48 hours'],
            ['12h', '12 hours'],
            ['3h', '3 hours'],
          ]}
        />
      </div>
      <WithData query={query} what="the schedule">
        {view => (
          <>
            <Troubles lanes={lanes} holds={view.holds} />
            <div class="card">
              {lanes.length === 0 ? (
                <Empty title={search ? 'No pipeline matches' : 'Nothing is scheduled'}>
                  {search ? (
                    <a href="/schedule">Show all</a>
                  ) : (
                    'Give a pipeline a schedule, such as schedule="0 6 * * *".'
                  )}
                </Empty>
              ) : (
                <>
                  <Legend />
                  <div class="lanes">
                    <LaneAxis from={now - side} to={now + side} now={now} />
                    {shown.map(lane => (
                      <LaneRow
                        key={lane.pipeline}
                        lane={lane}
                        from={now - side}
                        to={now + side}
                        now={now}
                        hold={view.holds.find(
                          hold => hold.kind === 'schedule' && hold.name === lane.pipeline,
                        )}
                      />
                    ))}
                  </div>
                  {end}
                </>
              )}
            </div>
          </>
        )}
      </WithData>
    </Page>
  )
}

function Legend(): JSX.Element {
  const kinds: MarkKind[] = ['succeeded', 'claimed', 'gave_up', 'skipped', 'late', 'missed', 'upcoming']
  return (
    <ul class="legend" aria-label="Marks">
      {kinds.map(kind => (
        <li key={kind}>
          <svg width="12" height="16" viewBox="-6 -8 12 16" aria-hidden="true">
            <path d={markPath(kind, 0)} class={`mark fill-${MARK_TONES[kind]} mark-${kind}`} />
          </svg>
          {MARK_NAMES[kind]}
        </li>
      ))}
    </ul>
  )
}

/** Each kind has its own shape. */
function markPath(kind: MarkKind, x: number): string {
  if (kind === 'missed') return `M${x} -6L${x + 5} 0L${x} 6L${x - 5} 0Z`
  if (kind === 'late' || kind === 'retry') return `M${x} -6L${x + 5} 5H${x - 5}Z`
  if (kind === 'gave_up') return `M${x - 3} -7h6v14h-6z`
  if (kind === 'upcoming') return `M${x - 0.75} -4h1.5v8h-1.5z`
  return `M${x - 1.5} -6h3v12h-3z`
}

const WIDTH = 1_000

function LaneRow({
  lane,
  from,
  to,
  now,
  hold,
}: {
  lane: Lane
  from: number
  to: number
  now: number
  hold: Hold | undefined
}): JSX.Element {
  const [hovered, setHovered] = useState<Mark | null>(null)
  const marks = lane.marks.filter(mark => mark.at >= from && mark.at <= to)
  const share = (at: number) => (at - from) / (to - from)
  const nearest = (event: MouseEvent): Mark | null => {
    const box = (event.currentTarget as Element).getBoundingClientRect()
    const at = from + ((event.clientX - box.left) / box.width) * (to - from)
    const reach = ((to - from) * 8) / box.width
    let best: Mark | null = null
    for (const mark of marks) {
      if (Math.abs(mark.at - at) <= (best ? Math.abs(best.at - at) : reach)) best = mark
    }
    return best
  }
  const name = lane.pipeline.replace(/^workflow:/, '')
  const isWorkflow = name !== lane.pipeline
  return (
    <div class="lane">
      <a class="lane-name" href={isWorkflow ? '/workflows' : pageOf.pipeline(name)} title={name}>
        {name}
        {isWorkflow && <span class="tag">workflow</span>}
        {hold && <span class="tone-held small"> paused</span>}
      </a>
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: a shortcut for the mouse; runs are links on the pipeline's page */}
      {/* biome-ignore lint/a11y/noStaticElementInteractions: see above */}
      <div
        class={`lane-track${hovered?.runId ? ' can-open' : ''}`}
        title={hovered ? markText(hovered, now) : undefined}
        onMouseMove={event => setHovered(nearest(event))}
        onMouseLeave={() => setHovered(null)}
        onClick={event => {
          const mark = nearest(event)
          if (mark?.runId) navigate(pageOf.run(mark.runId))
        }}
      >
        <LaneMarks marks={marks} share={share} label={laneText(lane)} />
        <span class="lane-now" style={{ left: `${share(now) * 100}%` }} />
      </div>
    </div>
  )
}

/** One path for each kind of mark, however many marks there are. */
function LaneMarks({
  marks,
  share,
  label,
}: {
  marks: Mark[]
  share: (at: number) => number
  label: string
}): JSX.Element {
  const byKind = new Map<MarkKind, Mark[]>()
  for (const mark of marks) byKind.set(mark.kind, [...(byKind.get(mark.kind) ?? []), mark])
  return (
    <span class="lane-marks" role="img" aria-label={label}>
      {[...byKind].map(([kind, its]) =>
        isTrouble(its[0] as Mark) || its.length <= 12 ? (
          its.map(mark => (
            <svg
              key={`${kind} ${mark.at}`}
              class="lane-mark"
              style={{ left: `${share(mark.at) * 100}%` }}
              width="12"
              height="16"
              viewBox="-6 -8 12 16"
              aria-hidden="true"
            >
              <path d={markPath(kind, 0)} class={`mark fill-${MARK_TONES[kind]} mark-${kind}`} />
            </svg>
          ))
        ) : (
          <svg
            key={kind}
            class="lane-many"
            viewBox={`0 -8 ${WIDTH} 16`}
            preserveAspectRatio="none"
            aria-hidden="true"
          >
            <path
              class={`mark fill-${MARK_TONES[kind]} mark-${kind}`}
              d={its.map(mark => `M${(share(mark.at) * WIDTH).toFixed(1)} -6h2v12h-2z`).join('')}
            />
          </svg>
        ),
      )}
    </span>
  )
}

function markText(mark: Mark, now: number): string {
  const time = new Date(mark.at)
  const local = localText(time)
  const parts = [
    `${MARK_NAMES[mark.kind]}: ${utcText(time, new Date(now))} UTC`,
    local,
    relativeText(time, new Date(now)),
    mark.failures ? `${mark.failures} failed attempts` : null,
    mark.reason,
  ]
  return parts.filter(Boolean).join(', ')
}

function LaneAxis({ from, to, now }: { from: number; to: number; now: number }): JSX.Element {
  return (
    <div class="lane lane-axis" aria-hidden="true">
      <span class="lane-name small muted">UTC</span>
      <div class="lane-track">
        {hourTicks(from, to).map(({ at, isDay, label }) => (
          <span
            key={at}
            class={`lane-tick${isDay ? ' is-day' : ''}${label === 'before' ? ' is-before' : ''}`}
            style={{ left: `${((at - from) / (to - from)) * 100}%` }}
          >
            {label === null
              ? ''
              : isDay
                ? utcText(new Date(at), new Date(0), false).slice(0, 6)
                : new Date(at).toISOString().slice(11, 16)}
          </span>
        ))}
        <span class="lane-now" style={{ left: `${((now - from) / (to - from)) * 100}%` }}>
          <span>now</span>
        </span>
      </div>
    </div>
  )
}

/** What a person should see to, in words. */
function Troubles({ lanes, holds }: { lanes: Lane[]; holds: Hold[] }): JSX.Element | null {
  const found = lanes.flatMap(lane => lane.marks.filter(isTrouble).map(mark => ({ lane, mark })))
  const paused = holds.filter(hold => hold.kind === 'schedule')
  if (found.length === 0 && paused.length === 0) return null
  const newest = found.sort((one, other) => other.mark.at - one.mark.at).slice(0, 8)
  return (
    <Card title="To look at" flush>
      {newest.length > 0 && (
        <Scrolling label="Slots to look at">
          <table class="grid troubles">
            <tbody>
              {newest.map(({ lane, mark }) => (
                <tr key={`${lane.pipeline} ${mark.at}`}>
                  <td class="tight">
                    <Status
                      status={mark.kind === 'retry' ? 'waiting' : mark.kind}
                      label={MARK_NAMES[mark.kind]}
                    />
                  </td>
                  <td>
                    <a href={pageOf.pipeline(lane.pipeline)}>{lane.pipeline}</a>
                  </td>
                  <td>
                    <Time at={new Date(mark.at).toISOString()} inline />
                  </td>
                  <td class="break muted cell-below">{mark.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scrolling>
      )}
      {found.length > newest.length && (
        <p class="card-body muted small">and {found.length - newest.length} more</p>
      )}
      {paused.map(hold => (
        <p key={hold.name} class="card-body">
          <Status status="held" label="paused" /> <a href={pageOf.pipeline(hold.name)}>{hold.name}</a> by{' '}
          {hold.by}, for {durationText(Math.max(0, (eachTenSeconds.value - Date.parse(hold.since)) / 1000))}
          {hold.reason && `: ${hold.reason}`}
        </p>
      ))}
    </Card>
  )
}
