// Several actions on one thing: those that are possible as buttons, the others behind a line, each with its reason.

import type { JSX } from 'preact'
import { ActionButton, type ActionButtonProps, whyNot } from './action_button'

export function ActionList({ actions }: { actions: ActionButtonProps[] }): JSX.Element | null {
  if (actions.length === 0) return null
  const possible = actions.filter(each => whyNot(each.permission, each.subjects) === null)
  const impossible = actions.filter(each => !possible.includes(each))
  return (
    <div class="action-list">
      {possible.map(each => (
        <ActionButton key={each.kind} {...each} />
      ))}
      {impossible.length > 0 && (
        <details class="unavailable">
          <summary>
            {possible.length > 0 ? 'Other actions, not possible now' : 'No action is possible now'}
          </summary>
          <ul>
            {impossible.map(each => (
              <li key={each.kind}>
                <ActionButton {...each} look="plain" narrow reasonShown />
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  )
}
