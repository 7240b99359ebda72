// Replay, park and purge of chosen letters. Letters of several streams become an action for each.

import type { JSX } from 'preact'
import { ActionButton } from '../../actions/action_button'
import type { ActionKind, Letter } from '../../api/types'
import { plural } from '../../text/numbers'

const TOOLS: { kind: ActionKind; label: string; look: 'primary' | 'plain' | 'danger'; text: string }[] = [
  {
    kind: 'replay_letters',
    label: 'Replay',
    look: 'primary',
    text: 'They run through their stream again. One that fails again stays a dead letter.',
  },
  {
    kind: 'park_letters',
    label: 'Park',
    look: 'plain',
    text: 'They stay, and a replay of everything leaves them out.',
  },
  {
    kind: 'purge_letters',
    label: 'Purge',
    look: 'danger',
    text: 'They are deleted with their payload. This cannot be undone.',
  },
]

export function LetterTools({ letters, onDone }: { letters: Letter[]; onDone?: () => void }): JSX.Element {
  const streams = [...new Set(letters.map(letter => letter.pipeline))]
  return (
    <>
      {TOOLS.flatMap(tool =>
        streams.map(stream => {
          const its = letters.filter(letter => letter.pipeline === stream)
          const many = plural(its.length, 'letter')
          return (
            <ActionButton
              key={`${tool.kind} ${stream}`}
              kind={tool.kind}
              subjects={[stream]}
              actionArguments={{ letters: its.map(letter => letter.id) }}
              label={streams.length > 1 ? `${tool.label} ${many} of ${stream}` : tool.label}
              confirmLabel={`${tool.label} ${many}`}
              look={tool.look}
              consequence={
                <p>
                  {many} of <strong>{stream}</strong>. {tool.text}
                </p>
              }
              {...(onDone ? { onDone } : {})}
            />
          )
        }),
      )}
    </>
  )
}

/** The same for every letter of a stream that the filters match, however many pages they fill. */
export function MatchingTools({
  stream,
  status,
  reason,
}: {
  stream: string
  status: string
  reason: string
}): JSX.Element {
  const filters = [
    status && `with the status ${status}`,
    reason && `whose reason contains “${reason}”`,
  ].filter(Boolean)
  const which = `every letter of ${stream}${filters.length ? ` ${filters.join(' and ')}` : ''}`
  return (
    <span class="row">
      {TOOLS.map(tool => (
        <ActionButton
          key={tool.kind}
          kind={tool.kind}
          subjects={[stream]}
          actionArguments={{ all: true, status, reason }}
          label={`${tool.label} all that match`}
          look={tool.look === 'danger' ? 'danger' : 'plain'}
          narrow
          consequence={
            <p>
              This takes {which}. {tool.text}
            </p>
          }
        />
      ))}
    </span>
  )
}
