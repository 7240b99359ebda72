// Code and logs, always as text.

import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { Icon } from './icons'

export function Code({ text, label }: { text: string; label: string }): JSX.Element {
  return (
    <div class="code-block">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: keys must be able to scroll it */}
      <pre class="code" tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
      <CopyButton text={text} label={`Copy ${label}`} />
    </div>
  )
}

export function CopyButton({ text, label }: { text: string; label: string }): JSX.Element {
  const [isCopied, setCopied] = useState(false)
  const copy = async () => {
    await navigator.clipboard.writeText(text)
    setCopied(true)
    setTimeout(() => setCopied(false), 2_000)
  }
  if (!navigator.clipboard) return <span /> // only where the browser allows it: HTTPS and loopback
  return (
    <button type="button" class="button quiet narrow copy" title={label} onClick={() => void copy()}>
      <Icon name="copy" size={14} />
      <span class="hidden-text">{label}</span>
      <span aria-live="polite" class="small">
        {isCopied ? 'copied' : ''}
      </span>
    </button>
  )
}

/** The level of a log line decides its colour. */
export function levelClass(line: string): string {
  if (/\b(ERROR|CRITICAL|Traceback)\b/.test(line)) return 'level-error'
  return /\bWARN(ING)?\b/.test(line) ? 'level-warning' : ''
}
