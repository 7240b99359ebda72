// Times on the page. Relative ones advance by themselves, all from one timer.

import { signal } from '@preact/signals'
import type { JSX } from 'preact'
import { durationText, localText, parseTime, relativeText, type Sense, utcText } from '../text/times'

/** The present, once a second and once every ten seconds while the page is visible. */
export const eachSecond = signal(Date.now())
export const eachTenSeconds = signal(Date.now())

setInterval(() => {
  if (document.hidden) return
  const now = Date.now()
  eachSecond.value = now
  if (now - eachTenSeconds.peek() >= 10_000) eachTenSeconds.value = now
}, 1_000)

/** A time in UTC, with local time and how long ago it was next to it. */
export function Time({
  at,
  relative = true,
  inline = false,
  sense = 'past',
}: {
  at: string | null | undefined
  relative?: boolean
  inline?: boolean
  sense?: Sense
}): JSX.Element | null {
  const time = parseTime(at)
  if (!time) return null
  const now = new Date(eachTenSeconds.value)
  const others = [localText(time), relative ? relativeText(time, now, sense) : null]
    .filter(Boolean)
    .join(' · ')
  return (
    <time dateTime={time.toISOString()} class="nowrap">
      {utcText(time, now)} UTC
      {others && (
        <span class={`muted small${inline ? '' : ' second-line'}`}>
          {inline ? ' ' : ''}
          {others}
        </span>
      )}
    </time>
  )
}

/** How long ago, with the whole time as its title. */
export function Ago({ at }: { at: string | null | undefined }): JSX.Element | null {
  const time = parseTime(at)
  if (!time) return null
  const local = localText(time)
  return (
    <time
      dateTime={time.toISOString()}
      title={`${utcText(time)} UTC${local ? `, ${local}` : ''}`}
      class="nowrap"
    >
      {relativeText(time, new Date(eachTenSeconds.value), 'past')}
    </time>
  )
}

/** How long something took, or has taken until now. */
export function Duration({
  seconds,
  since,
}: {
  seconds: number | null | undefined
  since?: string | null | undefined
}): JSX.Element | null {
  if (seconds !== null && seconds !== undefined) return <span class="nowrap">{durationText(seconds)}</span>
  const start = parseTime(since)
  if (!start) return null
  const elapsed = Math.max(0, Math.round((eachSecond.value - start.getTime()) / 1000))
  return <span class="nowrap">{durationText(elapsed)}</span>
}
