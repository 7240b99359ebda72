// Which page an address shows.

import type { ComponentChildren, JSX } from 'preact'
import { lazy, Suspense } from 'preact/compat'
import { openSession, session } from './api/session'
import { Empty, Loading } from './components/feedback'
import { Page } from './components/layout'
import { Shell } from './components/shell'
import { ActionsPage } from './pages/actions/page'
import { ConnectionsPage } from './pages/connections/page'
import { DeadLettersPage } from './pages/dead_letters/list'
import { PipelinePage } from './pages/pipelines/detail'
import { PipelinesPage } from './pages/pipelines/list'
import { RunPage } from './pages/runs/detail'
import { RunsPage } from './pages/runs/list'
import { SchedulePage } from './pages/schedule/page'
import { NoServerPage, SignInPage } from './pages/sign_in'
import { StreamsPage } from './pages/streams/list'
import { WorkflowsPage } from './pages/workflows/page'
import { matchPath, path } from './routing/router'

// charts and the graph's layout are read when a page first needs them
const StreamPage = lazy(() => import('./pages/streams/detail').then(found => found.StreamPage))
const GraphPage = lazy(() => import('./pages/graph/page').then(found => found.GraphPage))

const ROUTES: [pattern: string, draw: (values: Record<string, string>) => JSX.Element][] = [
  ['/', () => <PipelinesPage />],
  ['/pipelines', () => <PipelinesPage />],
  ['/pipelines/:name', ({ name = '' }) => <PipelinePage key={name} name={name} />],
  ['/graph', () => <GraphPage />],
  ['/runs', () => <RunsPage />],
  ['/runs/:id', ({ id = '' }) => <RunPage key={id} id={id} />],
  ['/streams', () => <StreamsPage />],
  ['/streams/:name', ({ name = '' }) => <StreamPage key={name} name={name} />],
  ['/dead-letters', () => <DeadLettersPage />],
  ['/schedule', () => <SchedulePage />],
  ['/workflows', () => <WorkflowsPage />],
  ['/connections', () => <ConnectionsPage />],
  ['/actions', () => <ActionsPage />],
]

export function App(): JSX.Element {
  const state = session.value
  if (state === 'needs token') return <SignInPage />
  if (state === 'failed') return <NoServerPage retry={() => void openSession()} />
  if (state === 'starting') return <Loading what="the page" />
  return (
    <Shell>
      <Suspense fallback={<Loading what="the page" />}>{pageAt(path.value)}</Suspense>
    </Shell>
  )
}

function pageAt(found: string): ComponentChildren {
  for (const [pattern, draw] of ROUTES) {
    const values = matchPath(pattern, found)
    if (values) return draw(values)
  }
  return (
    <Page title="There is no such page" tabTitle="No such page">
      <div class="card">
        <Empty title={`Nothing is at ${found}`}>
          <a href="/">Pipelines</a>
        </Empty>
      </div>
    </Page>
  )
}
