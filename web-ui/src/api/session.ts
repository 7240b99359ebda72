// Who reads this page and what the server lets them do.

import { signal } from '@preact/signals'
import { partsOf, post, RequestFailed, readJson } from './client'
import type { ErrorParts, Me } from './types'

export type SessionState = 'starting' | 'needs token' | 'open' | 'failed'

export const session = signal<SessionState>('starting')
export const me = signal<Me | undefined>(undefined)
export const sessionError = signal<ErrorParts | undefined>(undefined)

export async function openSession(): Promise<void> {
  try {
    me.value = await readJson<Me>('/me')
    sessionError.value = undefined
    session.value = 'open'
  } catch (problem) {
    if (problem instanceof RequestFailed && problem.status === 401) {
      requireToken()
      return
    }
    sessionError.value = partsOf(problem)
    session.value = 'failed'
  }
}

/** Called when the server no longer knows us, too: it was started again, or its token changed. */
export function requireToken(): void {
  me.value = undefined
  session.value = 'needs token'
}

/** Exchange the token for a cookie that scripts cannot read. */
export async function signIn(token: string): Promise<void> {
  await post('/session', { token })
  await openSession()
}

/** Why nothing can be changed from this page; null when it can. */
export function refusal(): string | null {
  const found = me.value
  if (!found) return 'The page does not know yet what you may do.'
  if (found.read_only) return 'flow web was started with --read-only.'
  if (found.role !== 'operator') return 'Your token is a reader’s: it may look and not change.'
  return null
}
