import { describe, expect, test } from 'vitest'
import type { ScheduledSlot } from '../src/api/types'
import { hourTicks, lanesOf, laneText } from '../src/pages/schedule/marks'

const NOW = Date.UTC(2026, 9, 12, 14, 30)
const slot = (
  pipeline: string,
  at: string,
  status: ScheduledSlot['status'],
  failures = 0,
): ScheduledSlot => ({
  pipeline,
  at: `2026-10-12T${at}:00Z`,
  status,
  run_id: null,
  reason: null,
  failures,
})

describe('marks', () => {
  const view = {
    slots: [
      slot('a', '13:00', 'succeeded'),
      slot('b', '14:00', 'waiting'),
      slot('c', '14:30', 'waiting'),
      slot('d', '14:00', 'waiting', 1),
    ],
    upcoming: [{ pipeline: 'a', at: '2026-10-12T15:00:00Z' }],
    missed: [{ pipeline: 'a', at: '2026-10-12T12:00:00Z' }],
    holds: [],
  }
  const kinds = Object.fromEntries(
    lanesOf(view, NOW).map(lane => [lane.pipeline, lane.marks.map(mark => mark.kind)]),
  )
  test('missed, past and coming ones are in order', () =>
    expect(kinds.a).toEqual(['missed', 'succeeded', 'upcoming']))
  test('a slot that has waited is late', () => expect(kinds.b).toEqual(['late']))
  test('one that is due this minute is not', () => expect(kinds.c).toEqual(['upcoming']))
  test('one that failed waits for its next attempt', () => expect(kinds.d).toEqual(['retry']))
  test('pipelines with troubles stand first', () =>
    expect(lanesOf(view, NOW).map(lane => lane.pipeline)).toEqual(['a', 'b', 'd', 'c']))
  test('words say the same', () =>
    expect(laneText(lanesOf(view, NOW)[0] as never)).toBe('1 missed, 1 succeeded, 1 to come'))
})

test('the axis has a mark each six hours', () => {
  const ticks = hourTicks(NOW, NOW + 24 * 3_600_000)
  expect(ticks.map(tick => new Date(tick.at).getUTCHours())).toEqual([18, 0, 6, 12])
  expect(ticks[1]?.isDay).toBe(true)
})

test('a label of the axis has room before its end', () => {
  const hour = 3_600_000
  const labels = (end: number) =>
    hourTicks(end - 96 * hour, end)
      .slice(-4)
      .map(tick => [new Date(tick.at).getUTCHours(), tick.label])
  expect(labels(Date.UTC(2026, 9, 12, 18, 8))).toEqual([
    [0, 'after'],
    [6, 'after'],
    [12, null],
    [18, null],
  ])
  expect(labels(Date.UTC(2026, 9, 12, 0, 30))).toEqual([
    [6, 'after'],
    [12, 'after'],
    [18, null],
    [0, 'before'],
  ])
})
