// What a page shows while it waits, when there is nothing, and when something went wrong.

import type { ComponentChildren, JSX } from 'preact'
import type { Query } from '../api/queries'
import type { ErrorParts } from '../api/types'

export function Loading({ what }: { what: string }): JSX.Element {
  return (
    <div class="skeleton" role="status">
      <span class="hidden-text">Loading {what}</span>
      {Array.from({ length: 6 }, (_, index) => (
        <i key={index} />
      ))}
    </div>
  )
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <div>{children}</div>}
    </div>
  )
}

/** An error in its parts: what happened, where, what state remains, what to do next. */
export function ErrorPanel({ error, retry }: { error: ErrorParts; retry?: () => void }): JSX.Element {
  const parts = [
    ['Where', error.where],
    ['State', error.state],
    ['Next', error.next],
  ].filter(([, text]) => text)
  return (
    <div class="error-panel" role="group" aria-label="Error">
      <div>
        <div class="small tone-bad">{error.type}</div>
        <div class="what" tabIndex={error.what.length > 600 ? 0 : undefined}>
          {error.what}
        </div>
      </div>
      {parts.length > 0 && (
        <dl class="facts">
          {parts.map(([name, text]) => (
            <>
              <dt key={`${name} name`}>{name}</dt>
              <dd key={name}>{text}</dd>
            </>
          ))}
        </dl>
      )}
      {retry && (
        <div>
          <button type="button" class="button narrow" onClick={retry}>
            Try again
          </button>
        </div>
      )}
    </div>
  )
}

/** Draws the value of a query once it is there; keeps it, with a note, when a later request fails. */
export function WithData<T>({
  query,
  what,
  children,
}: {
  query: Query<T>
  what: string
  children: (data: T) => ComponentChildren
}): JSX.Element {
  if (query.data === undefined) {
    if (query.error) return <ErrorPanel error={query.error} retry={query.refresh} />
    return <Loading what={what} />
  }
  return (
    <>
      {query.error && (
        <div class="note wait" role="status">
          This may be out of date: {query.error.what}. The page goes on trying.
        </div>
      )}
      {children(query.data)}
    </>
  )
}
