// Actions: who asked for what, when, and what came of it.

import type { JSX } from 'preact'
import { withQuery } from '../../api/client'
import { usePages } from '../../api/pages'
import type { Action } from '../../api/types'
import { Empty, ErrorPanel, Loading } from '../../components/feedback'
import { FilterText, Segments } from '../../components/fields'
import { Page, Scrolling } from '../../components/layout'
import { LoadMore } from '../../components/more'
import { Status } from '../../components/status'
import { Duration, Time } from '../../components/time'
import { pageOf, queryValue } from '../../routing/router'
import { actionName, isUnfinished, shortId, withShortIds } from '../../text/wording'

export function ActionsPage(): JSX.Element {
  const isOnlyUnfinished = queryValue('unfinished') === 'true'
  const path = withQuery('/actions', {
    subject: queryValue('subject'),
    unfinished: isOnlyUnfinished,
    limit: 50,
  })
  const pages = usePages<Action>(path, action => action.action_id, { kinds: ['action'] })
  const actions = pages.items ?? []
  return (
    <Page title="Actions" tabTitle="Actions">
      <div class="filters">
        <FilterText name="subject" label="Pipeline, stream or run" isSearch />
        <Segments
          name="unfinished"
          label="Which"
          options={[
            ['', 'All'],
            ['true', 'Under way'],
          ]}
        />
      </div>
      {pages.error && <ErrorPanel error={pages.error} retry={pages.refresh} />}
      {!pages.items && !pages.error && (
        <div class="card">
          <Loading what="actions" />
        </div>
      )}
      {pages.items && (
        <div class="card">
          {actions.length > 0 ? (
            <ActionTable actions={actions} />
          ) : (
            <Empty title={isOnlyUnfinished ? 'No action is under way' : 'Nobody has asked for an action yet'}>
              Every action is kept here: who asked for it, when, and what came of it.
            </Empty>
          )}
          <LoadMore pages={pages} what="actions" />
        </div>
      )}
    </Page>
  )
}

function ActionTable({ actions }: { actions: Action[] }): JSX.Element {
  return (
    <Scrolling label="Actions">
      <table class="grid actions">
        <thead>
          <tr>
            <th>Action</th>
            <th>On</th>
            <th>Status</th>
            <th>Requested</th>
            <th>By</th>
            <th class="number">Took</th>
            <th class="cell-below">Outcome</th>
          </tr>
        </thead>
        <tbody>
          {actions.map(action => (
            <tr key={action.action_id}>
              <td class="cell-kind">
                {actionName(action.kind)}
                {argumentsText(action) && <div class="small muted wraps">{argumentsText(action)}</div>}
              </td>
              <td class="run-name">
                <a href={subjectPage(action)}>{action.pipeline ?? action.subject}</a>
                {action.pipeline && (
                  <span class="mono small muted second-line">run {shortId(action.subject)}</span>
                )}
              </td>
              <td>
                <Status status={action.status} />
                {isUnfinished(action) && action.holder && (
                  <span class="small muted second-line">{action.holder}</span>
                )}
              </td>
              <td>
                <Time at={action.requested_at} />
              </td>
              <td>
                {action.requested_by} <span class="muted small second-line">{action.via}</span>
              </td>
              <td class="number" data-label="took">
                <Duration
                  seconds={
                    action.ended_at
                      ? (Date.parse(action.ended_at) - Date.parse(action.requested_at)) / 1000
                      : null
                  }
                  since={action.requested_at}
                />
              </td>
              <td class="break cell-below">
                {withShortIds(action.outcome ?? action.why ?? '')}
                {action.run_ids.map(id => (
                  <div key={id}>
                    <a href={pageOf.run(id)}>run {shortId(id)}</a>
                  </div>
                ))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}

function subjectPage(action: Action): string {
  if (action.kind === 'restart') return pageOf.run(action.subject)
  // a stop that gave up a waiting slot without a run is of the pipeline
  if (action.kind === 'stop' && action.pipeline) return pageOf.run(action.subject)
  if (action.kind.endsWith('_letters')) return pageOf.lettersOf(action.subject)
  return pageOf.pipeline(action.subject)
}

/** "with downstream", "3 letters", or a reason. */
export function argumentsText(action: Action): string {
  return Object.entries(action.arguments)
    .map(([name, value]) => {
      if (value === true) return name.replaceAll('_', ' ')
      if (Array.isArray(value))
        return value.length > 3
          ? `${value.length} ${name}`
          : `${name} ${value.map(each => shortId(String(each))).join(', ')}`
      return name === 'reason' ? String(value) : `${name} ${String(value)}`
    })
    .join(', ')
}
