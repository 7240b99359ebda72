// The status of anything: a colour, a shape and a word, so that colour alone says nothing.

import type { JSX } from 'preact'

export type Tone = 'ok' | 'bad' | 'busy' | 'wait' | 'idle' | 'held' | 'stopped'

interface Look {
  tone: Tone
  shape: keyof typeof SHAPES
  label?: string
}

const SHAPES = {
  check: <path d="m4.5 8.3 2.4 2.4 4.6-5.2" />,
  cross: <path d="m5.3 5.3 5.4 5.4m0-5.4-5.4 5.4" />,
  arc: <path d="M8 3.6A4.4 4.4 0 1 1 3.6 8" />,
  clock: <path d="M8 5v3.2l2.2 1.4" />,
  dash: <path d="M5 8h6" />,
  pause: <path d="M6.3 5.5v5m3.4-5v5" />,
  square: <path d="M6 6h4v4H6z" />,
  lock: <path d="M5.5 7.5h5v3.7h-5zM6.3 7.5V6.2a1.7 1.7 0 0 1 3.4 0v1.3" />,
  mark: <path d="M8 4.8v3.8m0 2.4v.1" />,
}

const LOOKS: Record<string, Look> = {
  succeeded: { tone: 'ok', shape: 'check' },
  done: { tone: 'ok', shape: 'check' },
  ok: { tone: 'ok', shape: 'check' },
  replayed: { tone: 'ok', shape: 'check' },
  failed: { tone: 'bad', shape: 'cross' },
  gave_up: { tone: 'bad', shape: 'cross', label: 'gave up' },
  'gave up': { tone: 'bad', shape: 'cross' },
  refused: { tone: 'bad', shape: 'cross' },
  error: { tone: 'bad', shape: 'cross' },
  overdue: { tone: 'bad', shape: 'mark' },
  running: { tone: 'busy', shape: 'arc' },
  claimed: { tone: 'busy', shape: 'arc', label: 'running' },
  replaying: { tone: 'busy', shape: 'arc' },
  waiting: { tone: 'wait', shape: 'clock' },
  pending: { tone: 'wait', shape: 'clock' },
  late: { tone: 'wait', shape: 'mark' },
  missed: { tone: 'wait', shape: 'mark' },
  skipped: { tone: 'idle', shape: 'dash' },
  never: { tone: 'idle', shape: 'dash', label: 'never ran' },
  locked: { tone: 'idle', shape: 'lock' },
  parked: { tone: 'held', shape: 'pause' },
  held: { tone: 'held', shape: 'pause' },
  paused: { tone: 'held', shape: 'pause' },
  interrupted: { tone: 'stopped', shape: 'square' },
  cancelled: { tone: 'stopped', shape: 'square' },
  stopped: { tone: 'stopped', shape: 'square' },
}

function lookOf(status: string | null | undefined): Look {
  return LOOKS[status ?? 'never'] ?? { tone: 'idle', shape: 'dash' }
}

export function toneOf(status: string | null | undefined): Tone {
  return lookOf(status).tone
}

export function statusText(status: string | null | undefined): string {
  return lookOf(status).label ?? (status ?? 'never').replaceAll('_', ' ')
}

export function StatusIcon({
  status,
  size = 16,
}: {
  status: string | null | undefined
  size?: number
}): JSX.Element {
  const look = lookOf(status)
  const turns = look.shape === 'arc'
  return (
    <svg
      class={`tone-${look.tone}${turns ? ' spin' : ''}`}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.7"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {!turns && <circle cx="8" cy="8" r="6.7" stroke-width="1.3" fill="currentColor" fill-opacity="0.12" />}
      {SHAPES[look.shape]}
    </svg>
  )
}

/** Icon and word. `hold` wins over a status: a held run still counts as running in the run log. */
export function Status({
  status,
  label,
  hold = false,
}: {
  status: string | null | undefined
  label?: string
  hold?: boolean
}): JSX.Element {
  const shown = hold ? 'held' : status
  return (
    <span class={`status tone-${toneOf(shown)}`}>
      <StatusIcon status={shown} />
      {label ?? statusText(shown)}
    </span>
  )
}
