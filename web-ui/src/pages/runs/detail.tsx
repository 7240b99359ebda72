// One run: what it did or does, why it failed, and what can be done about it.

import type { ComponentChildren, JSX } from 'preact'
import { progressOf } from '../../api/live'
import { type Interest, useQuery } from '../../api/queries'
import type { Hold, Pipeline, Progress, Run, RunDetail, Stream } from '../../api/types'
import { CopyButton } from '../../components/code'
import { Empty, ErrorPanel, WithData } from '../../components/feedback'
import { Segments } from '../../components/fields'
import { Icon } from '../../components/icons'
import { Card, Facts, Page, Tiles } from '../../components/layout'
import { Status } from '../../components/status'
import { Duration, Time } from '../../components/time'
import { pageOf, queryValue } from '../../routing/router'
import { countText, rateText } from '../../text/numbers'
import { durationText } from '../../text/times'
import { HoldNote, shareOf } from '../pipelines/parts'
import { AroundCard } from './around'
import { Expectations, PostSteps, Probes, Targets } from './findings'
import { LedgerView } from './ledger'
import { LogCard } from './log_view'
import { PlanView } from './plan_view'
import { errorOf } from './run_error'
import { RunTools } from './run_tools'
import { Attempts, attemptNumber, StageTimeline, stagesOf } from './timeline'

export function RunPage({ id }: { id: string }): JSX.Element {
  const query = useQuery<RunDetail>(`/runs/${encodeURIComponent(id)}`, { about: id, every: 30_000 })
  const run = query.data
  const view = queryValue('view') || 'overview'
  const hold = useHold(run)
  return (
    <Page
      title={
        run ? (
          <>
            {run.pipeline} <span class="muted mono">{run.run_id.slice(0, 8)}</span>
          </>
        ) : (
          `Run ${id.slice(0, 8)}`
        )
      }
      tabTitle={run ? `${run.pipeline} ${id.slice(0, 8)}` : `Run ${id.slice(0, 8)}`}
      crumbs={[
        { label: 'Runs', href: '/runs' },
        ...(run ? [{ label: run.pipeline, href: placeOf(run) }] : []),
      ]}
      status={run && <Status status={run.status} hold={Boolean(hold?.held_run === run.run_id)} />}
      tools={run && <Neighbours run={run} />}
    >
      <WithData query={query} what="the run">
        {found => (
          <>
            <RunTools run={found} />
            {hold && <HoldNote hold={hold} />}
            <Summary run={found} />
            <div class="row">
              <Segments
                name="view"
                label="View"
                options={[
                  ['overview', 'Overview'],
                  ['plan', 'Plan and SQL'],
                  ['ledger', 'Ledger'],
                  ['log', 'Log'],
                ]}
              />
            </div>
            {view === 'overview' && <Overview run={found} />}
            {view === 'plan' && <RecordedPlan run={found} />}
            {view === 'ledger' && <LedgerView runId={found.run_id} />}
            {view === 'log' && <LogCard key="log" run={found} />}
          </>
        )}
      </WithData>
    </Page>
  )
}

/** What holds the run, as its pipeline or stream knows it. */
function useHold(run: RunDetail | undefined): Hold | null {
  const isHeld = run?.status === 'running' && run.can.resume?.ok === true
  const isStream = run?.trigger === 'consume'
  const interest: Interest = { kinds: ['hold', 'run'], about: run?.pipeline ?? null, every: 10_000 }
  const pipeline = useQuery<Pipeline>(
    isHeld && !isStream ? `/pipelines/${encodeURIComponent(run.pipeline)}` : null,
    interest,
  )
  const streams = useQuery<{ items: Stream[] }>(isHeld && isStream ? '/streams' : null, interest)
  const stream = streams.data?.items.find(each => each.name === run?.pipeline)
  return (isHeld && (isStream ? stream?.hold : pipeline.data?.hold)) || null
}

/** A run of a stream leads to the stream, one of a command such as maintain:orders to its runs. */
function placeOf(run: Run): string {
  if (run.trigger === 'consume') return pageOf.stream(run.pipeline)
  return run.pipeline.includes(':') ? pageOf.runsOf(run.pipeline) : pageOf.pipeline(run.pipeline)
}

function Neighbours({ run }: { run: RunDetail }): JSX.Element {
  return (
    <nav class="row" aria-label="Runs before and after this one">
      {run.previous && (
        <a class="button narrow" href={pageOf.run(run.previous)} rel="prev">
          <Icon name="left" size={13} /> Previous
        </a>
      )}
      {run.next && (
        <a class="button narrow" href={pageOf.run(run.next)} rel="next">
          Next <Icon name="right" size={13} />
        </a>
      )}
    </nav>
  )
}

function Summary({ run }: { run: RunDetail }): JSX.Element {
  const changed = [run.rows_inserted, run.rows_updated, run.rows_deleted]
  const written = changed.every(each => each === null)
    ? null
    : changed.reduce((sum: number, each) => sum + (each ?? 0), 0)
  const rate = run.rows_read && run.duration_seconds ? run.rows_read / run.duration_seconds : null
  return (
    <Tiles
      of={[
        [
          'Started',
          <span key="at" class="tile-text">
            <Time at={run.started_at} />
          </span>,
        ],
        [
          run.status === 'running' ? 'Running for' : 'Took',
          <Duration key="took" seconds={run.duration_seconds} since={run.started_at} />,
          run.slot && (
            <>
              slot <Time at={run.slot} relative={false} inline />
            </>
          ),
        ],
        ['Rows read', countText(run.rows_read), rateText(rate)],
        ['Rows changed', countText(written), countsText(run)],
        [
          'Started by',
          <span key="by" class="tile-text">
            {run.trigger}
          </span>,
          `attempt ${attemptNumber(run)}`,
        ],
      ]}
    />
  )
}

function countsText(run: Run): string {
  const parts: [number | null, string][] = [
    [run.rows_inserted, 'inserted'],
    [run.rows_updated, 'updated'],
    [run.rows_deleted, 'deleted'],
    [run.rows_unchanged, 'unchanged'],
  ]
  return parts
    .filter(([number]) => number)
    .map(([number, word]) => `${countText(number)} ${word}`)
    .join(', ')
}

function Overview({ run }: { run: RunDetail }): JSX.Element {
  const error = errorOf(run)
  const progress = run.status === 'running' ? (progressOf.value[run.run_id] ?? run.metrics?.progress) : null
  const isNotWell = run.status === 'running' || run.status === 'failed' || run.status === 'interrupted'
  return (
    <>
      {error && <ErrorPanel error={error} />}
      {progress && <LiveProgress progress={progress} />}
      {(stagesOf(run.metrics).length > 0 || run.attempts.length > 1) && (
        <Card title="Timeline">
          <div class="stack">
            {run.attempts.length > 1 && <Attempts attempts={run.attempts} current={run.run_id} />}
            <StageTimeline run={run} />
          </div>
        </Card>
      )}
      <Targets run={run} />
      <PostSteps steps={run.metrics?.post} />
      <Expectations targets={run.metrics?.targets} />
      <Probes reports={run.metrics?.probes} />
      {isNotWell && <LogCard key="end" run={run} short />}
      <AroundCard run={run} />
      <RunFacts run={run} />
    </>
  )
}

function LiveProgress({ progress }: { progress: Progress }): JSX.Element | null {
  const share = shareOf(progress)
  const facts: [string, ComponentChildren][] = [
    [
      'Rows',
      `${countText(progress.rows)}${progress.expected_rows ? ` of about ${countText(progress.expected_rows)}` : ''}`,
    ],
    ['Speed', rateText(progress.rows_per_second)],
    ['Left', progress.eta_seconds ? `about ${durationText(Math.round(progress.eta_seconds))}` : ''],
  ]
  if (share === null && !facts.some(([, value]) => value)) return null
  return (
    <Card title={[progress.target, progress.stage].filter(Boolean).join(': ') || 'Progress'}>
      <div class="stack">
        {share !== null && (
          <progress class="large" max={1} value={share} aria-label="Rows read of those expected" />
        )}
        <div class="row wide-gap">
          {facts
            .filter(([, value]) => value)
            .map(([name, value]) => (
              <span key={name}>
                <span class="muted">{name}</span> <strong>{value}</strong>
              </span>
            ))}
          {share !== null && <span class="muted">{Math.floor(share * 100)} %</span>}
        </div>
      </div>
    </Card>
  )
}

function RunFacts({ run }: { run: RunDetail }): JSX.Element {
  return (
    <div class="columns">
      <Card title="Recorded">
        <Facts
          of={[
            ['Batch', run.batch && <code key="batch">{run.batch}</code>],
            ['Source from', run.source_from && <code key="from">{run.source_from}</code>],
            ['Source to', run.source_to && <code key="to">{run.source_to}</code>],
            ['Slot', run.slot && <Time key="slot" at={run.slot} inline />],
            ['Target', run.target],
            ['Mode', run.mode],
            ['Path', run.path],
            ['Left out before', run.overdue?.join(', ')],
          ]}
        />
      </Card>
      <Card title="Process">
        <Facts
          of={[
            [
              'Run',
              <span key="id" class="row">
                <code>{run.run_id}</code>
                <CopyButton text={run.run_id} label="Copy the run's id" />
              </span>,
            ],
            ['Started', <Time key="started" at={run.started_at} inline />],
            ['Ended', run.finished_at && <Time key="ended" at={run.finished_at} inline />],
            ['Process', `${run.pid} on ${run.host}`],
            ['Engine', run.engine],
            ['Code', run.code_version && <code key="code">{run.code_version}</code>],
            ['Notes', run.metrics?.notes?.join('\n')],
          ]}
        />
      </Card>
    </div>
  )
}

function RecordedPlan({ run }: { run: RunDetail }): JSX.Element {
  const plan = run.metrics?.plan
  if (plan) return <PlanView plan={plan} />
  return (
    <div class="card">
      <Empty
        title={
          run.status === 'running' ? 'The plan is recorded when the run ends' : 'This run recorded no plan'
        }
      >
        {!run.pipeline.includes(':') && run.trigger !== 'consume' && (
          <a href={`${pageOf.pipeline(run.pipeline)}?view=plan`}>The pipeline's present plan</a>
        )}
      </Empty>
    </div>
  )
}
