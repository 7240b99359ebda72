// One dead letter with its payload.

import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { withQuery } from '../../api/client'
import { useQuery } from '../../api/queries'
import type { LetterDetail } from '../../api/types'
import { Code } from '../../components/code'
import { WithData } from '../../components/feedback'
import { Icon } from '../../components/icons'
import { Card, Facts } from '../../components/layout'
import { Status } from '../../components/status'
import { Time } from '../../components/time'
import { bytesText } from '../../text/numbers'
import { LetterTools } from './letter_tools'
import { placeText } from './list'

const FIRST_BYTES = 4_096
const MORE_BYTES = 262_144

export function LetterView({ id, close }: { id: string; close: () => void }): JSX.Element {
  const [bytes, setBytes] = useState(FIRST_BYTES)
  const path = withQuery(`/dead-letters/${encodeURIComponent(id)}`, { bytes })
  const query = useQuery<LetterDetail>(path, { kinds: ['action'] })
  return (
    <Card
      title={`Letter ${id.slice(0, 12)}`}
      tools={
        <button type="button" class="button quiet narrow icon-only" onClick={close}>
          <Icon name="close" size={14} />
          <span class="hidden-text">Close the letter</span>
        </button>
      }
    >
      <WithData query={query} what="the letter">
        {letter => (
          <div class="stack">
            <div class="row">
              <LetterTools letters={[letter]} />
            </div>
            <div class="error-panel">
              <div class="what">{letter.reason}</div>
            </div>
            <Facts
              of={[
                ['Status', <Status key="status" status={letter.status} />],
                ['Failed', <Time key="failed" at={letter.failed_at} inline />],
                ['Stage', letter.stage],
                ['Attempt', letter.attempt],
                ['Message', placeText(letter)],
                ['Event', letter.event_ts && <Time key="event" at={letter.event_ts} inline />],
                ['Target', letter.target],
                ['Loaded in', letter.loaded_in?.join(', ')],
                ['Batch', letter.batch && <code key="batch">{letter.batch}</code>],
                ['Key', letter.key == null ? null : <code key="key">{payloadText(letter.key)}</code>],
                ['Headers', letter.headers ? <code key="headers">{payloadText(letter.headers)}</code> : null],
                ['Payload', `${bytesText(letter.payload_size)}, ${letter.payload_format}`],
              ]}
            />
            <Code text={payloadText(letter.payload)} label="payload" />
            {letter.payload_size > bytes && bytes < MORE_BYTES && (
              <div>
                <button type="button" class="button narrow" onClick={() => setBytes(MORE_BYTES)}>
                  Show more of the payload
                </button>
              </div>
            )}
          </div>
        )}
      </WithData>
    </Card>
  )
}

/** JSON is laid out; anything else stands as it came. */
export function payloadText(payload: unknown): string {
  if (payload === null || payload === undefined) return ''
  const inner = unwrap(payload)
  if (typeof inner !== 'string') return JSON.stringify(inner, null, 2)
  try {
    const parsed: unknown = JSON.parse(inner)
    return typeof parsed === 'object' && parsed !== null ? JSON.stringify(parsed, null, 2) : inner
  } catch {
    return inner // not JSON, or cut off
  }
}

/** Text and bytes come as {"text": …} or {"hex": …}. */
function unwrap(payload: unknown): unknown {
  if (payload && typeof payload === 'object') {
    const { text, hex } = payload as { text?: unknown; hex?: unknown }
    if (typeof text === 'string') return text
    if (typeof hex === 'string') return hexText(hex)
  }
  return payload
}

function hexText(digits: string): string {
  const bytes = Uint8Array.from(digits.match(/../g) ?? [], pair => Number.parseInt(pair, 16))
  const lines: string[] = []
  for (let at = 0; at < bytes.length; at += 16) {
    const line = [...bytes.subarray(at, at + 16)]
    const hex = line.map(byte => byte.toString(16).padStart(2, '0')).join(' ')
    const letters = line.map(byte => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : '.')).join('')
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${letters}`)
  }
  return lines.join('\n')
}
