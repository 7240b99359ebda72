// The words of the page for kinds and states of the interface.

import type { Action, ActionKind } from '../api/types'

export const ACTION_NAMES: Record<ActionKind, string> = {
  run: 'Run now',
  restart: 'Restart from the failed step',
  resume_from_watermark: 'Resume from the watermark',
  clear: 'Clear the slot',
  stop: 'Stop',
  pause: 'Pause',
  resume: 'Resume',
  pause_schedule: 'Pause the schedule',
  resume_schedule: 'Resume the schedule',
  replay_letters: 'Replay letters',
  park_letters: 'Park letters',
  purge_letters: 'Purge letters',
}

export function actionName(kind: string): string {
  return ACTION_NAMES[kind as ActionKind] ?? kind.replaceAll('_', ' ')
}

export function isUnfinished(action: Action): boolean {
  return action.status === 'waiting' || action.status === 'claimed'
}

/** The subject as a person reads it: run ids are long. */
export function shortId(id: string): string {
  return /^[0-9a-f-]{16,}$/.test(id) ? id.slice(0, 8) : id
}

/** A sentence with the ids of runs in it, each by its first characters. */
export function withShortIds(text: string): string {
  return text.replace(/\b[0-9a-f]{32}\b/g, id => id.slice(0, 8))
}

export function firstLine(text: string | null | undefined): string {
  return (text ?? '').split('\n')[0] ?? ''
}
