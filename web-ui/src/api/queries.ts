// What was read from the server, kept by its path: pages that show the same share one request. A change event makes
// what depends on it stale; stale values stay on the page until their replacement has come.

import { useEffect, useState } from 'preact/hooks'
import { partsOf, RequestFailed, readText } from './client'
import { isLive, onChange } from './live'
import { requireToken } from './session'
import type { Change, ErrorParts } from './types'

const LEAST_PAUSE = 1_000 // between two requests of the same path, in milliseconds
const LONGEST_PAUSE = 15_000 // when the server is slow
const POLL_PAUSE = 5_000 // while there are no live events
const KEPT_UNUSED = 60_000

export interface Interest {
  /** Events that make the value stale; all of them when it is left out. */
  kinds?: Change['kind'][]
  /** Only events of this pipeline, stream or run. */
  about?: string | null
  /** Read again after this many milliseconds even without an event. */
  every?: number
}

export interface Query<T> {
  data: T | undefined
  error: ErrorParts | undefined
  isLoading: boolean
  refresh: () => void
}

interface Entry {
  path: string
  text: string | undefined
  data: unknown
  error: ErrorParts | undefined
  readAt: number
  took: number
  isReading: boolean
  isStale: boolean
  timer: ReturnType<typeof setTimeout> | undefined
  forgetTimer: ReturnType<typeof setTimeout> | undefined
  watchers: Map<() => void, Interest>
}

const entries = new Map<string, Entry>()

export function useQuery<T>(path: string | null, interest: Interest = {}): Query<T> {
  const [, redraw] = useState(0)
  const { kinds, about, every } = interest
  useEffect(() => {
    if (path === null) return
    const entry = entryOf(path)
    const watcher = () => redraw(count => count + 1)
    clearTimeout(entry.forgetTimer)
    entry.watchers.set(watcher, interest)
    if (entry.readAt === 0 || Date.now() - entry.readAt > LEAST_PAUSE) readSoon(entry, 0)
    else watcher()
    return () => {
      entry.watchers.delete(watcher)
      if (entry.watchers.size === 0) {
        clearTimeout(entry.timer)
        entry.timer = undefined
        entry.forgetTimer = setTimeout(() => entries.delete(path), KEPT_UNUSED)
      }
    }
  }, [path, kinds?.join(), about, every])
  const entry = path === null ? undefined : entries.get(path)
  return {
    data: entry?.data as T | undefined,
    error: entry?.error,
    isLoading:
      path !== null && (entry === undefined || (entry.data === undefined && entry.error === undefined)),
    refresh: () => path !== null && refresh(path),
  }
}

/** Read what this path answers again, if a page shows it. */
export function refresh(path: string): void {
  const entry = entries.get(path)
  if (entry && entry.watchers.size > 0) readSoon(entry, 0)
}

/** Read everything on the page again. */
export function refreshAll(): void {
  for (const entry of entries.values()) {
    if (entry.watchers.size > 0) readSoon(entry, 0)
    else entries.delete(entry.path)
  }
}

function entryOf(path: string): Entry {
  let entry = entries.get(path)
  if (!entry) {
    entry = {
      path,
      text: undefined,
      data: undefined,
      error: undefined,
      readAt: 0,
      took: 0,
      isReading: false,
      isStale: false,
      timer: undefined,
      forgetTimer: undefined,
      watchers: new Map(),
    }
    entries.set(path, entry)
  }
  return entry
}

function readSoon(entry: Entry, pause: number): void {
  if (entry.isReading) {
    entry.isStale = true
    return
  }
  clearTimeout(entry.timer)
  entry.timer = setTimeout(() => void read(entry), pause)
}

async function read(entry: Entry): Promise<void> {
  if (entry.isReading || document.hidden) {
    entry.isStale = true
    return
  }
  entry.isReading = true
  entry.isStale = false
  const { text: before, error: errorBefore } = entry
  const began = Date.now()
  try {
    const text = await readText(entry.path)
    if (text !== entry.text) {
      entry.data = JSON.parse(text)
      entry.text = text
    }
    entry.error = undefined
  } catch (problem) {
    if (problem instanceof RequestFailed && problem.status === 401) requireToken()
    entry.error = partsOf(problem)
  }
  entry.isReading = false
  entry.readAt = Date.now()
  entry.took = entry.readAt - began
  if (entry.text !== before || entry.error !== errorBefore)
    for (const watcher of entry.watchers.keys()) watcher()
  if (entry.watchers.size > 0) planNext(entry)
}

function planNext(entry: Entry): void {
  if (entry.isStale) {
    readSoon(entry, pauseOf(entry))
    return
  }
  const wanted = [...entry.watchers.values()].map(each => each.every).filter(each => each !== undefined)
  const pauses = isLive.peek() && !entry.error ? wanted : [...wanted, POLL_PAUSE]
  if (pauses.length) readSoon(entry, Math.min(...pauses))
}

/** A slow answer is asked for less often: ten times as long as it took. */
function pauseOf(entry: Entry): number {
  return Math.min(LONGEST_PAUSE, Math.max(LEAST_PAUSE, 10 * entry.took))
}

function concerns(interest: Interest, change: Change): boolean {
  if (change.kind === 'store') return true
  if (interest.kinds && !interest.kinds.includes(change.kind)) return false
  return !interest.about || interest.about === change.name || interest.about === change.id
}

onChange(change => {
  for (const entry of entries.values()) {
    if (![...entry.watchers.values()].some(interest => concerns(interest, change))) continue
    readSoon(entry, Math.max(0, entry.readAt + pauseOf(entry) - Date.now()))
  }
})

isLive.subscribe(() => {
  // what happened while there were no events is not known, and without events the page has to poll
  if (entries.size > 0) refreshAll()
})

document.addEventListener('visibilitychange', () => {
  if (document.hidden) return
  for (const entry of entries.values()) {
    if (entry.watchers.size > 0 && (entry.isStale || !isLive.peek())) readSoon(entry, 0)
  }
})
