import { describe, expect, test } from 'vitest'
import { summary } from '../src/components/chart'
import { payloadText } from '../src/pages/dead_letters/letter_view'
import { countsOf } from '../src/pages/dead_letters/list'
import { chartsOf, hasValues, lagOf, spansOf } from '../src/pages/streams/samples'

const at = (seconds: number) => new Date(Date.UTC(2026, 9, 12, 14, 0, seconds)).toISOString()

describe('samples', () => {
  test('a rate is rows by the time since the sample before', () => {
    const { rates } = chartsOf([
      { at: at(0), rows_read: 100 },
      { at: at(10), rows_read: 200 },
      { at: at(20), rows_read: 50 },
    ])
    expect(rates.lines[0]?.values).toEqual([10, 20, 5])
  })
  test('where the stream stood still there is a gap', () => {
    const samples = [0, 10, 20, 400, 410].map(seconds => ({ at: at(seconds), rows_read: 10 }))
    expect(chartsOf(samples).rates.lines[0]?.values).toEqual([1, 1, 1, null, 1, 1])
    expect(spansOf(samples)).toEqual([10, 10, 10, 10, 10])
  })
  test('lag is the sum over partitions', () => {
    expect(lagOf({ at: at(0), lag: { '0': 5, '1': 7 } })).toBe(12)
    expect(lagOf({ at: at(0), lag: 3 })).toBe(3)
    expect(lagOf({ at: at(0) })).toBeNull()
  })
  test('a chart without values is not drawn', () =>
    expect(hasValues(chartsOf([{ at: at(0) }]).lag)).toBe(false))
  test('words say what a chart shows', () =>
    expect(summary({ times: [1, 2], lines: [{ label: 'lag', color: '', values: [7, 3] }] }, String)).toBe(
      'lag: now 3, at most 7',
    ))
})

describe('letters', () => {
  test('JSON is laid out, other text stands as it came', () => {
    expect(payloadText({ text: '{"a":1}' })).toBe('{\n  "a": 1\n}')
    expect(payloadText({ text: '{"a":' })).toBe('{"a":')
  })
  test('bytes are hexadecimal with their letters', () =>
    expect(payloadText({ hex: '41ff42' })).toMatch(/^000000 {2}41 ff 42 +A\.B$/))
  test('counts are summed over stages', () =>
    expect(
      countsOf(
        [
          { pipeline: 'a', stage: 'decode', status: 'pending', letters: 2 },
          { pipeline: 'a', stage: 'write', status: 'pending', letters: 3 },
          { pipeline: 'b', stage: 'write', status: 'parked', letters: 1 },
        ],
        'a',
      ),
    ).toEqual([['pending', 5]]))
})
