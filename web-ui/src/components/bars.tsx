// Small drawings in tables: the last runs as bars, and rows a day as a line. Each also says in words what it shows.

import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import type { Bar, RowsOfDay } from '../api/types'
import { navigate, pageOf } from '../routing/router'
import { countText, shortCount } from '../text/numbers'
import { durationText, parseTime, relativeText, utcText } from '../text/times'
import { statusText, type Tone, toneOf } from './status'

const SHOWN = 30
const STEP = 5
const WIDE = 3.4
const HIGH = 26
const LEAST = 3

/** Heights grow with the root of the duration, so that one slow run does not flatten the others. */
export function barHeights(bars: Bar[]): number[] {
  const longest = Math.max(0, ...bars.map(bar => bar.seconds ?? 0))
  return bars.map(bar => {
    if (bar.seconds === null) return HIGH
    return longest === 0 ? LEAST : Math.max(LEAST, HIGH * Math.sqrt(bar.seconds / longest))
  })
}

/** "last 30 runs: 28 succeeded, 2 failed; newest failed". */
export function barsText(bars: Bar[]): string {
  if (bars.length === 0) return 'has not run yet'
  const counts = new Map<string, number>()
  for (const bar of bars) counts.set(bar.status, (counts.get(bar.status) ?? 0) + 1)
  const parts = [...counts].map(([status, number]) => `${number} ${statusText(status)}`)
  const newest = bars[bars.length - 1]
  const took = newest?.seconds === null ? '' : `, took ${durationText(newest?.seconds)}`
  const many = bars.length === 1 ? 'only run' : `last ${bars.length} runs`
  return `${many}: ${parts.join(', ')}; newest ${statusText(newest?.status)}${took}`
}

export function RunBars({ bars, shown = SHOWN }: { bars: Bar[]; shown?: number }): JSX.Element {
  const [hovered, setHovered] = useState<Bar | null>(null)
  const last = bars.slice(-shown)
  const width = shown * STEP
  const offset = shown - last.length
  const heights = barHeights(last)
  const paths = new Map<Tone, string>()
  for (const [index, bar] of last.entries()) {
    const tone = toneOf(bar.status)
    const x = (offset + index) * STEP
    const height = heights[index] ?? LEAST
    const y = HIGH - height
    paths.set(tone, `${paths.get(tone) ?? ''}M${x} ${y.toFixed(1)}h${WIDE}v${height.toFixed(1)}h-${WIDE}z`)
  }
  const barAt = (event: MouseEvent): Bar | null => {
    const box = (event.currentTarget as Element).getBoundingClientRect()
    return last[Math.floor(((event.clientX - box.left) / box.width) * shown) - offset] ?? null
  }
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: a shortcut for the mouse; the runs are a link in the same row
    <svg
      class={`run-bars${hovered ? ' can-open' : ''}`}
      width={width}
      height={HIGH}
      viewBox={`0 0 ${width} ${HIGH}`}
      role="img"
      aria-label={barsText(last)}
      onMouseMove={event => setHovered(barAt(event))}
      onMouseLeave={() => setHovered(null)}
      onClick={event => {
        const bar = barAt(event)
        if (bar) navigate(pageOf.run(bar.run_id))
      }}
    >
      <title>{hovered ? barText(hovered) : barsText(last)}</title>
      <path d={`M0 ${HIGH - 0.5}H${width}`} stroke="var(--line)" />
      {[...paths].map(([tone, path]) => (
        <path key={tone} d={path} class={`fill-${tone}`} />
      ))}
    </svg>
  )
}

function barText(bar: Bar): string {
  const time = parseTime(bar.started_at)
  const when = time ? `${utcText(time)} UTC, ${relativeText(time)}` : ''
  const rows = bar.rows === null ? '' : `, ${countText(bar.rows)} ${bar.rows === 1 ? 'row' : 'rows'}`
  return `${statusText(bar.status)} ${when}${bar.seconds === null ? '' : `, ${durationText(bar.seconds)}`}${rows}`
}

export function Sparkline({ days }: { days: RowsOfDay[] }): JSX.Element {
  const width = 64
  const high = 24
  const most = Math.max(1, ...days.map(day => day.rows))
  const step = width / Math.max(1, days.length - 1)
  const points = days.map(
    (day, index) => `${(index * step).toFixed(1)} ${(high - 2 - (high - 5) * (day.rows / most)).toFixed(1)}`,
  )
  const line = points.length > 1 ? `M${points.join('L')}` : ''
  const total = days.reduce((sum, day) => sum + day.rows, 0)
  const today = days[days.length - 1]?.rows ?? 0
  const text = `${countText(total)} ${total === 1 ? 'row' : 'rows'} in ${days.length} days, ${countText(today)} today`
  return (
    <span class="spark">
      <svg width={width} height={high} viewBox={`0 0 ${width} ${high}`} role="img" aria-label={text}>
        <title>{text}</title>
        {total > 0 && line && (
          <>
            <path d={`${line}L${width} ${high}L0 ${high}Z`} fill="var(--accent)" fill-opacity="0.12" />
            <path d={line} fill="none" stroke="var(--accent)" stroke-width="1.5" />
          </>
        )}
      </svg>
      <span class="small muted">{total > 0 ? shortCount(today) : ''}</span>
    </span>
  )
}
