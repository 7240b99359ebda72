import { describe, expect, test } from 'vitest'
import { durationText, parseSpan, relativeText, roughDuration, startOf, utcText } from '../src/text/times'

const NOW = new Date('2026-10-12T14:00:00Z')

describe('durations', () => {
  test.each([
    [0, '0 s'],
    [0.004, '<0.01 s'],
    [0.42, '0.42 s'],
    [12.44, '12.4 s'],
    [30, '30 s'],
    [59.97, '1 min 00 s'],
    [200, '3 min 20 s'],
    [7500, '2 h 05 min'],
    [200_000, '2 d 07 h'],
    [null, ''],
    [Number.NaN, ''],
  ])('%s seconds are %s', (seconds, text) => expect(durationText(seconds)).toBe(text))

  test('one unit is enough for an age', () => expect(roughDuration(3 * 3600 + 59 * 60)).toBe('3 h'))
})

describe('times', () => {
  test('today has no date', () => expect(utcText(new Date('2026-10-12T09:03:22Z'), NOW)).toBe('09:03:22'))
  test('another day has one', () =>
    expect(utcText(new Date('2026-10-11T09:03:22Z'), NOW)).toBe('11 Oct 09:03:22'))
  test('another year has it too', () =>
    expect(utcText(new Date('2025-10-11T09:03:22Z'), NOW)).toBe('11 Oct 2025 09:03:22'))
  test('past and future are told apart', () => {
    expect(relativeText(new Date('2026-10-12T13:57:00Z'), NOW)).toBe('3 min ago')
    expect(relativeText(new Date('2026-10-12T16:00:00Z'), NOW)).toBe('in 2 h')
  })

  test('what has been is never to come, and what is to come is due once its time has passed', () => {
    expect(relativeText(new Date('2026-10-12T14:00:04Z'), NOW, 'past')).toBe('just now')
    expect(relativeText(new Date('2026-10-12T13:59:52Z'), NOW, 'next')).toBe('due')
    expect(relativeText(new Date('2026-10-12T16:00:00Z'), NOW, 'next')).toBe('in 2 h')
  })
})

describe('spans', () => {
  test.each([
    ['90m', 5400],
    ['2h', 7200],
    ['7d', 604_800],
    ['', null],
    ['7 days', null],
  ])('%s is %s seconds', (text, seconds) => expect(parseSpan(text)).toBe(seconds))
  test('a span begins before now', () => expect(startOf('1h', NOW)).toBe('2026-10-12T13:00:00.000Z'))
  test('a time stands for itself', () => expect(startOf('2026-01-31', NOW)).toBe('2026-01-31T00:00:00.000Z'))
})
