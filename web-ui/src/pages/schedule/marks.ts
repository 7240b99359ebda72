// Slots and coming fires as marks on a line of time, one line for each pipeline.

import type { ScheduleView } from '../../api/types'

export type MarkKind =
  | 'succeeded'
  | 'gave_up'
  | 'skipped'
  | 'claimed'
  | 'late'
  | 'retry'
  | 'missed'
  | 'upcoming'

export interface Mark {
  kind: MarkKind
  at: number
  runId: string | null
  reason: string | null
  failures: number
}

export interface Lane {
  pipeline: string
  marks: Mark[]
}

/** A slot that waits is late once it has been due for a minute: by then a scheduler should have claimed it. */
const LATE_AFTER = 60_000

export const MARK_NAMES: Record<MarkKind, string> = {
  succeeded: 'succeeded',
  gave_up: 'gave up',
  skipped: 'skipped',
  claimed: 'running',
  late: 'late',
  retry: 'waits for its next attempt',
  missed: 'missed',
  upcoming: 'to come',
}

export function lanesOf(view: ScheduleView, now: number): Lane[] {
  const lanes = new Map<string, Mark[]>()
  const add = (pipeline: string, mark: Mark) => {
    const marks = lanes.get(pipeline)
    if (marks) marks.push(mark)
    else lanes.set(pipeline, [mark])
  }
  const missed = new Set(view.missed.map(fire => `${fire.pipeline} ${fire.at}`))
  for (const slot of view.slots) {
    if (missed.has(`${slot.pipeline} ${slot.at}`)) continue
    const at = Date.parse(slot.at)
    const { status, failures } = slot
    const waits = failures > 0 ? 'retry' : at < now - LATE_AFTER ? 'late' : 'upcoming'
    add(slot.pipeline, {
      kind: status === 'waiting' ? waits : status,
      at,
      runId: slot.run_id,
      reason: slot.reason,
      failures,
    })
  }
  for (const fire of view.missed) {
    const reason = 'reason' in fire ? (fire.reason as string | null) : null
    add(fire.pipeline, { kind: 'missed', at: Date.parse(fire.at), runId: null, reason, failures: 0 })
  }
  for (const fire of view.upcoming) {
    add(fire.pipeline, { kind: 'upcoming', at: Date.parse(fire.at), runId: null, reason: null, failures: 0 })
  }
  const found = [...lanes].map(([pipeline, marks]) => ({
    pipeline,
    marks: marks.sort((a, b) => a.at - b.at),
  }))
  return found.sort(
    (one, other) => troubles(other) - troubles(one) || one.pipeline.localeCompare(other.pipeline),
  )
}

export function isTrouble(mark: Mark): boolean {
  return mark.kind === 'missed' || mark.kind === 'late' || mark.kind === 'gave_up' || mark.kind === 'retry'
}

function troubles(lane: Lane): number {
  return lane.marks.some(isTrouble) ? 1 : 0
}

/** "41 succeeded, 1 missed, 48 to come". */
export function laneText(lane: Lane): string {
  const counts = new Map<MarkKind, number>()
  for (const mark of lane.marks) counts.set(mark.kind, (counts.get(mark.kind) ?? 0) + 1)
  return [...counts].map(([kind, number]) => `${number} ${MARK_NAMES[kind]}`).join(', ')
}

/** An hour of an axis. */
export interface Tick {
  at: number
  isDay: boolean
  /** On which side of its line the label stands; null when there is no room for it. */
  label: 'after' | 'before' | null
}

const HOUR_ROOM = 0.1 // of the axis, for a label such as 18:00
const DAY_ROOM = 0.18 // the name of a day is also shown on a phone

/** Whole days and every six hours. Near the end a day has its label before its line, in place of the hour there. */
export function hourTicks(from: number, to: number): Tick[] {
  const ticks: Tick[] = []
  const step = 6 * 3_600_000
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const isDay = at % 86_400_000 === 0
    const hasRoom = (to - at) / (to - from) >= (isDay ? DAY_ROOM : HOUR_ROOM)
    const before = ticks.at(-1)
    if (isDay && !hasRoom && before) before.label = null
    ticks.push({ at, isDay, label: hasRoom ? 'after' : isDay ? 'before' : null })
  }
  return ticks
}
