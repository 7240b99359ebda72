// Runs, newest first, by filters that live in the address.

import type { JSX } from 'preact'
import { useMemo } from 'preact/hooks'
import { withQuery } from '../../api/client'
import { usePages } from '../../api/pages'
import type { ListedRun } from '../../api/types'
import { Empty, ErrorPanel, Loading } from '../../components/feedback'
import { FilterSelect, FilterText } from '../../components/fields'
import { Page } from '../../components/layout'
import { LoadMore } from '../../components/more'
import { useRowCursor } from '../../keyboard'
import { navigate, pageOf, queryValue } from '../../routing/router'
import { startOf } from '../../text/times'
import { RunTable } from './run_table'

const STATUSES: [string, string][] = [
  ['', 'any'],
  ['running', 'running'],
  ['failed', 'failed'],
  ['succeeded', 'succeeded'],
  ['skipped', 'skipped'],
  ['interrupted', 'interrupted'],
  ['cancelled', 'cancelled'],
  ['locked', 'locked'],
]
const SPANS: [string, string][] = [
  ['', 'any time'],
  ['1h', 'the last hour'],
  ['24h', 'the last 24 hours'],
  ['7d', 'the last 7 days'],
  ['30d', 'the last 30 days'],
]
const TRIGGERS: [string, string][] = [
  ['', 'anything'],
  ['schedule', 'the schedule'],
  ['cli', 'a command'],
  ['web', 'this page'],
  ['mcp', 'an assistant'],
  ['sync', 'Python'],
  ['consume', 'flow consume'],
]

const LEAST = 20

export function RunsPage(): JSX.Element {
  const span = queryValue('since')
  const since = useMemo(() => startOf(span, new Date()), [span])
  const path = withQuery('/runs', {
    pipeline: queryValue('pipeline'),
    status: queryValue('status'),
    since,
    until: queryValue('until'),
    text: queryValue('text'),
    trigger: queryValue('trigger'),
    limit: 50,
  })
  const pages = usePages<ListedRun>(path, run => run.run_id, { kinds: ['run', 'hold'] }, LEAST)
  const runs = pages.items ?? []
  const cursor = useRowCursor(
    runs.map(run => run.run_id),
    id => navigate(pageOf.run(id)),
  )
  return (
    <Page title="Runs" tabTitle="Runs">
      <div class="filters">
        <FilterText name="text" label="Text in the error" placeholder="timeout, column, a table …" isSearch />
        <FilterText name="pipeline" label="Pipeline" />
        <FilterSelect name="status" label="Status" options={STATUSES} />
        <FilterSelect name="since" label="Started in" options={SPANS} />
        <FilterSelect name="trigger" label="Started by" options={TRIGGERS} />
      </div>
      {pages.error && <ErrorPanel error={pages.error} retry={pages.refresh} />}
      {!pages.items && !pages.error && (
        <div class="card">
          <Loading what="runs" />
        </div>
      )}
      {pages.items && (
        <div class="card">
          {runs.length > 0 ? (
            <RunTable runs={runs} cursor={cursor} />
          ) : pages.isLoadingMore ? (
            <Loading what="older runs" />
          ) : (
            <Empty title="No run matches">
              <a class="button" href="/runs">
                Show all runs
              </a>
            </Empty>
          )}
          <LoadMore pages={pages} what="runs" />
        </div>
      )}
    </Page>
  )
}
