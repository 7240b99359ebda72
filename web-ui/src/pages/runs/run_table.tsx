// Runs as a table: the list of runs, the history of a pipeline, the attempts of a slot.

import type { JSX } from 'preact'
import type { ListedRun } from '../../api/types'
import { Scrolling } from '../../components/layout'
import { Status } from '../../components/status'
import { Duration, Time } from '../../components/time'
import { pageOf } from '../../routing/router'
import { countText } from '../../text/numbers'
import { firstLine } from '../../text/wording'
import { ProgressLine } from '../pipelines/parts'

export function RunTable({
  runs,
  cursor = null,
  withPipeline = true,
  label = 'Runs',
}: {
  runs: ListedRun[]
  cursor?: string | null
  withPipeline?: boolean
  label?: string
}): JSX.Element {
  return (
    <Scrolling label={label}>
      <table class="grid runs">
        <thead>
          <tr>
            <th>Run</th>
            {withPipeline && <th>Pipeline</th>}
            <th>Status</th>
            <th>Started</th>
            <th class="number">Took</th>
            <th class="number cell-read">Read</th>
            <th class="number">Inserted</th>
            <th class="number cell-few">Updated</th>
            <th class="number cell-few">Deleted</th>
            <th class="cell-by">By</th>
          </tr>
        </thead>
        <tbody>
          {runs.map(run => (
            <RunRow key={run.run_id} run={run} isCursor={cursor === run.run_id} withPipeline={withPipeline} />
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}

function RunRow({
  run,
  isCursor,
  withPipeline,
}: {
  run: ListedRun
  isCursor: boolean
  withPipeline: boolean
}): JSX.Element {
  const error = firstLine(run.error_message)
  return (
    <tr class={isCursor ? 'is-cursor' : ''}>
      <td class="tight cell-id">
        <a class="mono" href={pageOf.run(run.run_id)}>
          {run.run_id.slice(0, 8)}
        </a>
      </td>
      {withPipeline && (
        <td class="run-name">
          <a class="cell-main" href={pageOf.run(run.run_id)}>
            {run.pipeline}
          </a>
          {error && <div class={`why${run.status === 'failed' ? '' : ' calm'}`}>{error}</div>}
        </td>
      )}
      <td class="cell-status">
        <Status status={run.status} hold={run.is_held} />
        {run.attempt > 1 && <span class="muted small second-line">attempt {run.attempt}</span>}
        {run.status === 'running' && !run.is_held && (
          <ProgressLine runId={run.run_id} known={run.metrics?.progress} />
        )}
        {!withPipeline && error && <div class={`why${run.status === 'failed' ? '' : ' calm'}`}>{error}</div>}
      </td>
      <td class="cell-at">
        <Time at={run.started_at} />
      </td>
      <td class="number" data-label="took">
        <Duration seconds={run.duration_seconds} since={run.started_at} />
      </td>
      <td class="number cell-read" data-label="read">
        {countText(run.rows_read)}
      </td>
      <td class="number" data-label="inserted">
        {countText(run.rows_inserted)}
      </td>
      <td class="number cell-few" data-label="updated">
        {countText(run.rows_updated)}
      </td>
      <td class="number cell-few" data-label="deleted">
        {countText(run.rows_deleted)}
      </td>
      <td class="tight cell-by" data-label="by">
        {run.trigger}
      </td>
    </tr>
  )
}
