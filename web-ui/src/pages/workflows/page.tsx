// Workflows: what starts them, how their pipelines stand, and what they wait for.

import type { JSX } from 'preact'
import { useQuery } from '../../api/queries'
import type { Trigger, Workflow } from '../../api/types'
import { Empty, WithData } from '../../components/feedback'
import { FilterText } from '../../components/fields'
import { Card, Facts, Page } from '../../components/layout'
import { Status, StatusIcon, statusText } from '../../components/status'
import { Time } from '../../components/time'
import { pageOf, queryValue } from '../../routing/router'

export function WorkflowsPage(): JSX.Element {
  const query = useQuery<{ items: Workflow[] }>('/workflows', { kinds: ['run', 'slot'], every: 60_000 })
  const search = queryValue('q').toLowerCase()
  return (
    <Page title="Workflows" tabTitle="Workflows">
      <WithData query={query} what="workflows">
        {({ items }) => {
          const found = items.filter(each =>
            `${each.workflow} ${each.jobs.join(' ')}`.toLowerCase().includes(search),
          )
          if (items.length === 0) {
            return (
              <div class="card">
                <Empty title="The module declares no workflow">
                  A workflow runs several pipelines together: <code>ematix.workflow(…)</code>.
                </Empty>
              </div>
            )
          }
          return (
            <>
              {items.length > 6 && (
                <div class="filters">
                  <FilterText name="q" label="Workflow or pipeline" isSearch />
                </div>
              )}
              {found.length === 0 && <Empty title="No workflow matches" />}
              <div class="columns">
                {found.map(workflow => (
                  <WorkflowCard key={workflow.workflow} workflow={workflow} />
                ))}
              </div>
            </>
          )
        }}
      </WithData>
    </Page>
  )
}

function WorkflowCard({ workflow }: { workflow: Workflow }): JSX.Element {
  const states = new Map((workflow.jobs_state ?? []).map(each => [each.pipeline, each.status]))
  return (
    <Card title={workflow.workflow} tools={<Status status={workflow.outcome} />}>
      <div class="stack">
        <Facts
          of={[
            ['Starts', startText(workflow)],
            ['Last fired', workflow.slot && <Time key="last" at={workflow.slot.at} inline />],
            ['Next', workflow.next_due && <Time key="next" at={workflow.next_due} inline sense="next" />],
            ['Waits for', workflow.waits_for.length > 0 && workflow.waits_for.join('; ')],
            ['Reason', workflow.slot?.reason],
            [
              'Graph',
              <a key="graph" href={pageOf.graphOf(`workflow:${workflow.workflow}`)}>
                with what is before and after it
              </a>,
            ],
          ]}
        />
        <ul class="row" aria-label={`Pipelines of ${workflow.workflow}`}>
          {workflow.jobs.map(job => (
            <li key={job}>
              <a class="job" href={pageOf.pipeline(job)}>
                <StatusIcon status={states.get(job)} size={14} /> {job}
                <span class="hidden-text">, {statusText(states.get(job))}</span>
              </a>
            </li>
          ))}
        </ul>
      </div>
    </Card>
  )
}

function startText(workflow: Workflow): string {
  const parts: string[] = []
  if (workflow.schedule) parts.push(`at ${workflow.schedule} ${workflow.timezone ?? 'UTC'}`)
  if (workflow.triggered_by) parts.push(`after ${triggerText(workflow.triggered_by)}`)
  return parts.join(', and ') || 'by hand'
}

/** orders and (customers or suppliers) */
export function triggerText(trigger: Trigger, isInner = false): string {
  const join = /any|or/i.test(trigger.kind) ? ' or ' : ' and '
  const text = trigger.members
    .map(member => (typeof member === 'string' ? member : triggerText(member, true)))
    .join(join)
  return isInner && trigger.members.length > 1 ? `(${text})` : text
}
