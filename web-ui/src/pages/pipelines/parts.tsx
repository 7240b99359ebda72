// Cells that the list of pipelines and the page of one share.

import type { JSX } from 'preact'
import { progressOf } from '../../api/live'
import type { Freshness, Hold, Pipeline, Progress } from '../../api/types'
import { Ago, Duration, eachTenSeconds, Time } from '../../components/time'
import { rateText, rowsText } from '../../text/numbers'
import { durationText, parseTime, relativeText, roughDuration } from '../../text/times'

export function FreshnessText({
  freshness,
}: {
  freshness: Freshness | null | undefined
}): JSX.Element | null {
  if (!freshness || freshness.lag_seconds === null) return null
  const limit = freshness.sla_seconds
  return (
    <span class={`nowrap ${freshness.is_breached ? 'tone-bad' : ''}`}>
      {freshness.is_breached && <strong>stale: </strong>}
      {roughDuration(freshness.lag_seconds)}
      {limit !== null && (
        <span class="muted small second-line">limit {durationText(limit).replace(/ 0+ ?\w+$/, '')}</span>
      )}
    </span>
  )
}

export function NextFire({ pipeline }: { pipeline: Pipeline }): JSX.Element | null {
  if (pipeline.schedule_hold) return <span class="tone-held">schedule paused</span>
  if (!pipeline.next_due) return pipeline.schedule ? null : <span class="muted">no schedule</span>
  return <Time at={pipeline.next_due} sense="next" />
}

/** What a person should know about the slot of a pipeline: retries, backlog, an absent scheduler. */
export function slotText(pipeline: Pipeline): string {
  const { slot, attempts_allowed: allowed } = pipeline
  const parts: string[] = []
  if (slot?.status === 'waiting') {
    const again = parseTime(slot.not_before)
    const now = new Date(eachTenSeconds.value)
    if (slot.failures > 0)
      parts.push(
        `attempt ${slot.failures + 1} of ${allowed} ${again && again > now ? relativeText(again, now) : 'is due'}`,
      )
    else parts.push(slot.reason ? 'waits' : 'is due')
  } else if (pipeline.failures_since_success > 1)
    parts.push(`${pipeline.failures_since_success} failures in a row`)
  if (pipeline.due_slots > 1)
    parts.push(
      `${pipeline.due_slots} slots are due, the oldest for ${roughDuration(pipeline.behind_seconds)}`,
    )
  return parts.join('; ')
}

export function LastRun({ pipeline }: { pipeline: Pipeline }): JSX.Element | null {
  const last = pipeline.last_run
  if (!last) return null
  return (
    <a class="plain" href={`/runs/${last.run_id}`}>
      <Ago at={last.started_at} />
      <span class="muted small second-line">
        <Duration seconds={last.duration_seconds} since={last.started_at} />
        {last.rows_inserted !== null || last.rows_updated !== null
          ? `, ${rowsText((last.rows_inserted ?? 0) + (last.rows_updated ?? 0) + (last.rows_deleted ?? 0))}`
          : ''}
      </span>
    </a>
  )
}

/** How far a run is, as a thin bar with words; nothing when it is not known. */
export function ProgressLine({
  runId,
  known,
}: {
  runId: string
  known?: Progress | null | undefined
}): JSX.Element | null {
  const progress = progressOf.value[runId] ?? known
  if (!progress) return null
  const share = shareOf(progress)
  return (
    <span class="progress-line">
      {share !== null && <progress max={1} value={share} aria-label="Rows read of those expected" />}
      <span class="small muted">{progressText(progress)}</span>
    </span>
  )
}

export function shareOf(progress: Progress): number | null {
  const { rows, expected_rows: expected } = progress
  if (!expected || rows === null || rows === undefined) return null
  return Math.max(0, Math.min(1, rows / expected))
}

export function progressText(progress: Progress): string {
  const share = shareOf(progress)
  const parts = [
    progress.stage,
    share === null ? (progress.rows ? rowsText(progress.rows) : null) : `${Math.floor(share * 100)} %`,
    rateText(progress.rows_per_second),
    progress.eta_seconds ? `${durationText(Math.round(progress.eta_seconds))} left` : null,
  ]
  return parts.filter(Boolean).join(', ')
}

export function HoldNote({ hold }: { hold: Hold }): JSX.Element {
  const what =
    hold.kind === 'schedule'
      ? 'The schedule is paused: due slots wait.'
      : hold.held_at
        ? `The run is held ${hold.held_at}.`
        : 'Runs wait at their next safe point; none has arrived there yet.'
  return (
    <div class="note held">
      <strong>{what}</strong> Paused by {hold.by} <Ago at={hold.since} />
      {hold.reason && <>: {hold.reason}</>}
    </div>
  )
}
