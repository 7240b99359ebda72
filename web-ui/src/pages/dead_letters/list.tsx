// Dead letters: what failed, why, and what becomes of it. The open letter stands in the address.

import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { withQuery } from '../../api/client'
import { usePages } from '../../api/pages'
import { useQuery } from '../../api/queries'
import type { Letter, Stream } from '../../api/types'
import { Empty, ErrorPanel, Loading } from '../../components/feedback'
import { FilterSelect, FilterText } from '../../components/fields'
import { Page, Scrolling } from '../../components/layout'
import { LoadMore } from '../../components/more'
import { Status } from '../../components/status'
import { Time } from '../../components/time'
import { useRowCursor } from '../../keyboard'
import { pageOf, queryValue, setQuery } from '../../routing/router'
import { bytesText, countText } from '../../text/numbers'
import { LetterTools, MatchingTools } from './letter_tools'
import { LetterView } from './letter_view'

interface Count {
  pipeline?: string
  status: string
  letters: number
}

export function DeadLettersPage(): JSX.Element {
  const pipeline = queryValue('pipeline')
  const status = queryValue('status')
  const reason = queryValue('reason')
  const path = withQuery('/dead-letters', { pipeline, status, reason, limit: 50 })
  const pages = usePages<Letter>(path, letter => letter.id, { kinds: ['action', 'stream'], every: 30_000 })
  const letters = pages.items ?? []
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set())
  useEffect(() => setSelected(new Set()), [path])
  const open = queryValue('id')
  const show = (id: string) => setQuery({ id: id === open ? null : id })
  const toggle = (id: string) => {
    const next = new Set(selected)
    if (!next.delete(id)) next.add(id)
    setSelected(next)
  }
  const cursor = useRowCursor(
    letters.map(letter => letter.id),
    show,
    toggle,
  )
  const chosen = letters.filter(letter => selected.has(letter.id))
  return (
    <Page title="Dead letters" tabTitle="Dead letters">
      <div class="filters">
        <FilterText name="reason" label="Text in the reason" placeholder="not a number, column …" isSearch />
        <StreamFilter />
        <FilterSelect
          name="status"
          label="Status"
          options={[
            ['', 'any'],
            ['pending', 'pending'],
            ['parked', 'parked'],
            ['replayed', 'replayed'],
          ]}
        />
      </div>
      <div class="row wide-gap">
        <Counts counts={countsOf(pages.first?.counts, pipeline)} />
        {pipeline && letters.length > 0 && chosen.length === 0 && (
          <MatchingTools stream={pipeline} status={status} reason={reason} />
        )}
      </div>
      {pages.error && <ErrorPanel error={pages.error} retry={pages.refresh} />}
      {!pages.items && !pages.error && (
        <div class="card">
          <Loading what="dead letters" />
        </div>
      )}
      <div class={open ? 'split' : ''}>
        {pages.items && (
          <div class="card">
            {letters.length > 0 ? (
              <LetterTable
                letters={letters}
                cursor={cursor}
                open={open}
                show={show}
                selected={selected}
                toggle={toggle}
                setSelected={setSelected}
              />
            ) : (
              <NoLetters isFiltered={Boolean(pipeline || status || reason)} />
            )}
            <LoadMore pages={pages} what="letters" />
          </div>
        )}
        {open && <LetterView id={open} close={() => setQuery({ id: null })} />}
      </div>
      {chosen.length > 0 && (
        <section class="selection-bar" aria-label="Selected letters">
          <strong>{chosen.length === 1 ? '1 letter' : `${chosen.length} letters`} selected</strong>
          <LetterTools letters={chosen} onDone={() => setSelected(new Set())} />
          <button type="button" class="button quiet" onClick={() => setSelected(new Set())}>
            Clear the selection
          </button>
        </section>
      )}
    </Page>
  )
}

function NoLetters({ isFiltered }: { isFiltered: boolean }): JSX.Element {
  if (!isFiltered) return <Empty title="There are no dead letters">Every message was loaded.</Empty>
  return (
    <Empty title="No dead letter matches">
      <a class="button" href="/dead-letters">
        Show all
      </a>
    </Empty>
  )
}

function StreamFilter(): JSX.Element {
  const streams = useQuery<{ items: Stream[] }>('/streams', { kinds: ['run'] }).data?.items ?? []
  const chosen = queryValue('pipeline')
  const names = streams.map(stream => stream.name)
  if (chosen && !names.includes(chosen)) names.push(chosen)
  const options = names.map((name): [string, string] => [name, name])
  return <FilterSelect name="pipeline" label="Stream" options={[['', 'all'], ...options]} />
}

/** The server counts by stream, stage and status; the page shows statuses. */
export function countsOf(counts: unknown, pipeline: string): [status: string, letters: number][] {
  const found = new Map<string, number>()
  if (Array.isArray(counts)) {
    for (const count of counts as Count[]) {
      if (pipeline && count.pipeline && count.pipeline !== pipeline) continue
      found.set(count.status, (found.get(count.status) ?? 0) + count.letters)
    }
  } else if (counts && typeof counts === 'object') {
    const byStatus =
      (counts as { by_status?: Record<string, number> }).by_status ?? (counts as Record<string, number>)
    for (const [status, letters] of Object.entries(byStatus)) {
      if (typeof letters === 'number') found.set(status, letters)
    }
  }
  return [...found]
}

function Counts({ counts }: { counts: [string, number][] }): JSX.Element | null {
  if (counts.length === 0) return null
  return (
    <ul class="row wide-gap" aria-label="Letters by status">
      {counts.map(([status, number]) => (
        <li key={status}>
          <Status status={status} label={`${countText(number)} ${status}`} />
        </li>
      ))}
    </ul>
  )
}

function LetterTable({
  letters,
  cursor,
  open,
  show,
  selected,
  toggle,
  setSelected,
}: {
  letters: Letter[]
  cursor: string | null
  open: string
  show: (id: string) => void
  selected: ReadonlySet<string>
  toggle: (id: string) => void
  setSelected: (ids: ReadonlySet<string>) => void
}): JSX.Element {
  const isWhole = letters.every(letter => selected.has(letter.id))
  return (
    <Scrolling label="Dead letters">
      <table class="grid">
        <thead>
          <tr>
            <th class="tight">
              <input
                type="checkbox"
                aria-label="Select all that are shown"
                checked={isWhole}
                onChange={() => setSelected(isWhole ? new Set() : new Set(letters.map(letter => letter.id)))}
              />
            </th>
            <th>Reason</th>
            <th>Status</th>
            <th>Failed</th>
            <th>Stream</th>
            <th class="number">Size</th>
          </tr>
        </thead>
        <tbody>
          {letters.map(letter => (
            <tr key={letter.id} class={cursor === letter.id || open === letter.id ? 'is-cursor' : ''}>
              <td class="tight">
                <input
                  type="checkbox"
                  aria-label={`Select letter ${letter.id.slice(0, 12)}`}
                  checked={selected.has(letter.id)}
                  onChange={() => toggle(letter.id)}
                />
              </td>
              <td class="run-name">
                <button
                  type="button"
                  class="link"
                  aria-expanded={open === letter.id}
                  onClick={() => show(letter.id)}
                >
                  {letter.reason}
                </button>
                <div class="small muted">
                  {letter.stage}, {placeText(letter)}
                </div>
              </td>
              <td>
                <Status status={letter.status} />
                {letter.attempt > 1 && <span class="muted small second-line">attempt {letter.attempt}</span>}
              </td>
              <td>
                <Time at={letter.failed_at} />
              </td>
              <td>
                <a href={pageOf.stream(letter.pipeline)}>{letter.pipeline}</a>
              </td>
              <td class="number">{bytesText(letter.payload_size)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}

export function placeText(letter: Letter): string {
  const parts = [
    letter.source,
    letter.partition === null ? null : `partition ${letter.partition}`,
    letter.position,
  ]
  return parts.filter(part => part !== null && part !== undefined && part !== '').join(', ')
}
