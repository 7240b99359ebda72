// What can be done with a run. What cannot be done now is listed with its reason.

import type { JSX } from 'preact'
import type { ActionButtonProps } from '../../actions/action_button'
import { ActionList } from '../../actions/action_list'
import type { RunAction, RunDetail } from '../../api/types'

interface Tool {
  action: RunAction
  label: string
  subject: (run: RunDetail) => string
  look: 'primary' | 'danger' | 'plain'
  consequence: (run: RunDetail) => JSX.Element
  takesReason?: boolean
}

const TOOLS: Tool[] = [
  {
    action: 'restart',
    label: 'Restart from the failed step',
    subject: run => run.run_id,
    look: 'primary',
    consequence: run => (
      <p>
        This runs <strong>{run.pipeline}</strong> again with the batch of this run. Targets and later steps
        that were committed are not done again.
      </p>
    ),
  },
  {
    action: 'resume_from_watermark',
    label: 'Resume from the watermark',
    subject: run => run.pipeline,
    look: 'plain',
    consequence: run => (
      <p>
        This runs <strong>{run.pipeline}</strong> and reads what came after its committed watermark.
      </p>
    ),
  },
  {
    action: 'pause',
    label: 'Pause',
    subject: run => run.pipeline,
    look: 'plain',
    consequence: run => (
      <p>
        The run of <strong>{run.pipeline}</strong> waits at its next safe point, between two targets, stages
        or batches, until it is resumed. Nothing that is half done is committed.
      </p>
    ),
    takesReason: true,
  },
  {
    action: 'resume',
    label: 'Resume',
    subject: run => run.pipeline,
    look: 'primary',
    consequence: run => (
      <p>
        The run of <strong>{run.pipeline}</strong> goes on from where it waits.
      </p>
    ),
  },
  {
    action: 'stop',
    label: 'Stop',
    subject: run => run.run_id,
    look: 'danger',
    consequence: run => (
      <p>
        The run of <strong>{run.pipeline}</strong> ends as after Ctrl-C: what it has committed stays, what it
        is working on is undone.
      </p>
    ),
  },
]

const REASON = { name: 'reason', label: 'Reason, for the others', kind: 'text' } as const

export function RunTools({ run }: { run: RunDetail }): JSX.Element | null {
  return <ActionList actions={TOOLS.filter(tool => run.can[tool.action]).map(tool => buttonOf(tool, run))} />
}

/** The restart of a run, for the page of its pipeline. */
export function restartAction(run: RunDetail): ActionButtonProps {
  return buttonOf(TOOLS[0] as Tool, run)
}

function buttonOf(tool: Tool, run: RunDetail): ActionButtonProps {
  return {
    kind: tool.action,
    subjects: [tool.subject(run)],
    label: tool.label,
    look: tool.look,
    permission: run.can[tool.action],
    consequence: tool.consequence(run),
    options: tool.takesReason ? [REASON] : [],
  }
}
