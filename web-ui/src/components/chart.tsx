// A line chart over time (uPlot), in the colours of the page. The same numbers stand in words under it.

import type { JSX } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { theme } from '../theme'
import { resolveColor } from './colors'

export interface Line {
  label: string
  color: string
  values: (number | null)[]
}

export interface ChartData {
  times: number[]
  lines: Line[]
}

const HEIGHT = 170
const crosshair = uPlot.sync('streams')

export function Chart({
  data,
  label,
  format,
  stacked = false,
}: {
  data: ChartData
  label: string
  format: (value: number) => string
  stacked?: boolean
}): JSX.Element {
  const place = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const shape = `${data.lines.map(line => `${line.label} ${line.color}`).join()} ${theme.value}`
  useEffect(() => {
    const box = place.current
    if (!box) return
    const made = new uPlot(optionsOf(data, format, box.clientWidth, stacked), valuesOf(data, stacked), box)
    plot.current = made
    const observer = new ResizeObserver(() => made.setSize({ width: box.clientWidth, height: HEIGHT }))
    observer.observe(box)
    return () => {
      observer.disconnect()
      made.destroy()
      plot.current = null
    }
  }, [shape])
  useEffect(() => plot.current?.setData(valuesOf(data, stacked)), [data])
  return (
    <figure class="chart" aria-label={label}>
      <div ref={place} aria-hidden="true" />
      <figcaption class="hidden-text">{summary(data, format)}</figcaption>
    </figure>
  )
}

/** Newest and highest value of each line. */
export function summary(data: ChartData, format: (value: number) => string): string {
  return data.lines
    .map(line => {
      const known = line.values.filter(value => value !== null)
      if (known.length === 0) return `${line.label}: no values`
      const newest = known[known.length - 1] as number
      return `${line.label}: now ${format(newest)}, at most ${format(Math.max(...known))}`
    })
    .join('; ')
}

function valuesOf(data: ChartData, stacked: boolean): uPlot.AlignedData {
  if (!stacked) return [data.times, ...data.lines.map(line => line.values)]
  const sums: (number | null)[][] = []
  let below: (number | null)[] = data.times.map(() => 0)
  for (const line of data.lines) {
    below = line.values.map((value, index) => (value === null ? null : value + (below[index] ?? 0)))
    sums.push(below)
  }
  return [data.times, ...sums]
}

function optionsOf(
  data: ChartData,
  format: (value: number) => string,
  width: number,
  stacked: boolean,
): uPlot.Options {
  const muted = resolveColor('--muted')
  const line = resolveColor('--line')
  const axis = {
    stroke: muted,
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
    font: '12px system-ui',
  }
  return {
    width,
    height: HEIGHT,
    tzDate: seconds => uPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC'),
    cursor: { sync: { key: crosshair.key }, points: { size: 6 }, drag: { x: false, y: false } },
    legend: { live: true },
    scales: { y: { range: (_, least, most) => [Math.min(0, least ?? 0), most > 0 ? most * 1.1 : 1] } },
    axes: [
      {
        ...axis,
        size: 28,
        values: [
          [86400, '{DD} {MMM}', null, null, null, null, null, null, 1],
          [60, '{HH}:{mm}', null, null, null, null, null, null, 1],
          [1, '{HH}:{mm}:{ss}', null, null, null, null, null, null, 1],
        ] as uPlot.Axis.Values,
      },
      { ...axis, size: 62, values: (_, ticks) => ticks.map(tick => format(tick)) },
    ],
    series: [
      {
        label: 'UTC',
        value: (_, seconds) =>
          seconds ? new Date(seconds * 1000).toISOString().slice(5, 19).replace('T', ' ') : '–',
      },
      ...data.lines.map((each, index) => seriesOf(data, each, index, format, stacked)),
    ],
    bands: stacked
      ? data.lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] as [number, number] }))
      : [],
  }
}

function seriesOf(
  data: ChartData,
  line: Line,
  index: number,
  format: (value: number) => string,
  stacked: boolean,
): uPlot.Series {
  const color = resolveColor(line.color)
  return {
    label: line.label,
    stroke: color,
    width: 1.5,
    fill: stacked ? alpha(color, 0.35) : data.lines.length === 1 ? alpha(color, 0.12) : '',
    spanGaps: false,
    points: { show: data.times.length < 40 ? undefined : false } as uPlot.Series.Points,
    value: (_, value, __, at) => {
      const own = stacked && at !== null ? (line.values[at] ?? null) : value
      return own === null || own === undefined ? '–' : format(own)
    },
    scale: 'y',
    ...(index < 0 ? { show: false } : {}),
  }
}

function alpha(color: string, opacity: number): string {
  const found = color.match(/\d+(\.\d+)?/g)
  return found ? `rgba(${found.slice(0, 3).join(',')},${opacity})` : color
}
