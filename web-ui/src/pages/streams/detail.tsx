// One stream: live charts over a chosen span, and what can be done with it.

import type { JSX } from 'preact'
import { useMemo } from 'preact/hooks'
import type { ActionButtonProps } from '../../actions/action_button'
import { ActionList } from '../../actions/action_list'
import { useQuery } from '../../api/queries'
import type { ListedRun, Sample, Page as ServerPage, Stream } from '../../api/types'
import { Chart, type ChartData, summary } from '../../components/chart'
import { Empty, ErrorPanel, WithData } from '../../components/feedback'
import { Segments } from '../../components/fields'
import { Card, Facts, Page, Tiles } from '../../components/layout'
import { Status } from '../../components/status'
import { Ago, Duration, Time } from '../../components/time'
import { pageOf, queryValue } from '../../routing/router'
import { bytesText, countText, rateText, rowsText, shortCount } from '../../text/numbers'
import { durationText } from '../../text/times'
import { HoldNote } from '../pipelines/parts'
import { errorOf } from '../runs/run_error'
import { RunTable } from '../runs/run_table'
import { lagText, lettersOf } from './list'
import { chartsOf, hasValues, lagOf, rateOf } from './samples'

const SPANS: [string, string][] = [
  ['15m', '15 min'],
  ['1h', '1 hour'],
  ['6h', '6 hours'],
  ['24h', '24 hours'],
  ['7d', '7 days'],
]

export function StreamPage({ name }: { name: string }): JSX.Element {
  const query = useQuery<{ items: Stream[] }>('/streams', { kinds: ['run', 'stream', 'hold'], every: 10_000 })
  const stream = query.data?.items.find(each => each.name === name)
  return (
    <Page
      title={name}
      tabTitle={name}
      crumbs={[{ label: 'Streams', href: '/streams' }]}
      status={stream && <Status status={stream.run?.status} hold={Boolean(stream.hold)} />}
    >
      <WithData query={query} what={`stream ${name}`}>
        {() => (stream ? <StreamView stream={stream} /> : <NoSuchStream name={name} />)}
      </WithData>
    </Page>
  )
}

function NoSuchStream({ name }: { name: string }): JSX.Element {
  return (
    <ErrorPanel
      error={{
        type: 'UnknownName',
        what: `the module declares no stream ${name}`,
        next: 'open Streams, which lists those that it declares',
      }}
    />
  )
}

function streamActions(stream: Stream): ActionButtonProps[] {
  const works = stream.run?.status === 'running'
  const permission = { ok: works, why: works ? null : 'The stream does not run: flow consume starts it.' }
  const pause: ActionButtonProps = stream.hold
    ? {
        kind: 'resume',
        subjects: [stream.name],
        look: 'primary',
        consequence: <p>{stream.name} goes on with its next batch.</p>,
      }
    : {
        kind: 'pause',
        subjects: [stream.name],
        permission,
        consequence: (
          <p>{stream.name} ends its present batch and waits before the next one until it is resumed.</p>
        ),
        options: [{ name: 'reason', label: 'Reason, for the others', kind: 'text' }],
      }
  const stop: ActionButtonProps = {
    kind: 'stop',
    subjects: stream.run ? [stream.run.run_id] : [],
    permission,
    look: 'danger',
    consequence: (
      <p>{stream.name} ends after its present batch, as after Ctrl-C. The next start goes on from there.</p>
    ),
  }
  return [pause, stop]
}

function StreamView({ stream }: { stream: Stream }): JSX.Element {
  const { run } = stream
  const error = run && run.status !== 'running' ? errorOf(run) : null
  return (
    <>
      <ActionList actions={streamActions(stream)} />
      {stream.hold && <HoldNote hold={stream.hold} />}
      {error && <ErrorPanel error={error} />}
      <Now stream={stream} />
      <Charts stream={stream} />
      <History name={stream.name} />
      <Card title="Declaration">
        <Facts
          of={[
            ['Description', stream.description],
            ['Follows', stream.sources.join(', ')],
            ['Loads', stream.targets.map(target => `${target.target} (${target.mode})`).join(', ')],
            ['Bad messages', stream.on_error],
            [
              'Graph',
              <a key="graph" href={pageOf.graphOf(`stream:${stream.name}`)}>
                with what is before and after it
              </a>,
            ],
            ['Declared at', stream.where && <code key="where">{stream.where}</code>],
          ]}
        />
      </Card>
    </>
  )
}

function Now({ stream }: { stream: Stream }): JSX.Element {
  const { run, sample } = stream
  const letters = lettersOf(stream)
  const works = run?.status === 'running'
  return (
    <Tiles
      of={[
        [
          'Runs',
          run ? <Duration seconds={run.duration_seconds} since={run.started_at} /> : 'never ran',
          run && <a href={pageOf.run(run.run_id)}>run {run.run_id.slice(0, 8)}</a>,
        ],
        [
          'Rows read',
          works ? rateText(rateOf(sample)) : '',
          sample && (
            <>
              sampled <Ago at={sample.at} />
            </>
          ),
        ],
        ['Lag', works ? lagText(lagOf(sample), sample?.lag_unit) : ''],
        [
          'Watermark',
          sample?.watermark ? (
            <span class="tile-text">
              <Time at={sample.watermark} />
            </span>
          ) : (
            ''
          ),
        ],
        [
          'State',
          sample?.state_rows == null ? '' : rowsText(sample.state_rows),
          bytesText(sample?.state_bytes),
        ],
        [
          'Dead letters',
          stream.dead_letters ? (
            <a key="letters" href={pageOf.lettersOf(stream.name)} class={letters.open ? 'tone-bad' : ''}>
              {countText(letters.open)}
            </a>
          ) : (
            ''
          ),
          letters.parked ? `${countText(letters.parked)} parked` : '',
        ],
      ]}
    />
  )
}

function Charts({ stream }: { stream: Stream }): JSX.Element {
  const span = queryValue('span') || '1h'
  const path = `/streams/${encodeURIComponent(stream.name)}/samples?span=${encodeURIComponent(span)}`
  const query = useQuery<{ samples: Sample[] }>(path, {
    kinds: ['stream'],
    about: stream.name,
    every: 10_000,
  })
  const samples = query.data?.samples
  const charts = useMemo(() => chartsOf(samples ?? []), [samples])
  const unit = stream.sample?.lag_unit ?? samples?.find(each => each.lag_unit)?.lag_unit
  const seconds = (value: number) => durationText(value) || '0 s'
  return (
    <section class="stack" aria-label="Charts">
      <div class="row">
        <h2>Over time</h2>
        <Segments name="span" label="Span" options={SPANS} usual="1h" />
        <span class="muted small">times are UTC</span>
      </div>
      <WithData query={query} what="samples">
        {() =>
          samples?.length ? (
            <div class="chart-grid">
              <ChartCard title="Rows a second" data={charts.rates} format={shortRate} />
              <ChartCard
                title={`Lag${unit ? ` in ${unit}` : ''}`}
                data={charts.lag}
                format={unit === 'seconds' ? seconds : shortCount}
              />
              <ChartCard title="Phases of a batch" data={charts.phases} format={seconds} stacked />
              <ChartCard title="Watermark behind the clock" data={charts.watermark} format={seconds} />
              <ChartCard title="State, rows" data={charts.stateRows} format={shortCount} />
              <ChartCard title="State, bytes" data={charts.stateBytes} format={bytesText} />
              <ChartCard title="New dead letters" data={charts.letters} format={shortCount} />
            </div>
          ) : (
            <div class="card">
              <Empty title="There are no samples in this span">
                A running stream records one every 10 seconds.
              </Empty>
            </div>
          )
        }
      </WithData>
    </section>
  )
}

function shortRate(value: number): string {
  return value > 0 && value < 10 ? value.toFixed(1) : shortCount(Math.round(value))
}

function ChartCard({
  title,
  data,
  format,
  stacked = false,
}: {
  title: string
  data: ChartData
  format: (value: number) => string
  stacked?: boolean
}): JSX.Element | null {
  if (!hasValues(data)) return null
  return (
    <section class="card chart-card">
      <div class="card-head">
        <h3>{title}</h3>
        <span class="grow" />
        {data.lines.length < 3 && <span class="muted small">{summary(data, format)}</span>}
      </div>
      <Chart data={data} label={title} format={format} stacked={stacked} />
    </section>
  )
}

function History({ name }: { name: string }): JSX.Element {
  const query = useQuery<ServerPage<ListedRun>>(`/runs?pipeline=${encodeURIComponent(name)}&limit=10`, {
    kinds: ['run', 'hold'],
    about: name,
  })
  return (
    <Card title="Runs" flush tools={<a href={pageOf.runsOf(name)}>All, with filters</a>}>
      <WithData query={query} what="runs">
        {({ items }) =>
          items.length ? <RunTable runs={items} withPipeline={false} /> : <Empty title="It has not run yet" />
        }
      </WithData>
    </Card>
  )
}
