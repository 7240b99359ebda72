// One pipeline: how it stands, its history, its plan, and what can be done with it.

import type { JSX } from 'preact'
import { ActionList } from '../../actions/action_list'
import { withQuery } from '../../api/client'
import { usePages } from '../../api/pages'
import { useQuery } from '../../api/queries'
import type { ErrorParts, ListedRun, Pipeline, Plan, RunDetail } from '../../api/types'
import { RunBars, Sparkline } from '../../components/bars'
import { Empty, ErrorPanel, Loading, WithData } from '../../components/feedback'
import { Segments } from '../../components/fields'
import { Card, Facts, Page, Tiles } from '../../components/layout'
import { LoadMore } from '../../components/more'
import { Status } from '../../components/status'
import { Ago, Duration } from '../../components/time'
import { useRowCursor } from '../../keyboard'
import { navigate, pageOf, queryValue } from '../../routing/router'
import { countText } from '../../text/numbers'
import { PlanView } from '../runs/plan_view'
import { errorOf } from '../runs/run_error'
import { RunTable } from '../runs/run_table'
import { FreshnessText, HoldNote, NextFire, slotText } from './parts'
import { pipelineActions, useFailedRun } from './pipeline_actions'
import { standing } from './standing'

export function PipelinePage({ name }: { name: string }): JSX.Element {
  const path = `/pipelines/${encodeURIComponent(name)}`
  const query = useQuery<Pipeline>(path, { kinds: ['run', 'slot', 'hold'], about: name, every: 60_000 })
  const failed = useFailedRun(query.data)
  const view = queryValue('view') || 'runs'
  return (
    <Page
      title={name}
      tabTitle={name}
      crumbs={[{ label: 'Pipelines', href: '/' }]}
      status={query.data && <Status status={standing(query.data)} />}
    >
      <WithData query={query} what={`pipeline ${name}`}>
        {pipeline => (
          <>
            <ActionList actions={pipelineActions(pipeline, failed)} />
            <Notices pipeline={pipeline} failed={failed} />
            <Overview pipeline={pipeline} />
            <div class="row">
              <Segments
                name="view"
                label="View"
                options={[
                  ['runs', 'Runs'],
                  ['plan', 'Plan'],
                  ['about', 'Declaration'],
                ]}
              />
            </div>
            {view === 'runs' && <History name={name} />}
            {view === 'plan' && <CurrentPlan path={path} />}
            {view === 'about' && <Declaration pipeline={pipeline} />}
          </>
        )}
      </WithData>
    </Page>
  )
}

function Notices({ pipeline, failed }: { pipeline: Pipeline; failed: RunDetail | undefined }): JSX.Element {
  const error = problemOf(pipeline, failed)
  return (
    <>
      {pipeline.hold && <HoldNote hold={pipeline.hold} />}
      {pipeline.schedule_hold && <HoldNote hold={pipeline.schedule_hold} />}
      {error && <ErrorPanel error={error} />}
    </>
  )
}

/** Why the pipeline is not well: the error of the run that failed with all its parts, or what the slot says. */
function problemOf(pipeline: Pipeline, failed: RunDetail | undefined): ErrorParts | null {
  if (!pipeline.why) return null
  const ofSlot = slotText(pipeline) || null
  const error = failed && errorOf(failed)
  if (error) return { ...error, state: [error.state, ofSlot].filter(Boolean).join('\n') || null }
  const last = pipeline.last_run
  return {
    type: last?.error_type ?? 'Why',
    what: pipeline.why,
    where: last?.error_where ?? null,
    state: ofSlot,
  }
}

function Overview({ pipeline }: { pipeline: Pipeline }): JSX.Element {
  const last = pipeline.last_run
  const days = pipeline.rows_per_day ?? []
  const total = days.reduce((sum, day) => sum + day.rows, 0)
  return (
    <Tiles
      of={[
        [
          'Last run',
          last && (
            <a href={pageOf.run(last.run_id)}>
              <Duration seconds={last.duration_seconds} since={last.started_at} />
            </a>
          ),
          last && <Ago at={last.started_at} />,
        ],
        ['Last 30 runs', <RunBars key="bars" bars={pipeline.bars ?? []} />],
        [
          'Next',
          <span key="next" class="tile-text">
            <NextFire pipeline={pipeline} />
          </span>,
          pipeline.schedule_text ?? pipeline.schedule,
        ],
        ['Age of the data', <FreshnessText key="age" freshness={pipeline.freshness} />],
        ['Rows in 14 days', countText(total), <Sparkline key="days" days={days} />],
      ]}
    />
  )
}

function History({ name }: { name: string }): JSX.Element {
  const path = withQuery('/runs', { pipeline: name, limit: 25 })
  const pages = usePages<ListedRun>(path, run => run.run_id, { kinds: ['run', 'hold'], about: name })
  const runs = pages.items ?? []
  const cursor = useRowCursor(
    runs.map(run => run.run_id),
    id => navigate(pageOf.run(id)),
  )
  return (
    <Card title="Runs" flush tools={<a href={pageOf.runsOf(name)}>All, with filters</a>}>
      {pages.error && <ErrorPanel error={pages.error} retry={pages.refresh} />}
      {!pages.items && !pages.error && <Loading what="runs" />}
      {pages.items && runs.length === 0 && <Empty title="It has not run yet" />}
      {runs.length > 0 && <RunTable runs={runs} withPipeline={false} cursor={cursor} />}
      <LoadMore pages={pages} what="runs" />
    </Card>
  )
}

function CurrentPlan({ path }: { path: string }): JSX.Element {
  const query = useQuery<Plan | Plan[]>(`${path}/plan`)
  return (
    <WithData query={query} what="the plan">
      {found => {
        const plan = Array.isArray(found) ? found[0] : found
        return plan ? <PlanView plan={plan} /> : <Empty title="There is no plan" />
      }}
    </WithData>
  )
}

function Declaration({ pipeline }: { pipeline: Pipeline }): JSX.Element {
  const links = (names: string[] | undefined) =>
    names?.length ? (
      <span class="row">
        {names.map(name => (
          <a key={name} href={pageOf.pipeline(name)}>
            {name}
          </a>
        ))}
      </span>
    ) : null
  return (
    <Card title="Declaration">
      <Facts
        of={[
          ['Description', pipeline.description],
          [
            'Loads',
            pipeline.targets?.map(target => (
              <div key={target.target}>
                {target.target} <span class="tag">{target.mode}</span>
              </div>
            )),
          ],
          ['Depends on', links(pipeline.upstreams ?? pipeline.depends_on)],
          ['Then run', links(pipeline.downstreams)],
          [
            'Graph',
            <a key="graph" href={pageOf.graphOf(`pipeline:${pipeline.pipeline}`)}>
              with what is before and after it
            </a>,
          ],
          [
            'Schedule',
            pipeline.schedule &&
              `${pipeline.schedule_text ?? pipeline.schedule} (${pipeline.schedule}, ${pipeline.timezone ?? 'UTC'})`,
          ],
          ['Attempts', pipeline.attempts_allowed],
          ['Incremental by', pipeline.incremental],
          ['Source', pipeline.source && sourceText(pipeline.source)],
          ['Declared at', pipeline.where && <code key="where">{pipeline.where}</code>],
        ]}
      />
    </Card>
  )
}

function sourceText(source: Record<string, unknown>): JSX.Element {
  const known = Object.entries(source).filter(([, value]) => value !== null && value !== '')
  return (
    <>
      {known.map(([name, value]) => (
        <div key={name} class="break">
          <span class="muted">{name}</span> {typeof value === 'string' ? value : JSON.stringify(value)}
        </div>
      ))}
    </>
  )
}
