// Times and durations as text: UTC first, local time next to it.

const UTC_DATE = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short', timeZone: 'UTC' })
const UTC_DATE_YEAR = new Intl.DateTimeFormat('en-GB', {
  day: '2-digit',
  month: 'short',
  year: 'numeric',
  timeZone: 'UTC',
})
const UTC_TIME = new Intl.DateTimeFormat('en-GB', {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  timeZone: 'UTC',
})
const UTC_MINUTE = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', timeZone: 'UTC' })
const LOCAL_TIME = new Intl.DateTimeFormat('en-GB', {
  hour: '2-digit',
  minute: '2-digit',
  timeZoneName: 'short',
})
const LOCAL_DAY = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short' })

/** 14:03:22, or 12 Oct 14:03:22 when it is not today, or with the year when that is another one. */
export function utcText(time: Date, now = new Date(), seconds = true): string {
  const clock = (seconds ? UTC_TIME : UTC_MINUTE).format(time)
  if (time.toISOString().slice(0, 10) === now.toISOString().slice(0, 10)) return clock
  const sameYear = time.getUTCFullYear() === now.getUTCFullYear()
  return `${(sameYear ? UTC_DATE : UTC_DATE_YEAR).format(time)} ${clock}`
}

/** 16:03 CEST, with the day when it is another one than in UTC; null where local time is UTC. */
export function localText(time: Date): string | null {
  if (time.getTimezoneOffset() === 0) return null
  const otherDay = LOCAL_DAY.format(time) !== UTC_DATE.format(time)
  return `${otherDay ? `${LOCAL_DAY.format(time)} ` : ''}${LOCAL_TIME.format(time)}`
}

const CLOCKS_DIFFER = 60 // seconds that the clock of the server may be ahead of the browser's

/** What the time is of: something that has been, something that is to come, or either. */
export type Sense = 'past' | 'next' | 'any'

/** 3 min ago, in 2 h; "now" within a second. */
export function relativeText(time: Date, now = new Date(), sense: Sense = 'any'): string {
  const seconds = (time.getTime() - now.getTime()) / 1000
  if (sense === 'next' && seconds <= 0) return 'due'
  if (sense === 'past' && seconds > 0 && seconds < CLOCKS_DIFFER) return 'just now'
  if (Math.abs(seconds) < 1) return 'now'
  const text = roughDuration(Math.abs(seconds))
  return seconds > 0 ? `in ${text}` : `${text} ago`
}

/** One unit is enough to see how long ago something was. */
export function roughDuration(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`
  return `${Math.floor(seconds / 86400)} d`
}

/** 0.42 s, 12.4 s, 3 min 20 s, 2 h 05 min. */
export function durationText(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return ''
  if (seconds < 0) return `−${durationText(-seconds)}`
  if (seconds < 0.01) return seconds === 0 ? '0 s' : '<0.01 s'
  if (seconds < 1) return `${seconds.toFixed(2)} s`
  if (seconds < 60 && Number.isInteger(seconds)) return `${seconds} s`
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`
  const whole = Math.round(seconds)
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`
  return `${Math.floor(whole / 86400)} d ${pad(Math.floor((whole % 86400) / 3600))} h`
}

function pad(value: number): string {
  return String(value).padStart(2, '0')
}

/** A time that the server wrote; null for anything that is none. */
export function parseTime(text: string | null | undefined): Date | null {
  if (!text) return null
  const time = new Date(text)
  return Number.isNaN(time.getTime()) ? null : time
}

const UNITS: Record<string, number> = { m: 60, h: 3600, d: 86400 }

/** Seconds of 90m, 2h or 7d; null for anything else. */
export function parseSpan(text: string): number | null {
  const found = /^(\d{1,5})([mhd])$/.exec(text)
  return found ? Number(found[1]) * (UNITS[found[2] ?? ''] ?? 0) : null
}

/** Where a span such as 24h began, or the time itself when the text is one; null when it is neither. */
export function startOf(span: string, now: Date): string | null {
  const seconds = parseSpan(span)
  if (seconds !== null) return new Date(now.getTime() - seconds * 1000).toISOString()
  return parseTime(span)?.toISOString() ?? null
}
