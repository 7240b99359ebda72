// What was requested on this page, how far each action is, and what came of it. What ended well goes by itself after a
// while; the page of actions still has it. What failed, was refused or waits stays.

import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { Icon } from '../components/icons'
import { Status } from '../components/status'
import { pageOf } from '../routing/router'
import { actionName, shortId } from '../text/wording'
import { dismiss, type Requested, requested } from './requests'

export const SHOWN_FOR = 15_000 // milliseconds, of an action that ended well

const WAITS: Record<string, string> = {
  waiting: 'Requested; it waits for a process that carries it out.',
  claimed: 'It is being carried out.',
}

export function Tray(): JSX.Element {
  return (
    <section class="tray" aria-label="Requested actions" aria-live="polite">
      {requested.value.map(item => (
        <TrayItem key={item.key} item={item} />
      ))}
    </section>
  )
}

function TrayItem({ item }: { item: Requested }): JSX.Element {
  const { action, error } = item
  const status = error ? 'refused' : (action?.status ?? 'waiting')
  const text = error ? error.what : (action?.outcome ?? action?.why ?? WAITS[status] ?? '')
  const [isPointedAt, setPointedAt] = useState(false)
  const [isFocused, setFocused] = useState(false)
  const isSeen = useVisible()
  const mayGo = status === 'done' && isSeen && !isPointedAt && !isFocused
  useEffect(() => {
    if (!mayGo) return
    const timer = setTimeout(() => dismiss(item.key), SHOWN_FOR)
    return () => clearTimeout(timer)
  }, [mayGo, item.key])
  return (
    <div
      class="tray-item"
      onPointerEnter={() => setPointedAt(true)}
      onPointerLeave={() => setPointedAt(false)}
      onFocusIn={() => setFocused(true)}
      onFocusOut={() => setFocused(false)}
    >
      <div>
        <Status status={status} label={`${actionName(item.kind)}: ${shortId(item.subject)}`} />
      </div>
      <button type="button" class="button quiet narrow icon-only" onClick={() => dismiss(item.key)}>
        <Icon name="close" size={14} />
        <span class="hidden-text">Dismiss</span>
      </button>
      <div class="outcome small">
        {item.wasKnown && action && `${action.requested_by} had asked for this already. `}
        {text}
        {error?.next && <div class="muted">{error.next}</div>}
        {action?.run_ids?.map(id => (
          <div key={id}>
            <a href={pageOf.run(id)}>Open run {shortId(id)}</a>
          </div>
        ))}
      </div>
    </div>
  )
}

/** Whether a person can see the page: another tab may be in front of it. */
function useVisible(): boolean {
  const [isVisible, setVisible] = useState(!document.hidden)
  useEffect(() => {
    const look = () => setVisible(!document.hidden)
    document.addEventListener('visibilitychange', look)
    return () => document.removeEventListener('visibilitychange', look)
  }, [])
  return isVisible
}
