import { describe, expect, test } from 'vitest'
import type { Bar, Pipeline, Run } from '../src/api/types'
import { barHeights, barsText } from '../src/components/bars'
import { progressText, shareOf } from '../src/pages/pipelines/parts'
import { pipelineActions } from '../src/pages/pipelines/pipeline_actions'
import { isFailing, isIn, isSelector, matches, ordered, standing } from '../src/pages/pipelines/standing'

function pipeline(name: string, values: Partial<Pipeline> = {}): Pipeline {
  return {
    pipeline: name,
    schedule: null,
    timezone: null,
    depends_on: [],
    tags: [],
    last_run: null,
    failures_since_success: 0,
    attempts_allowed: 1,
    slot: null,
    why: null,
    next_due: null,
    due_slots: 0,
    oldest_due: null,
    behind_seconds: 0,
    ...values,
  }
}

const slot = { at: '2026-10-12T14:00:00Z', failures: 3, reason: null }

describe('the standing of a pipeline', () => {
  test('never ran', () => expect(standing(pipeline('a'))).toBe('never'))
  test('a slot that was given up wins over its last run', () =>
    expect(standing(pipeline('a', { slot: { ...slot, status: 'gave_up' } }))).toBe('gave_up'))
  test('failures since the last success are failing', () =>
    expect(isFailing(pipeline('a', { failures_since_success: 1 }))).toBe(true))
  test('failing ones come first, others keep their order', () => {
    const names = ordered([
      pipeline('a'),
      pipeline('b', { due_slots: 1 }),
      pipeline('c', { failures_since_success: 2 }),
    ])
    expect(names.map(each => each.pipeline)).toEqual(['c', 'b', 'a'])
  })
  test('a paused schedule is in its group', () => {
    const hold = {
      kind: 'schedule',
      name: 'a',
      by: 'ada',
      since: '',
      reason: null,
      held_run: null,
      held_at: null,
    } as const
    expect(isIn('paused', pipeline('a', { schedule_hold: hold }))).toBe(true)
  })
})

describe('what can be done with a pipeline', () => {
  const permission = (kind: string, values: Partial<Pipeline>) =>
    pipelineActions(pipeline('a', values)).find(each => each.kind === kind)?.permission
  test('without a schedule there is none to pause', () =>
    expect(permission('pause_schedule', {})).toEqual({
      ok: false,
      why: 'It has no schedule, and no workflow runs it.',
    }))
  test.each([{ schedule: '0 6 * * *' }, { workflows: ['nightly'] }])('%o can be paused', values =>
    expect(permission('pause_schedule', values)?.ok).toBe(true),
  )
  test('a run is paused while it works', () => {
    expect(permission('pause', {})?.ok).toBe(false)
    expect(permission('pause', { last_run: { status: 'running' } as Run })?.ok).toBe(true)
  })
  test('the next attempt of a pipeline that has retries can be paused', () =>
    expect(permission('pause', { attempts_allowed: 3 })?.ok).toBe(true))
})

describe('search', () => {
  test.each(['tag:nightly', '+orders', 'orders+', 'orders_*', '@orders'])('%s is a selector', text =>
    expect(isSelector(text)).toBe(true),
  )
  test('words are searched in names, tags and targets', () => {
    const found = pipeline('orders', {
      tags: ['nightly'],
      targets: [{ target: 'warehouse:shop.orders', mode: 'merge' }],
    })
    expect(matches(found, ['night', 'shop'])).toBe(true)
    expect(matches(found, ['night', 'lake'])).toBe(false)
  })
})

describe('bars', () => {
  const bar = (status: Bar['status'], seconds: number | null): Bar => ({
    run_id: 'x',
    status,
    started_at: '2026-10-12T14:00:00Z',
    seconds,
    rows: null,
  })
  test('the longest is the highest, the shortest can be seen', () => {
    const [long, short] = barHeights([bar('succeeded', 100), bar('succeeded', 0.01)])
    expect(long).toBe(26)
    expect(short).toBe(3)
  })
  test('words say the same', () => {
    expect(barsText([bar('failed', 2), bar('succeeded', 3)])).toBe(
      'last 2 runs: 1 failed, 1 succeeded; newest succeeded, took 3 s',
    )
    expect(barsText([])).toBe('has not run yet')
  })
})

describe('progress', () => {
  test('a share needs an expectation', () => {
    expect(shareOf({ rows: 10 })).toBeNull()
    expect(shareOf({ rows: 50, expected_rows: 200 })).toBe(0.25)
    expect(shareOf({ rows: 300, expected_rows: 200 })).toBe(1)
  })
  test('in words', () =>
    expect(
      progressText({ stage: 'copy', rows: 50, expected_rows: 200, rows_per_second: 25, eta_seconds: 6.2 }),
    ).toBe('copy, 25 %, 25 rows/s, 6 s left'))
})
