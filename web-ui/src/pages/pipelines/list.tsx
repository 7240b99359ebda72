// All pipelines: those that fail first.

import type { JSX } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import { ActionButton } from '../../actions/action_button'
import { withQuery } from '../../api/client'
import { usePages } from '../../api/pages'
import type { Pipeline } from '../../api/types'
import { RunBars, Sparkline } from '../../components/bars'
import { Empty, ErrorPanel, Loading } from '../../components/feedback'
import { FilterText } from '../../components/fields'
import { Page, Scrolling } from '../../components/layout'
import { useRowsInView } from '../../components/more'
import { Status } from '../../components/status'
import { useRowCursor } from '../../keyboard'
import { navigate, pageOf, queryValue, setQuery } from '../../routing/router'
import { plural } from '../../text/numbers'
import { FreshnessText, LastRun, NextFire, ProgressLine, slotText } from './parts'
import { runAction } from './pipeline_actions'
import { GROUPS, isFailing, isIn, isSelector, matches, ordered, standing } from './standing'

export function PipelinesPage(): JSX.Element {
  const search = queryValue('q').trim()
  const group = queryValue('state') || 'all'
  const selects = isSelector(search)
  const path = withQuery('/pipelines', { select: selects ? search : null })
  const pages = usePages<Pipeline>(
    path,
    each => each.pipeline,
    { kinds: ['run', 'slot', 'hold'], every: 60_000 },
    Number.POSITIVE_INFINITY,
  )
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set())

  const words = selects ? [] : search.toLowerCase().split(/\s+/).filter(Boolean)
  const found = useMemo(
    () => ordered((pages.items ?? []).filter(each => matches(each, words))),
    [pages.items, words.join(' ')],
  )
  const shown = useMemo(() => found.filter(each => isIn(group, each)), [found, group])
  const [rows, end] = useRowsInView(shown, `${path} ${group} ${words.join(' ')}`)
  const toggle = (name: string) => {
    const next = new Set(selected)
    if (!next.delete(name)) next.add(name)
    setSelected(next)
  }
  const cursor = useRowCursor(
    rows.map(each => each.pipeline),
    name => navigate(pageOf.pipeline(name)),
    toggle,
  )

  return (
    <Page title="Pipelines" tabTitle="Pipelines">
      <div class="filters">
        <FilterText
          name="q"
          label="Search, or a selector of the command line"
          placeholder="orders   tag:nightly   +orders+   source:shop"
          isSearch
        />
        <fieldset class="segments" aria-label="State">
          {GROUPS.map(([value, label]) => {
            const number = found.filter(each => isIn(value, each)).length
            return (
              <button
                key={value}
                type="button"
                aria-pressed={value === group}
                onClick={() => setQuery({ state: value === 'all' ? null : value })}
              >
                {label} <span class={value === 'failing' && number > 0 ? 'tone-bad' : 'muted'}>{number}</span>
              </button>
            )
          })}
        </fieldset>
      </div>
      {pages.error && <ErrorPanel error={pages.error} retry={pages.refresh} />}
      {!pages.items && !pages.error && (
        <div class="card">
          <Loading what="pipelines" />
        </div>
      )}
      {pages.items && (
        <div class="card">
          {rows.length > 0 ? (
            <PipelineTable rows={rows} cursor={cursor} selected={selected} toggle={toggle} />
          ) : (
            <NothingFound isFiltered={search !== '' || group !== 'all'} />
          )}
          {end}
        </div>
      )}
      {selected.size > 0 && <SelectionBar selected={[...selected]} clear={() => setSelected(new Set())} />}
    </Page>
  )
}

function NothingFound({ isFiltered }: { isFiltered: boolean }): JSX.Element {
  if (!isFiltered) {
    return (
      <Empty title="The module declares no pipeline">
        Declare one with <code>@ematix.pipeline</code>, then start flow web again.
      </Empty>
    )
  }
  return (
    <Empty title="No pipeline matches">
      <button type="button" class="button" onClick={() => setQuery({ q: null, state: null })}>
        Show all
      </button>
    </Empty>
  )
}

function PipelineTable({
  rows,
  cursor,
  selected,
  toggle,
}: {
  rows: Pipeline[]
  cursor: string | null
  selected: ReadonlySet<string>
  toggle: (name: string) => void
}): JSX.Element {
  return (
    <Scrolling label="Pipelines">
      <table class="grid pipelines">
        <thead>
          <tr>
            <th class="tight">
              <span class="hidden-text">Selected</span>
            </th>
            <th>Pipeline</th>
            <th>State</th>
            <th class="cell-bars">Last 30 runs</th>
            <th>Last run</th>
            <th>Next</th>
            <th class="cell-fresh">Data age</th>
            <th class="cell-days">Rows a day</th>
            <th class="tight">
              <span class="hidden-text">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map(each => (
            <PipelineRow
              key={each.pipeline}
              pipeline={each}
              isCursor={cursor === each.pipeline}
              isSelected={selected.has(each.pipeline)}
              toggle={toggle}
            />
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}

function PipelineRow({
  pipeline,
  isCursor,
  isSelected,
  toggle,
}: {
  pipeline: Pipeline
  isCursor: boolean
  isSelected: boolean
  toggle: (name: string) => void
}): JSX.Element {
  const name = pipeline.pipeline
  const slot = slotText(pipeline)
  const last = pipeline.last_run
  return (
    <tr class={isCursor ? 'is-cursor' : ''}>
      <td class="tight cell-select">
        <input
          type="checkbox"
          aria-label={`Select ${name}`}
          checked={isSelected}
          onChange={() => toggle(name)}
        />
      </td>
      <td class="cell-name">
        <a class="cell-main" href={pageOf.pipeline(name)}>
          {name}
        </a>
        <span class="tags">
          {pipeline.tags.map(tag => (
            <a key={tag} class="tag" href={`/?q=${encodeURIComponent(`tag:${tag}`)}`}>
              {tag}
            </a>
          ))}
        </span>
        {pipeline.why ? (
          <div class={`why${isFailing(pipeline) ? '' : ' calm'}`}>{pipeline.why}</div>
        ) : (
          pipeline.description && <div class="why calm phone-hide">{pipeline.description}</div>
        )}
      </td>
      <td class="cell-state">
        <Status status={standing(pipeline)} />
        {last?.status === 'running' && <ProgressLine runId={last.run_id} known={last.metrics?.progress} />}
        {slot && <span class="muted small second-line">{slot}</span>}
        {pipeline.hold && !pipeline.hold.held_run && (
          <span class="tone-held small second-line">runs paused</span>
        )}
      </td>
      <td class="cell-bars">
        <RunBars bars={pipeline.bars ?? []} />
      </td>
      <td class="cell-last">
        <LastRun pipeline={pipeline} />
      </td>
      <td class="cell-next">
        <NextFire pipeline={pipeline} />
      </td>
      <td class="cell-fresh">
        <FreshnessText freshness={pipeline.freshness} />
      </td>
      <td class="cell-days">
        <Sparkline days={pipeline.rows_per_day ?? []} />
      </td>
      <td class="tight cell-act">
        <ActionButton {...runAction(pipeline)} narrow />
      </td>
    </tr>
  )
}

function SelectionBar({ selected, clear }: { selected: string[]; clear: () => void }): JSX.Element {
  const many = plural(selected.length, 'pipeline')
  const names = <p class="muted break">{selected.join(', ')}</p>
  return (
    <section class="selection-bar" aria-label="Selected pipelines">
      <strong>{many} selected</strong>
      <ActionButton
        kind="run"
        subjects={selected.slice(0, 1)}
        actionArguments={{ select: selected.slice(1) }}
        label="Run"
        look="primary"
        confirmLabel={`Run ${many}`}
        consequence={
          <>
            <p>This runs {many} now, in the order of their dependencies.</p>
            {names}
          </>
        }
        options={[
          { name: 'with_downstream', label: 'Then run what depends on them, in order', kind: 'flag' },
        ]}
        onDone={clear}
      />
      <ActionButton
        kind="pause_schedule"
        subjects={selected}
        consequence={
          <>
            <p>Due slots of {many} wait until the schedule is resumed. Runs that work now go on.</p>
            {names}
          </>
        }
        options={[{ name: 'reason', label: 'Reason, for the others', kind: 'text' }]}
        onDone={clear}
      />
      <ActionButton
        kind="resume_schedule"
        subjects={selected}
        consequence={
          <>
            <p>The schedules fire again; slots that waited follow each pipeline's catch-up rule.</p>
            {names}
          </>
        }
        onDone={clear}
      />
      <button type="button" class="button quiet" onClick={clear}>
        Clear the selection
      </button>
    </section>
  )
}
