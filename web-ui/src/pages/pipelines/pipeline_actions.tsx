// What can be done with a pipeline.

import type { JSX } from 'preact'
import type { ActionButtonProps } from '../../actions/action_button'
import { useQuery } from '../../api/queries'
import type { Permission, Pipeline, RunDetail } from '../../api/types'
import { Time } from '../../components/time'
import { pageOf } from '../../routing/router'
import { restartAction } from '../runs/run_tools'
import { failedRunOf } from './standing'

const REASON = { name: 'reason', label: 'Reason, for the others', kind: 'text' } as const

/** An action is possible when there is no reason against it. */
function unless(why: string | null): Permission {
  return { ok: why === null, why }
}

/** The run that a pipeline fails with, as its page shows it. */
export function useFailedRun(pipeline: Pipeline | undefined): RunDetail | undefined {
  const id = pipeline ? failedRunOf(pipeline) : null
  return useQuery<RunDetail>(id && `/runs/${encodeURIComponent(id)}`, { about: id, every: 30_000 }).data
}

function RestartFirst({ pipeline }: { pipeline: Pipeline }): JSX.Element | null {
  const run = useFailedRun(pipeline)
  if (!run?.can.restart?.ok) return null
  return (
    <div class="note wait">
      <strong>Its last run can be restarted.</strong> This run begins at the start, and may load rows again
      that the failed one has committed. <a href={pageOf.run(run.run_id)}>Run {run.run_id.slice(0, 8)}</a> has
      the button “Restart from the failed step”.
    </div>
  )
}

export function runAction(pipeline: Pipeline): ActionButtonProps {
  const name = pipeline.pipeline
  return {
    kind: 'run',
    subjects: [name],
    label: 'Run',
    confirmLabel: 'Run now',
    consequence: (
      <>
        <p>
          This runs <strong>{name}</strong> now, as <code>flow run {name}</code> does.
        </p>
        <RestartFirst pipeline={pipeline} />
      </>
    ),
    options: [{ name: 'with_downstream', label: 'Then run what depends on it, in order', kind: 'flag' }],
  }
}

/** With a failed run, its restart comes first: a new run may load rows again. */
export function pipelineActions(pipeline: Pipeline, failed?: RunDetail): ActionButtonProps[] {
  const mayRestart = failed ? failed.can.restart?.ok === true : failedRunOf(pipeline) !== null
  return [
    ...(failed?.can.restart ? [restartAction(failed)] : []),
    { ...runAction(pipeline), look: mayRestart ? 'plain' : 'primary' },
    resumeFromWatermark(pipeline),
    clearSlot(pipeline),
    pauseOrResume(pipeline),
    pauseOrResumeSchedule(pipeline),
  ]
}

function resumeFromWatermark(pipeline: Pipeline): ActionButtonProps {
  const name = pipeline.pipeline
  return {
    kind: 'resume_from_watermark',
    subjects: [name],
    permission: unless(pipeline.incremental ? null : 'It is not incremental: it has no watermark.'),
    consequence: (
      <p>
        This runs <strong>{name}</strong> and reads what came after its committed watermark.
      </p>
    ),
  }
}

function clearSlot(pipeline: Pipeline): ActionButtonProps {
  const { slot } = pipeline
  const isStuck = slot?.status === 'gave_up' || slot?.status === 'skipped'
  return {
    kind: 'clear',
    subjects: [pipeline.pipeline],
    actionArguments: isStuck ? { slots: [slot.at] } : {},
    permission: unless(isStuck ? null : 'It has no slot that was given up or skipped.'),
    consequence: (
      <>
        <p>
          The slot of <Time at={slot?.at} relative={false} inline /> was{' '}
          {slot?.status === 'gave_up' ? 'given up' : 'skipped'}. Once cleared, it runs as if it had just
          become due.
        </p>
        <p>
          Steps after the load that ended well run again, too. “Restart from the failed step” does not repeat
          them.
        </p>
      </>
    ),
  }
}

function pauseOrResume(pipeline: Pipeline): ActionButtonProps {
  const name = pipeline.pipeline
  if (pipeline.hold) {
    return {
      kind: 'resume',
      subjects: [name],
      label: 'Resume the run',
      look: 'primary',
      consequence: <p>What is held of {name} goes on from where it waits.</p>,
    }
  }
  const mayRun = pipeline.last_run?.status === 'running' || pipeline.attempts_allowed > 1
  return {
    kind: 'pause',
    subjects: [name],
    label: 'Pause the run',
    permission: unless(mayRun ? null : 'No run of it works now.'),
    consequence: (
      <p>
        The run of {name} waits at its next safe point, between two targets or stages, until it is resumed.
      </p>
    ),
    options: [REASON],
  }
}

function pauseOrResumeSchedule(pipeline: Pipeline): ActionButtonProps {
  const name = pipeline.pipeline
  if (pipeline.schedule_hold) {
    return {
      kind: 'resume_schedule',
      subjects: [name],
      look: 'primary',
      consequence: <p>The schedule fires again; slots that waited follow the pipeline's catch-up rule.</p>,
    }
  }
  const hasSchedule = pipeline.schedule !== null || (pipeline.workflows ?? []).length > 0
  return {
    kind: 'pause_schedule',
    subjects: [name],
    permission: unless(hasSchedule ? null : 'It has no schedule, and no workflow runs it.'),
    consequence: <p>Due slots of {name} wait until the schedule is resumed. A run that works now goes on.</p>,
    options: [REASON],
  }
}
