// Actions that were requested on this page, followed until they have ended.

import { signal } from '@preact/signals'
import { create, partsOf, readJson } from '../api/client'
import { onChange } from '../api/live'
import { refreshAll } from '../api/queries'
import type { Action, ActionKind, ErrorParts } from '../api/types'
import { isUnfinished } from '../text/wording'

const POLL_PAUSE = 2_000
const MOST_SHOWN = 6

export interface Requested {
  key: string
  kind: ActionKind
  subject: string
  /** What was already asked for by someone else is followed, too. */
  wasKnown: boolean
  action: Action | null
  error: ErrorParts | null
}

export const requested = signal<Requested[]>([])

/** Whether an action of this kind on this subject is under way from this page. */
export function isUnderWay(kind: ActionKind, subject: string): boolean {
  return requested.value.some(
    each =>
      each.kind === kind &&
      each.subject === subject &&
      !each.error &&
      (!each.action || isUnfinished(each.action)),
  )
}

export function dismiss(key: string): void {
  requested.value = requested.peek().filter(each => each.key !== key)
}

/** Ask for an action and follow it. */
export async function requestAction(
  kind: ActionKind,
  subject: string,
  actionArguments: Record<string, unknown>,
): Promise<void> {
  const key = crypto.getRandomValues(new Uint32Array(2)).join('-')
  const first: Requested = { key, kind, subject, wasKnown: false, action: null, error: null }
  requested.value = [first, ...requested.peek()].slice(0, MOST_SHOWN)
  try {
    const { value: action, isNew } = await create<Action>('/actions', {
      kind,
      subject,
      arguments: actionArguments,
    })
    update(key, { action, wasKnown: !isNew })
    if (isUnfinished(action)) void follow(key, action.action_id)
  } catch (problem) {
    update(key, { error: partsOf(problem) })
  }
  refreshAll()
}

function update(key: string, values: Partial<Requested>): void {
  requested.value = requested.peek().map(each => (each.key === key ? { ...each, ...values } : each))
}

async function follow(key: string, id: string): Promise<void> {
  while (requested.peek().some(each => each.key === key)) {
    await changeOrPause(id)
    try {
      const action = await readJson<Action>(`/actions/${encodeURIComponent(id)}`)
      update(key, { action })
      if (!isUnfinished(action)) {
        refreshAll()
        return
      }
    } catch {
      // the server is away; the action goes on without this page, which asks again
    }
  }
}

function changeOrPause(id: string): Promise<void> {
  return new Promise(resolve => {
    const finish = () => {
      forget()
      clearTimeout(timer)
      resolve()
    }
    const forget = onChange(change => change.kind === 'action' && change.id === id && finish())
    const timer = setTimeout(finish, POLL_PAUSE)
  })
}
