// Change events from the server. The tabs of a browser share one connection where the browser can elect a tab for
// it: a browser opens only six connections to a server, and each tab would keep one of them busy.

import { signal } from '@preact/signals'
import { API } from './client'
import type { Change, Progress } from './types'

type Message = { change: Change } | { live: boolean } | { question: true }

const FIRST_RETRY = 1_000
const LONGEST_RETRY = 30_000

/** Whether change events arrive; pages poll while they do not. */
export const isLive = signal(false)
/** Whether the server has lost its run log: what the pages show is old. */
export const isStoreAway = signal(false)
/** The newest progress of runs that work, by run id. */
export const progressOf = signal<Record<string, Progress>>({})

const listeners = new Set<(change: Change) => void>()
let channel: BroadcastChannel | undefined

export function onChange(listener: (change: Change) => void): () => void {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

/** Begin to listen; called once, when it is known that the server lets us in. */
export function listen(): void {
  if (!('locks' in navigator) || !('BroadcastChannel' in window)) {
    connect(() => undefined)
    return
  }
  channel = new BroadcastChannel('ematix-flow-changes')
  let leads = false
  channel.onmessage = (message: MessageEvent<Message>) => {
    if ('question' in message.data) {
      if (leads) channel?.postMessage({ live: isLive.peek() })
    } else if (!leads) receive(message.data)
  }
  channel.postMessage({ question: true })
  void navigator.locks.request('ematix-flow-events', () => {
    leads = true
    connect(message => channel?.postMessage(message))
    return new Promise(() => undefined) // the lock is free again when this tab closes
  })
}

function connect(share: (message: Message) => void, pause = FIRST_RETRY): void {
  const tell = (message: Message) => {
    receive(message)
    share(message)
  }
  const source = new EventSource(`${API}/events`)
  source.onopen = () => tell({ live: true })
  source.addEventListener('change', event => {
    pause = FIRST_RETRY
    tell({ change: JSON.parse((event as MessageEvent<string>).data) as Change })
  })
  source.onerror = () => {
    tell({ live: false })
    if (source.readyState !== EventSource.CLOSED) return // the browser connects again by itself
    setTimeout(() => connect(share, Math.min(LONGEST_RETRY, 2 * pause)), pause)
  }
}

function receive(message: Message): void {
  if ('live' in message) {
    isLive.value = message.live
    isStoreAway.value = false // a server that is still without it answers with errors
  }
  if (!('change' in message)) return
  const { change } = message
  if (change.kind === 'store') isStoreAway.value = change.status === 'away'
  if (change.kind === 'run' && change.id) keepProgress(change.id, change)
  for (const listener of listeners) listener(change)
}

function keepProgress(runId: string, change: Change): void {
  const { [runId]: known, ...others } = progressOf.peek()
  if (change.progress && change.status === 'running')
    progressOf.value = { ...others, [runId]: change.progress }
  else if (known) progressOf.value = others
}
