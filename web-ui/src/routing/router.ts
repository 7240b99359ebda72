// The address of the page: its path, its query, and how links change them without loading the page again.

import { computed, signal } from '@preact/signals'

export interface Address {
  path: string
  query: URLSearchParams
}

export const address = signal<Address>(currentAddress())
export const path = computed(() => address.value.path)

function currentAddress(): Address {
  const trimmed = location.pathname.replace(/\/+$/, '')
  return { path: trimmed === '' ? '/' : trimmed, query: new URLSearchParams(location.search) }
}

export function startRouter(): void {
  window.addEventListener('popstate', () => {
    address.value = currentAddress()
  })
  document.addEventListener('click', followLink)
}

/** Go to a page of ours. */
export function navigate(to: string, { replace = false } = {}): void {
  const samePage = new URL(to, location.href).pathname === location.pathname
  if (replace) history.replaceState(null, '', to)
  else history.pushState(null, '', to)
  address.value = currentAddress()
  if (!samePage) window.scrollTo(0, 0)
}

/** Change some values of the query; null removes one. A filter does not become a step of the browser's history. */
export function setQuery(values: Record<string, string | null>, { replace = true } = {}): void {
  const query = new URLSearchParams(location.search)
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === '') query.delete(name)
    else query.set(name, value)
  }
  const text = query.toString()
  navigate(location.pathname + (text ? `?${text}` : ''), { replace })
}

export function queryValue(name: string): string {
  return address.value.query.get(name) ?? ''
}

function followLink(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return
  const link = (event.target as Element | null)?.closest?.('a')
  if (!link || link.target || link.hasAttribute('download') || link.origin !== location.origin) return
  if (link.hash && link.pathname === location.pathname && link.search === location.search) return
  event.preventDefault()
  navigate(link.pathname + link.search + link.hash)
}

/** The parts of a path that a pattern such as /runs/:id names; null when it does not match. */
export function matchPath(pattern: string, found: string): Record<string, string> | null {
  const wanted = pattern.split('/')
  const parts = found.split('/')
  if (wanted.length !== parts.length) return null
  const values: Record<string, string> = {}
  for (const [index, part] of wanted.entries()) {
    const value = parts[index] ?? ''
    if (part.startsWith(':')) {
      const decoded = decode(value)
      if (decoded === null || decoded === '') return null
      values[part.slice(1)] = decoded
    } else if (part !== value) return null
  }
  return values
}

function decode(text: string): string | null {
  try {
    return decodeURIComponent(text)
  } catch {
    return null // an address that someone mistyped is no page of ours
  }
}

const segment = encodeURIComponent
export const pageOf = {
  pipeline: (name: string) => `/pipelines/${segment(name)}`,
  run: (id: string) => `/runs/${segment(id)}`,
  stream: (name: string) => `/streams/${segment(name)}`,
  runsOf: (pipeline: string) => `/runs?pipeline=${segment(pipeline)}`,
  graphOf: (id: string) => `/graph?focus=${segment(id)}`,
  lettersOf: (stream: string) => `/dead-letters?pipeline=${segment(stream)}`,
}
