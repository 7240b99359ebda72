// Lists that come in pages. The first page stays current; older pages are added when someone asks for them, and at
// once while there are fewer items than needed: the server bounds a search, and so a page may be short.

import { useEffect, useState } from 'preact/hooks'
import { partsOf, readJson } from './client'
import { type Interest, useQuery } from './queries'
import type { ErrorParts, Page } from './types'

export interface Pages<T> {
  items: T[] | undefined
  error: ErrorParts | undefined
  hasMore: boolean
  isLoadingMore: boolean
  loadMore: () => void
  refresh: () => void
  first: (Page<T> & Record<string, unknown>) | undefined
}

interface Older<T> {
  path: string
  items: T[]
  next: string | null
}

export function usePages<T>(
  path: string,
  keyOf: (item: T) => string,
  interest: Interest = {},
  least = 0,
): Pages<T> {
  const query = useQuery<Page<T> & Record<string, unknown>>(path, interest)
  const [older, setOlder] = useState<Older<T>>({ path, items: [], next: null })
  const [isLoadingMore, setLoadingMore] = useState(false)
  const [problem, setProblem] = useState<ErrorParts | undefined>()
  const known = older.path === path ? older : { path, items: [], next: null }
  const cursor = known.items.length > 0 ? known.next : (query.data?.next ?? null)

  const loadMore = async () => {
    if (isLoadingMore || cursor === null) return
    setLoadingMore(true)
    try {
      const join = path.includes('?') ? '&' : '?'
      const page = await readJson<Page<T>>(`${path}${join}after=${encodeURIComponent(cursor)}`)
      setOlder({ path, items: [...known.items, ...page.items], next: page.next ?? null })
      setProblem(undefined)
    } catch (failure) {
      setProblem(partsOf(failure))
    }
    setLoadingMore(false)
  }

  const isShort = query.data !== undefined && query.data.items.length + known.items.length < least
  useEffect(() => {
    if (isShort && cursor !== null && !isLoadingMore && !problem) void loadMore()
  }, [isShort, cursor, isLoadingMore, problem])

  return {
    items: query.data && joined(query.data.items, known.items, keyOf),
    error: query.error ?? problem,
    hasMore: cursor !== null,
    isLoadingMore,
    loadMore: () => void loadMore(),
    refresh: query.refresh,
    first: query.data,
  }
}

/** The newer page wins where both hold an item. */
export function joined<T>(newer: T[], older: T[], keyOf: (item: T) => string): T[] {
  if (older.length === 0) return newer
  const seen = new Set(newer.map(keyOf))
  return [...newer, ...older.filter(item => !seen.has(keyOf(item)))]
}
