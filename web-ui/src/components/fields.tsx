// Fields of filters, whose values live in the address.

import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { queryValue, setQuery } from '../routing/router'

const TYPING_PAUSE = 200

export function FilterText({
  name,
  label,
  placeholder,
  isSearch = false,
}: {
  name: string
  label: string
  placeholder?: string
  isSearch?: boolean
}): JSX.Element {
  const inAddress = queryValue(name)
  const [typed, setTyped] = useState(inAddress)
  useEffect(() => setTyped(inAddress), [inAddress])
  useEffect(() => {
    if (typed === inAddress) return
    const timer = setTimeout(() => setQuery({ [name]: typed }), TYPING_PAUSE)
    return () => clearTimeout(timer)
  }, [typed])
  return (
    <label class={isSearch ? 'wide' : ''}>
      {label}
      <input
        class="field"
        type="search"
        value={typed}
        placeholder={placeholder ?? ''}
        autocomplete="off"
        spellcheck={false}
        data-search={isSearch ? '' : undefined}
        onInput={event => setTyped(event.currentTarget.value)}
      />
    </label>
  )
}

export function FilterSelect({
  name,
  label,
  options,
}: {
  name: string
  label: string
  options: [value: string, text: string][]
}): JSX.Element {
  return (
    <label>
      {label}
      <select
        class="field"
        value={queryValue(name)}
        onChange={event => setQuery({ [name]: event.currentTarget.value })}
      >
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  )
}

/** A few choices side by side; the chosen one lives in the address, unless it is the default: the first one. */
export function Segments({
  name,
  label,
  options,
  usual = options[0]?.[0] ?? '',
}: {
  name: string
  label: string
  options: [value: string, text: string][]
  usual?: string
}): JSX.Element {
  const chosen = queryValue(name) || usual
  return (
    <fieldset class="segments" aria-label={label}>
      {options.map(([value, text]) => (
        <button
          key={value}
          type="button"
          aria-pressed={value === chosen}
          onClick={() => setQuery({ [name]: value === usual ? null : value })}
        >
          {text}
        </button>
      ))}
    </fieldset>
  )
}
