// Numbers as text.

const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 })
const SHORT = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 })
const BYTE_UNITS = ['bytes', 'kB', 'MB', 'GB', 'TB', 'PB']

/** 1,234,567; empty when it is not known. */
export function countText(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? '' : WHOLE.format(value)
}

/** 1.2M, for narrow places. */
export function shortCount(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return ''
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value)
}

/** 1 row, 1.2M rows. */
export function rowsText(value: number): string {
  return value === 1 ? '1 row' : `${shortCount(value)} rows`
}

export function rateText(rowsPerSecond: number | null | undefined): string {
  if (rowsPerSecond === null || rowsPerSecond === undefined || !Number.isFinite(rowsPerSecond)) return ''
  const number =
    rowsPerSecond > 0 && rowsPerSecond < 10 ? rowsPerSecond.toFixed(1) : shortCount(Math.round(rowsPerSecond))
  return `${number} rows/s`
}

export function bytesText(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return ''
  let unit = 0
  let left = value
  while (left >= 1000 && unit < BYTE_UNITS.length - 1) {
    left /= 1000
    unit += 1
  }
  const digits = unit === 0 || left >= 100 ? 0 : 1
  return `${left.toFixed(digits)} ${BYTE_UNITS[unit]}`
}

/** "1 run", "3 runs", "no runs". */
export function plural(number: number, one: string, many = `${one}s`): string {
  if (number === 0) return `no ${many}`
  return number === 1 ? `1 ${one}` : `${countText(number)} ${many}`
}
