// What was requested on this page, how far each action is, and what came of it.

import type { JSX } from 'preact'
import { Icon } from '../components/icons'
import { Status } from '../components/status'
import { pageOf } from '../routing/router'
import { actionName, shortId } from '../text/wording'
import { dismiss, type Requested, requested } from './requests'

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
  return (
    <div class="tray-item">
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
