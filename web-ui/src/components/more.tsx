// The end of a list: more rows on demand, or drawn when they come near.

import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Pages } from '../api/pages'

export function LoadMore<T>({ pages, what }: { pages: Pages<T>; what: string }): JSX.Element | null {
  if (!pages.hasMore) return null
  return (
    <div class="more">
      <button type="button" class="button" disabled={pages.isLoadingMore} onClick={pages.loadMore}>
        {pages.isLoadingMore ? 'Loading …' : `Load more ${what}`}
      </button>
    </div>
  )
}

const STEP = 60

/** The first rows of a long list, and an element that draws more of them when it comes into view. */
export function useRowsInView<T>(rows: T[], resetBy: string): [rows: T[], end: JSX.Element | null] {
  const [drawn, setDrawn] = useState(STEP)
  const mark = useRef<HTMLDivElement>(null)
  useEffect(() => setDrawn(STEP), [resetBy])
  const hasMore = drawn < rows.length
  useEffect(() => {
    if (!mark.current) return
    const observer = new IntersectionObserver(
      seen => seen.some(each => each.isIntersecting) && setDrawn(number => number + STEP),
      { rootMargin: '800px' },
    )
    observer.observe(mark.current)
    return () => observer.disconnect()
  }, [hasMore, drawn])
  const end = hasMore ? (
    <div ref={mark} class="more muted small">
      {rows.length - drawn} more below
    </div>
  ) : null
  return [rows.slice(0, drawn), end]
}
