import { describe, expect, test } from 'vitest'
import type { Run } from '../src/api/types'
import { errorOf, split } from '../src/pages/runs/run_error'
import { axisSteps, stagesOf } from '../src/pages/runs/timeline'

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
