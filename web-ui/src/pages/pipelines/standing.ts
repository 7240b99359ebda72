// How a pipeline stands, in one word, and which group of the list it belongs to.

import type { Pipeline } from '../../api/types'

export type Group = 'failing' | 'running' | 'late' | 'paused'

export const GROUPS: [group: Group | 'all', label: string][] = [
  ['all', 'All'],
  ['failing', 'Failing'],
  ['running', 'Running'],
  ['late', 'Late'],
  ['paused', 'Paused'],
]

export function standing(pipeline: Pipeline): string {
  if (pipeline.hold?.held_run) return 'held'
  const last = pipeline.last_run
  if (last?.status === 'running') return 'running'
  if (pipeline.slot?.status === 'gave_up') return 'gave_up'
  if (pipeline.slot?.status === 'skipped') return 'skipped'
  return last?.status ?? 'never'
}

export function isFailing(pipeline: Pipeline): boolean {
  const now = standing(pipeline)
  if (now === 'failed' || now === 'gave_up' || now === 'interrupted') return true
  return pipeline.failures_since_success > 0
}

const ENDED_BADLY = new Set(['failed', 'interrupted', 'cancelled'])

/** The newest run that did not end well, while nothing has ended well since. */
export function failedRunOf(pipeline: Pipeline): string | null {
  const last = pipeline.last_run
  if (last && ENDED_BADLY.has(last.status)) return last.run_id
  if (!isFailing(pipeline)) return null
  const bars = [...(pipeline.bars ?? [])].reverse()
  return bars.find(bar => ENDED_BADLY.has(bar.status))?.run_id ?? null
}

export function isLate(pipeline: Pipeline): boolean {
  return pipeline.due_slots > 0 || Boolean(pipeline.unseen_since) || Boolean(pipeline.freshness?.is_breached)
}

export function isIn(group: string, pipeline: Pipeline): boolean {
  if (group === 'failing') return isFailing(pipeline)
  if (group === 'running') return pipeline.last_run?.status === 'running'
  if (group === 'late') return isLate(pipeline)
  if (group === 'paused') return Boolean(pipeline.hold || pipeline.schedule_hold)
  return true
}

/** Failing first, then what runs, then what is late; within these, as the server ordered them. */
export function ordered(pipelines: Pipeline[]): Pipeline[] {
  const rank = (each: Pipeline) =>
    isFailing(each) ? 0 : each.last_run?.status === 'running' ? 1 : isLate(each) ? 2 : 3
  return pipelines
    .map((each, index) => ({ each, index, rank: rank(each) }))
    .sort((one, other) => one.rank - other.rank || one.index - other.index)
    .map(({ each }) => each)
}

/** A search for names and words, or a selector as on the command line. */
export function isSelector(text: string): boolean {
  return /[:+@*,]/.test(text)
}

export function matches(pipeline: Pipeline, words: string[]): boolean {
  if (words.length === 0) return true
  const targets = (pipeline.targets ?? []).map(each => each.target).join(' ')
  const text =
    `${pipeline.pipeline} ${pipeline.tags.join(' ')} ${targets} ${pipeline.description ?? ''}`.toLowerCase()
  return words.every(word => text.includes(word))
}
