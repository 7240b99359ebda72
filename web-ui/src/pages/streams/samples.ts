// Samples of a stream as lines of a chart.

import type { Sample } from '../../api/types'
import type { ChartData, Line } from '../../components/chart'

const USUAL_PAUSE = 10 // seconds between samples
const GAP = 5 // a pause of so many times the usual one is a gap, not a line
const COLORS = [
  '--busy-fill',
  '--held-fill',
  '--ok-fill',
  '--wait-fill',
  '--stopped-fill',
  '--bad-fill',
  '--idle-fill',
]

export interface StreamCharts {
  rates: ChartData
  lag: ChartData
  phases: ChartData
  watermark: ChartData
  stateRows: ChartData
  stateBytes: ChartData
  letters: ChartData
}

export function lagOf(sample: Sample | null | undefined): number | null {
  const lag = sample?.lag
  if (lag === null || lag === undefined) return null
  if (typeof lag === 'number') return lag
  const values = Object.values(lag).filter(value => typeof value === 'number')
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null
}

/** How many seconds each sample stands for: since the one before, at most a few times the usual pause. */
export function spansOf(samples: Sample[]): number[] {
  const usual = median(pauses(samples)) || USUAL_PAUSE
  return samples.map((sample, index) => {
    if (sample.seconds) return sample.seconds
    const before = samples[index - 1]
    const pause = before ? (Date.parse(sample.at) - Date.parse(before.at)) / 1000 : usual
    return pause > 0 && pause <= GAP * usual ? pause : usual
  })
}

function pauses(samples: Sample[]): number[] {
  return samples
    .slice(1)
    .map((each, index) => (Date.parse(each.at) - Date.parse((samples[index] as Sample).at)) / 1000)
}

function median(values: number[]): number {
  const sorted = [...values].sort((one, other) => one - other)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}

/** Rows per second of the newest sample. */
export function rateOf(sample: Sample | null | undefined): number | null {
  if (!sample || sample.rows_read === null || sample.rows_read === undefined) return null
  return sample.rows_read / (sample.seconds || USUAL_PAUSE)
}

export function chartsOf(all: Sample[]): StreamCharts {
  const samples = withGaps(all)
  const spans = spansOf(all)
  const spanOf = new Map(all.map((sample, index) => [sample, spans[index] ?? USUAL_PAUSE]))
  const times = samples.map(each => each.time)
  const line = (
    label: string,
    color: string,
    value: (sample: Sample) => number | null | undefined,
  ): Line => ({
    label,
    color,
    values: samples.map(each => (each.sample ? (value(each.sample) ?? null) : null)),
  })
  const chart = (...lines: Line[]): ChartData => ({ times, lines })
  const perSecond = (value: number | null | undefined, sample: Sample) =>
    value === null || value === undefined ? null : value / (spanOf.get(sample) ?? USUAL_PAUSE)
  const phases = [...new Set(all.flatMap(sample => Object.keys(sample.phases ?? {})))]
  return {
    rates: chart(
      line('read', '--busy-fill', each => perSecond(each.rows_read, each)),
      line('written', '--ok-fill', each => perSecond(each.rows_written, each)),
    ),
    lag: chart(line('lag', '--wait-fill', lagOf)),
    phases: chart(
      ...phases.map((phase, index) =>
        line(phase.replaceAll('_', ' '), COLORS[index % COLORS.length] as string, each =>
          perBatch(each, phase),
        ),
      ),
    ),
    watermark: chart(
      line('behind', '--held-fill', each =>
        each.watermark ? Math.max(0, (Date.parse(each.at) - Date.parse(each.watermark)) / 1000) : null,
      ),
    ),
    stateRows: chart(line('rows', '--busy-fill', each => each.state_rows)),
    stateBytes: chart(line('bytes', '--held-fill', each => each.state_bytes)),
    letters: chart(line('dead letters', '--bad-fill', each => each.dead_letters)),
  }
}

function perBatch(sample: Sample, phase: string): number | null {
  const seconds = sample.phases?.[phase]
  if (seconds === undefined) return sample.batches ? 0 : null
  return seconds / Math.max(1, sample.batches ?? 1)
}

/** Where a stream did not run there is no line: an empty point stands in the gap. */
function withGaps(samples: Sample[]): { time: number; sample: Sample | null }[] {
  const usual = median(pauses(samples)) || USUAL_PAUSE
  const points: { time: number; sample: Sample | null }[] = []
  for (const sample of samples) {
    const time = Date.parse(sample.at) / 1000
    const before = points[points.length - 1]
    if (before && time - before.time > GAP * usual) points.push({ time: before.time + usual, sample: null })
    points.push({ time, sample })
  }
  return points
}

export function hasValues(data: ChartData): boolean {
  return data.lines.some(line => line.values.some(value => value !== null))
}
