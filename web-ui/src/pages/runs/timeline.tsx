// A run over time: its attempts, and the stages of each target, as bars on one axis.

import type { JSX } from 'preact'
import type { Metrics, Run, Stage } from '../../api/types'
import { StatusIcon, statusText, toneOf } from '../../components/status'
import { Ago, eachSecond } from '../../components/time'
import { pageOf } from '../../routing/router'
import { durationText } from '../../text/times'

/** The recorded stages. Older runs recorded only durations: their stages are drawn one after the other. */
export function stagesOf(metrics: Metrics | undefined): Stage[] {
  if (Array.isArray(metrics?.stages)) return metrics.stages
  const stages: Stage[] = []
  let at = 0
  for (const target of metrics?.targets ?? []) {
    for (const [stage, seconds] of Object.entries(target.seconds ?? {})) {
      stages.push({ target: target.target, stage, at, seconds })
      at += seconds
    }
  }
  return stages
}

/** Round steps for an axis of about five. */
export function axisSteps(total: number): number[] {
  if (!(total > 0)) return [0]
  const rough = total / 5
  const nice = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200,
    86400,
  ]
  const step = nice.find(each => each >= rough) ?? Math.ceil(rough / 86400) * 86400
  return Array.from({ length: Math.floor(total / step) + 1 }, (_, index) => index * step)
}

export function StageTimeline({ run }: { run: Run }): JSX.Element | null {
  const stages = stagesOf(run.metrics)
  if (stages.length === 0) return null
  const works = run.status === 'running'
  const elapsed = works ? (eachSecond.value - Date.parse(run.started_at)) / 1000 : 0
  const lasts = (stage: Stage) =>
    works && stage.ended === false ? Math.max(stage.seconds, elapsed - stage.at) : stage.seconds
  const total = Math.max(0.001, ...stages.map(stage => stage.at + lasts(stage)))
  const targets = [...new Set(stages.map(stage => stage.target))]
  return (
    <div class="gantt">
      <Axis total={total} />
      {targets.map(target => (
        <section key={target} aria-label={target || 'run'}>
          {target && <h3 class="gantt-group">{target}</h3>}
          <ul>
            {stages
              .filter(stage => stage.target === target)
              .map((stage, index) => {
                const seconds = lasts(stage)
                const isOpen = stage.ended === false
                const tone = stage.failed ? 'bad' : isOpen ? (works ? 'busy' : toneOf(run.status)) : 'ok'
                return (
                  <li key={`${stage.stage} ${index}`} class="gantt-row">
                    <span class="gantt-name">{stage.stage}</span>
                    <span class="gantt-track" aria-hidden="true">
                      <span
                        class={`gantt-bar fill-${tone}${isOpen ? ' is-open' : ''}`}
                        style={{ left: percent(stage.at / total), width: percent(seconds / total) }}
                      />
                    </span>
                    <span class="gantt-time">
                      {durationText(seconds)}
                      {isOpen && <span class="hidden-text"> not ended</span>}
                      {stage.failed && <span class="hidden-text"> failed</span>}
                    </span>
                  </li>
                )
              })}
          </ul>
        </section>
      ))}
    </div>
  )
}

function Axis({ total }: { total: number }): JSX.Element {
  return (
    <div class="gantt-row gantt-axis" aria-hidden="true">
      <span />
      <span class="gantt-track">
        {axisSteps(total).map(at => (
          <span key={at} class="gantt-tick" style={{ left: percent(at / total) }}>
            {at === 0
              ? '0'
              : durationText(at)
                  .replace('.0 ', ' ')
                  .replace(/ 00 \w+$/, '')}
          </span>
        ))}
      </span>
      <span />
    </div>
  )
}

/** Attempts at the same slot or batch, the oldest first, with their numbers. The run log counts from 1 again after a
 * slot was cleared; the page goes on counting. */
export function numbered(attempts: Run[]): [Run, number][] {
  const runs = [...attempts].sort((one, other) => one.started_at.localeCompare(other.started_at))
  let last = 0
  return runs.map(run => {
    last = Math.max(run.attempt, last + 1)
    return [run, last]
  })
}

/** Which of the attempts at its slot or batch a run is. */
export function attemptNumber(run: Run & { attempts: Run[] }): number {
  return numbered(run.attempts).find(([each]) => each.run_id === run.run_id)?.[1] ?? run.attempt
}

export function Attempts({ attempts, current }: { attempts: Run[]; current: string }): JSX.Element {
  const counted = numbered(attempts)
  const runs = counted.map(([run]) => run)
  const end = (run: Run) => (run.finished_at ? Date.parse(run.finished_at) : eachSecond.value)
  const first = Math.min(...runs.map(run => Date.parse(run.started_at)))
  const total = Math.max(1, Math.max(...runs.map(end)) - first)
  return (
    <ul class="gantt">
      {counted.map(([run, number]) => (
        <li key={run.run_id} class={`gantt-row${run.run_id === current ? ' is-current' : ''}`}>
          <span class="gantt-name wraps">
            <StatusIcon status={run.status} />{' '}
            <a href={pageOf.run(run.run_id)} aria-current={run.run_id === current ? 'true' : undefined}>
              attempt {number}
            </a>{' '}
            <span class="muted small">
              {statusText(run.status)}, <Ago at={run.started_at} />
            </span>
          </span>
          <span class="gantt-track" aria-hidden="true">
            <span
              class={`gantt-bar fill-${toneOf(run.status)}`}
              style={{
                left: percent((Date.parse(run.started_at) - first) / total),
                width: percent((end(run) - Date.parse(run.started_at)) / total),
              }}
            />
          </span>
          <span class="gantt-time">{durationText((end(run) - Date.parse(run.started_at)) / 1000)}</span>
        </li>
      ))}
    </ul>
  )
}

function percent(share: number): string {
  return `${(Math.max(0, Math.min(1, share)) * 100).toFixed(2)}%`
}
