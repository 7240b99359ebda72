import { describe, expect, test } from 'vitest'
import type { Run } from '../src/api/types'
import { errorOf, split } from '../src/pages/runs/run_error'
import { attemptNumber, axisSteps, numbered, stagesOf } from '../src/pages/runs/timeline'

describe('the parts of an error', () => {
  const text =
    "column 'currency': 'EURO' is too long\n  where: pipelines.py:176\n  state: the target is as before\n  next:  correct it\n         or filter it"
  test('come from its text', () =>
    expect(split(text)).toEqual({
      what: "column 'currency': 'EURO' is too long",
      where: 'pipelines.py:176',
      state: 'the target is as before',
      next: 'correct it\n         or filter it',
    }))
  test('a text without parts is what happened', () =>
    expect(split('boom\nagain')).toEqual({ what: 'boom\nagain' }))
  test('a run that ended well has no error', () => expect(errorOf({ error_message: null } as Run)).toBeNull())
  test('the error of a target adds what the text lacks', () => {
    const target = {
      error: { type: 'LoadError', what: 'boom', state: 'nothing was committed', next: 'run it again' },
    }
    const run = {
      error_message: 'boom',
      error_type: 'LoadError',
      error_where: null,
      metrics: { targets: [target] },
    }
    expect(errorOf(run as unknown as Run)).toMatchObject({
      what: 'boom',
      state: 'nothing was committed',
      next: 'run it again',
    })
  })
})

describe('attempts at a slot', () => {
  const runs = [1, 2, 1, 2].map(
    (attempt, index) =>
      ({ run_id: `${index}`, attempt, started_at: `2026-10-0${index + 1}T00:00:00Z` }) as Run,
  )
  test('are counted on after the slot was cleared', () =>
    expect(numbered([...runs].reverse()).map(([run, number]) => [run.run_id, number])).toEqual([
      ['0', 1],
      ['1', 2],
      ['2', 3],
      ['3', 4],
    ]))
  test('begin with the number of the oldest that is known', () =>
    expect(numbered([{ ...runs[0], attempt: 5 } as Run, runs[2] as Run]).map(([, number]) => number)).toEqual(
      [5, 6],
    ))
  test('have one number on the page of a run', () => {
    expect(attemptNumber({ ...(runs[2] as Run), attempts: runs })).toBe(3)
    expect(attemptNumber({ ...(runs[1] as Run), attempts: [] })).toBe(2)
  })
})

describe('the timeline', () => {
  test('has round steps', () => {
    expect(axisSteps(61)).toEqual([0, 15, 30, 45, 60])
    expect(axisSteps(0)).toEqual([0])
  })
  test('of an older run is made of durations', () =>
    expect(
      stagesOf({
        targets: [
          { target: 't', mode: '', path: '', status: '', reason: null, seconds: { read: 2, apply: 1 } },
        ],
      }),
    ).toEqual([
      { target: 't', stage: 'read', at: 0, seconds: 2 },
      { target: 't', stage: 'apply', at: 2, seconds: 1 },
    ]))
})
