// The list of keys.

import type { JSX } from 'preact'
import { GO_TO, isHelpShown, OTHER_KEYS, setShortcuts, shortcutsAreOn } from '../keyboard'
import { Dialog } from './dialog'

export function Help(): JSX.Element | null {
  if (!isHelpShown.value) return null
  const close = () => {
    isHelpShown.value = false
  }
  return (
    <Dialog title="Keys" onClose={close}>
      <div class="columns">
        <dl class="keys">
          {OTHER_KEYS.map(([keys, label]) => (
            <>
              <dt key={`${keys} key`}>
                <kbd>{keys}</kbd>
              </dt>
              <dd key={keys}>{label}</dd>
            </>
          ))}
        </dl>
        <dl class="keys">
          {Object.entries(GO_TO).map(([key, [, label]]) => (
            <>
              <dt key={`${key} key`}>
                <kbd>g</kbd> <kbd>{key}</kbd>
              </dt>
              <dd key={key}>{label}</dd>
            </>
          ))}
        </dl>
      </div>
      <label class="check-line row">
        <input
          type="checkbox"
          checked={shortcutsAreOn.value}
          onChange={event => setShortcuts(event.currentTarget.checked)}
        />
        Use these keys
      </label>
      <div class="dialog-foot">
        <button type="button" class="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  )
}
