// Keys: one letter each, two for going to a page. They can be switched off, and do nothing while someone types.

import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import { refreshAll } from './api/queries'
import { navigate } from './routing/router'
import { nextTheme } from './theme'

const KEY = 'ematix-flow-shortcuts'
const SECOND_KEY_PAUSE = 1_200

export const GO_TO: Record<string, [path: string, label: string]> = {
  p: ['/', 'Pipelines'],
  g: ['/graph', 'Graph'],
  r: ['/runs', 'Runs'],
  s: ['/streams', 'Streams'],
  d: ['/dead-letters', 'Dead letters'],
  t: ['/schedule', 'Schedule'],
  w: ['/workflows', 'Workflows'],
  c: ['/connections', 'Connections'],
  a: ['/actions', 'Actions'],
}

export const OTHER_KEYS: [keys: string, label: string][] = [
  ['/', 'Search on this page'],
  ['j', 'Next row'],
  ['k', 'Previous row'],
  ['Enter', 'Open the row'],
  ['x', 'Select the row'],
  ['u', 'Read everything on the page again'],
  ['m', 'Light, dark or as the system'],
  ['?', 'Show these keys'],
]

export const shortcutsAreOn = signal(localStorage.getItem(KEY) !== 'off')
export const isHelpShown = signal(false)

export function setShortcuts(on: boolean): void {
  shortcutsAreOn.value = on
  localStorage.setItem(KEY, on ? 'on' : 'off')
}

let goesUntil = 0

export function startKeyboard(): void {
  document.addEventListener('keydown', event => {
    if (!isShortcut(event)) return
    if (goesUntil > Date.now()) {
      goesUntil = 0
      const place = GO_TO[event.key]
      if (place) {
        event.preventDefault()
        navigate(place[0])
      }
      return
    }
    const found = COMMANDS[event.key]
    if (!found) return
    event.preventDefault()
    found()
  })
}

const COMMANDS: Record<string, () => void> = {
  g: () => {
    goesUntil = Date.now() + SECOND_KEY_PAUSE
  },
  '/': () => document.querySelector<HTMLInputElement>('[data-search]')?.focus(),
  u: refreshAll,
  m: nextTheme,
  '?': () => {
    isHelpShown.value = true
  },
}

function isShortcut(event: KeyboardEvent): boolean {
  if (!shortcutsAreOn.peek() || event.defaultPrevented) return false
  if (event.ctrlKey || event.metaKey || event.altKey) return false
  if (document.querySelector('dialog[open]')) return false
  const target = event.target as HTMLElement | null
  return !target?.closest?.('input, select, textarea, [contenteditable]') || isTick(target)
}

function isTick(target: HTMLElement): boolean {
  return target instanceof HTMLInputElement && target.type === 'checkbox'
}

/** A cursor over the rows of a list: j and k move it, Enter opens, x selects. */
export function useRowCursor(
  rows: string[],
  open: (row: string) => void,
  select?: (row: string) => void,
): string | null {
  const [current, setCurrent] = useState<string | null>(null)
  const latest = useRef({ rows, open, select, current })
  latest.current = { rows, open, select, current }
  useEffect(() => {
    const listener = (event: KeyboardEvent) => {
      if (!isShortcut(event) || goesUntil > Date.now()) return
      const { rows, open, select, current } = latest.current
      const at = current === null ? -1 : rows.indexOf(current)
      const row = rows[at]
      if (event.key === 'j' || event.key === 'k') {
        const next = rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === 'j' ? 1 : -1)))]
        if (next === undefined) return
        setCurrent(next)
        requestAnimationFrame(() =>
          document.querySelector('.is-cursor')?.scrollIntoView({ block: 'nearest' }),
        )
      } else if (row === undefined) return
      else if (event.key === 'x' && select) select(row)
      else if (event.key === 'Enter' && isBody(event.target)) open(row)
    }
    document.addEventListener('keydown', listener)
    return () => document.removeEventListener('keydown', listener)
  }, [])
  return current
}

/** Enter on a link or button is that element's. */
function isBody(target: EventTarget | null): boolean {
  return !(target as HTMLElement | null)?.closest?.('a, button, input, summary')
}
