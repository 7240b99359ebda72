// The frame of a page's contents.

import type { ComponentChildren, JSX } from 'preact'
import { useEffect } from 'preact/hooks'

export function Page({
  title,
  tabTitle,
  crumbs,
  tools,
  status,
  children,
}: {
  title: ComponentChildren
  tabTitle: string
  crumbs?: { label: string; href: string }[]
  tools?: ComponentChildren
  status?: ComponentChildren
  children: ComponentChildren
}): JSX.Element {
  useEffect(() => {
    document.title = `${tabTitle} · ematix-flow`
  }, [tabTitle])
  return (
    <div class="page">
      {crumbs && (
        <nav class="crumbs" aria-label="Where this page is">
          {crumbs.map(crumb => (
            <span key={crumb.href}>
              <a href={crumb.href}>{crumb.label}</a> <span aria-hidden="true">/</span>
            </span>
          ))}
        </nav>
      )}
      <div class="page-head">
        <h1 tabIndex={-1}>{title}</h1>
        {status}
        <span class="grow" />
        {tools}
      </div>
      {children}
    </div>
  )
}

export function Card({
  title,
  tools,
  flush = false,
  children,
}: {
  title?: ComponentChildren
  tools?: ComponentChildren
  flush?: boolean
  children: ComponentChildren
}): JSX.Element {
  return (
    <section class="card">
      {title && (
        <div class="card-head">
          <h2>{title}</h2>
          <span class="grow" />
          {tools}
        </div>
      )}
      {flush ? children : <div class="card-body">{children}</div>}
    </section>
  )
}

/** Names and values; values that are not known are left out. */
export function Facts({ of: facts }: { of: [string, ComponentChildren][] }): JSX.Element {
  const known = facts.filter(
    ([, value]) => value !== null && value !== undefined && value !== '' && value !== false,
  )
  return (
    <dl class="facts">
      {known.map(([name, value]) => (
        <>
          <dt key={`${name} name`}>{name}</dt>
          <dd key={name}>{value}</dd>
        </>
      ))}
    </dl>
  )
}

export function Tiles({ of: tiles }: { of: [string, ComponentChildren, ComponentChildren?][] }): JSX.Element {
  return (
    <dl class="tiles">
      {tiles.map(([name, value, more]) => (
        <div class="tile" key={name}>
          <dt>{name}</dt>
          <dd>
            {value === '' || value === null || value === undefined ? <span class="muted">–</span> : value}
            {more && <small>{more}</small>}
          </dd>
        </div>
      ))}
    </dl>
  )
}

/** A table that scrolls sideways within itself, by keys too. */
export function Scrolling({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: keys must be able to scroll it
    <section class="table-wrap" tabIndex={0} aria-label={label}>
      {children}
    </section>
  )
}
