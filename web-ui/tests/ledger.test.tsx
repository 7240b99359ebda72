import { render } from 'preact'
import { act } from 'preact/test-utils'
import { afterEach, describe, expect, test, vi } from 'vitest'
import type { LedgerEntry, Run, RunLedger, RunsAround } from '../src/api/types'
import { neighboursOf } from '../src/pages/runs/around'
import { isOfAnotherRun, LedgerView, rangeText } from '../src/pages/runs/ledger'

afterEach(() => vi.unstubAllGlobals())

const ENTRY: LedgerEntry = {
  pipeline: 'orders',
  target: 'warehouse:main.orders',
  batch_key: 'run:aaaa',
  run_id: 'aaaa',
  source_from: '3',
  source_to: '7',
  rows_read: 1200,
  rows_inserted: 1000,
  rows_updated: 2,
  rows_deleted: 0,
  committed_at: '2026-10-12T14:00:00+00:00',
}

async function drawn(answers: Response[]): Promise<HTMLElement> {
  vi.stubGlobal(
    'fetch',
    vi.fn(async () => answers.shift()),
  )
  const place = document.createElement('div')
  document.body.replaceChildren(place)
  act(() => render(<LedgerView runId="aaaa" />, place))
  await vi.waitFor(() => expect(place.querySelector('[role=status]')).toBeNull())
  return place
}

const answer = (ledger: RunLedger) => new Response(JSON.stringify(ledger))

describe('the ledger of a run', () => {
  test('has the rows, the range and the time of each entry', async () => {
    const target = { target: ENTRY.target, entries: [ENTRY], note: null, error: null }
    const text = (await drawn([answer({ run_id: 'aaaa', targets: [target] })])).textContent
    for (const part of ['warehouse:main.orders', 'run:aaaa', '1,200', '1,000', '3 → 7', '14:00'])
      expect(text).toContain(part)
  })

  test('a target that cannot be reached says why, next to the others', async () => {
    const error = { type: 'CannotConnect', what: 'away:t did not answer within 15 s', next: 'check it' }
    const targets = [
      { target: ENTRY.target, entries: [ENTRY], note: null, error: null },
      { target: 'away:t', entries: [], note: null, error },
      { target: 'bus:t', entries: [], note: 'a message broker keeps no ledger', error: null },
    ]
    const place = await drawn([answer({ run_id: 'aaaa', targets })])
    expect(place.querySelector('.error-panel')?.textContent).toContain('did not answer within 15 s')
    expect(place.textContent).toContain('a message broker keeps no ledger')
    expect(place.textContent).toContain('run:aaaa')
  })

  test('is asked for again by a button after a failure', async () => {
    const refused = { error: { type: 'FlowError', what: 'too many requests wait', next: 'try again' } }
    const target = { target: ENTRY.target, entries: [ENTRY], note: null, error: null }
    const place = await drawn([
      new Response(JSON.stringify(refused), { status: 503 }),
      answer({ run_id: 'aaaa', targets: [target] }),
    ])
    expect(place.textContent).toContain('too many requests wait')
    const again = [...place.querySelectorAll('button')].find(each => each.textContent === 'Read again')
    act(() => again?.click())
    await vi.waitFor(() => expect(place.textContent).toContain('run:aaaa'))
    expect(place.querySelector('.error-panel')).toBeNull()
  })

  test('names another run that committed the batch, but not the id of a batch of a stream', () => {
    expect(isOfAnotherRun(ENTRY, 'aaaa')).toBe(false)
    expect(isOfAnotherRun(ENTRY, 'bbbb')).toBe(true)
    expect(isOfAnotherRun({ ...ENTRY, batch_key: 'stream:q:1' }, 'bbbb')).toBe(false)
    expect(isOfAnotherRun({ ...ENTRY, batch_key: 'dlq:q:1' }, 'bbbb')).toBe(false)
  })

  test('of a load without a range is of the whole source', () => {
    expect(rangeText({ source_from: null, source_to: null })).toBe('the whole source')
    expect(rangeText({ source_from: null, source_to: '7' })).toBe('the beginning → 7')
  })
})

test('the runs before and after stand in their order, also pipelines that have no run there', () => {
  const run = (run_id: string) => ({ run_id }) as Run
  const around: RunsAround = {
    previous: run('p'),
    next: run('n'),
    upstream: [{ pipeline: 'shop', run: run('u') }],
    downstream: [{ pipeline: 'report', run: null }],
    left_out: 0,
  }
  expect(
    neighboursOf(around, { pipeline: 'orders' }).map(each => [each.pipeline, each.run?.run_id ?? null]),
  ).toEqual([
    ['orders', 'p'],
    ['shop', 'u'],
    ['report', null],
    ['orders', 'n'],
  ])
})
