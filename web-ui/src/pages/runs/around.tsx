// What ran before and after a run: its own pipeline, and those up- and downstream.

import type { JSX } from 'preact'
import { useQuery } from '../../api/queries'
import type { Run, RunDetail, RunsAround } from '../../api/types'
import { Empty, WithData } from '../../components/feedback'
import { Card, Scrolling } from '../../components/layout'
import { Status } from '../../components/status'
import { Duration, Time } from '../../components/time'
import { pageOf } from '../../routing/router'
import { plural } from '../../text/numbers'

export interface Neighbour {
  place: string
  pipeline: string
  run: Run | null
}

export function AroundCard({ run }: { run: RunDetail }): JSX.Element {
  const path = `/runs/${encodeURIComponent(run.run_id)}/around`
  const query = useQuery<RunsAround>(path, { kinds: ['run'], about: run.pipeline, every: 60_000 })
  return (
    <Card title="Before and after" flush>
      <WithData query={query} what="the runs before and after">
        {around => <NeighbourTable neighbours={neighboursOf(around, run)} leftOut={around.left_out} />}
      </WithData>
    </Card>
  )
}

/** In the order in which they ran. */
export function neighboursOf(around: RunsAround, run: Pick<RunDetail, 'pipeline'>): Neighbour[] {
  const own = (place: string, found: Run | null): Neighbour[] =>
    found ? [{ place, pipeline: run.pipeline, run: found }] : []
  return [
    ...own('Previous run', around.previous),
    ...around.upstream.map(each => ({ place: 'Upstream, before', ...each })),
    ...around.downstream.map(each => ({ place: 'Downstream, after', ...each })),
    ...own('Next run', around.next),
  ]
}

function NeighbourTable({ neighbours, leftOut }: { neighbours: Neighbour[]; leftOut: number }): JSX.Element {
  if (neighbours.length === 0)
    return <Empty title="This is the only run of its pipeline, and nothing stands before or after it" />
  return (
    <>
      <Scrolling label="Runs before and after">
        <table class="grid runs">
          <thead>
            <tr>
              <th>Which</th>
              <th>Pipeline</th>
              <th>Run</th>
              <th>Status</th>
              <th>Started</th>
              <th class="number">Took</th>
            </tr>
          </thead>
          <tbody>
            {neighbours.map(({ place, pipeline, run }) => (
              <tr key={`${place} ${pipeline}`}>
                <td class="tight">{place}</td>
                <td class="run-name">
                  <a class="cell-main" href={pageOf.pipeline(pipeline)}>
                    {pipeline}
                  </a>
                </td>
                {run ? <RunCells run={run} /> : <NoRun place={place} />}
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolling>
      {leftOut > 0 && <p class="card-body muted small">{plural(leftOut, 'further pipeline')} not shown</p>}
    </>
  )
}

function NoRun({ place }: { place: string }): JSX.Element {
  return (
    <td colSpan={4} class="muted">
      {place.startsWith('Upstream') ? 'no run before this one' : 'no run after this one yet'}
    </td>
  )
}

function RunCells({ run }: { run: Run }): JSX.Element {
  return (
    <>
      <td class="tight">
        <a class="mono" href={pageOf.run(run.run_id)}>
          {run.run_id.slice(0, 8)}
        </a>
      </td>
      <td class="cell-status">
        <Status status={run.status} />
      </td>
      <td class="cell-at">
        <Time at={run.started_at} />
      </td>
      <td class="number" data-label="took">
        <Duration seconds={run.duration_seconds} since={run.started_at} />
      </td>
    </>
  )
}
