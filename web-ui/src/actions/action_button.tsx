// The button of an action: it says why it cannot be used, asks before anything changes, and shows that it works.

import type { ComponentChildren, JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { refusal } from '../api/session'
import type { ActionKind, Permission } from '../api/types'
import { Dialog } from '../components/dialog'
import { ACTION_NAMES } from '../text/wording'
import { isUnderWay, requestAction } from './requests'

export interface ActionOption {
  name: string
  label: string
  kind: 'flag' | 'text'
}

export interface ActionButtonProps {
  kind: ActionKind
  /** One subject, or several: each becomes an action. */
  subjects: string[]
  label?: string
  /** What will happen, in the words of a person. */
  consequence: ComponentChildren
  confirmLabel?: string
  permission?: Permission | undefined
  options?: ActionOption[]
  actionArguments?: Record<string, unknown>
  look?: 'primary' | 'danger' | 'plain'
  narrow?: boolean
  /** Where the reason of a disabled button stands: next to it, or only in its description. */
  reasonShown?: boolean
  onDone?: () => void
}

/** Why the action cannot be asked for; null when it can. */
export function whyNot(permission: Permission | undefined, subjects: string[]): string | null {
  const refused = refusal()
  if (refused) return refused
  if (permission && !permission.ok) return permission.why ?? 'This is not possible now.'
  return subjects.length === 0 ? 'Nothing is selected.' : null
}

export function ActionButton(props: ActionButtonProps): JSX.Element {
  const { kind, subjects, permission, look = 'plain', narrow = false, reasonShown = false } = props
  const [isAsking, setAsking] = useState(false)
  const reasonId = useId()
  const works = subjects.length > 0 && subjects.every(subject => isUnderWay(kind, subject))
  const reason = works ? 'This was requested and is under way.' : whyNot(permission, subjects)
  const label = props.label ?? ACTION_NAMES[kind]
  const classes = ['button', look === 'plain' ? '' : look, narrow ? 'narrow' : ''].filter(Boolean).join(' ')
  return (
    <>
      <button
        type="button"
        class={classes}
        aria-disabled={reason ? 'true' : undefined}
        aria-describedby={reason ? reasonId : undefined}
        title={reason && !reasonShown ? reason : undefined}
        onClick={() => !reason && setAsking(true)}
      >
        {works ? `${label} …` : label}
      </button>
      {reason && (
        <span id={reasonId} class={reasonShown ? 'small muted' : 'hidden-text'}>
          {reason}
        </span>
      )}
      {isAsking && <Confirmation {...props} label={label} onClose={() => setAsking(false)} />}
    </>
  )
}

function Confirmation({
  kind,
  subjects,
  label,
  consequence,
  confirmLabel,
  options = [],
  actionArguments = {},
  look,
  onDone,
  onClose,
}: ActionButtonProps & { label: string; onClose: () => void }): JSX.Element {
  const [values, setValues] = useState<Record<string, unknown>>({})
  const confirm = (event: Event) => {
    event.preventDefault()
    const chosen = Object.fromEntries(
      Object.entries(values).filter(([, value]) => value !== '' && value !== false),
    )
    for (const subject of subjects) void requestAction(kind, subject, { ...actionArguments, ...chosen })
    onDone?.()
    onClose()
  }
  return (
    <Dialog title={label} onClose={onClose}>
      <form class="stack form" onSubmit={confirm}>
        <div class="stack">{consequence}</div>
        {options.map(option =>
          option.kind === 'flag' ? (
            <label key={option.name} class="check-line">
              <input
                type="checkbox"
                onChange={event => setValues({ ...values, [option.name]: event.currentTarget.checked })}
              />
              {option.label}
            </label>
          ) : (
            <label key={option.name}>
              {option.label}
              <input
                class="field"
                type="text"
                maxLength={500}
                autocomplete="off"
                onInput={event => setValues({ ...values, [option.name]: event.currentTarget.value.trim() })}
              />
            </label>
          ),
        )}
        <div class="dialog-foot">
          <button type="button" class="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class={`button primary${look === 'danger' ? ' danger' : ''}`}>
            {confirmLabel ?? label}
          </button>
        </div>
      </form>
    </Dialog>
  )
}
