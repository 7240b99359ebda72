// What the targets of a run committed, by their ledgers. They are asked when this is opened, and not again by itself.

import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { partsOf, RequestFailed, readJson } from '../../api/client'
import { requireToken } from '../../api/session'
import type { ErrorParts, LedgerEntry, RunLedger, TargetLedger } from '../../api/types'
import { ErrorPanel, Loading } from '../../components/feedback'
import { Card, Scrolling } from '../../components/layout'
import { Time } from '../../components/time'
import { pageOf } from '../../routing/router'
import { countText } from '../../text/numbers'

type Answer = { ledger: RunLedger } | { error: ErrorParts } | null

export function LedgerView({ runId }: { runId: string }): JSX.Element {
  const [answer, setAnswer] = useState<Answer>(null)
  const [asked, setAsked] = useState(1)
  useEffect(() => {
    const request = new AbortController()
    setAnswer(null)
    readJson<RunLedger>(`/runs/${encodeURIComponent(runId)}/ledger`, request.signal).then(
      ledger => setAnswer({ ledger }),
      problem => {
        if (request.signal.aborted) return
        if (problem instanceof RequestFailed && problem.status === 401) requireToken()
        setAnswer({ error: partsOf(problem) })
      },
    )
    return () => request.abort()
  }, [runId, asked])
  const again = () => setAsked(count => count + 1)
  return (
    <>
      <div class="row">
        <span class="muted grow">What the targets committed for this run, read from their ledgers.</span>
        <button type="button" class="button narrow" disabled={answer === null} onClick={again}>
          Read again
        </button>
      </div>
      {answer === null && (
        <div class="card">
          <Loading what="the ledgers" />
          <p class="card-body muted">The targets are asked, which may take some seconds.</p>
        </div>
      )}
      {answer && 'error' in answer && <ErrorPanel error={answer.error} retry={again} />}
      {answer &&
        'ledger' in answer &&
        answer.ledger.targets.map(target => (
          <TargetCard key={target.target} target={target} runId={answer.ledger.run_id} />
        ))}
    </>
  )
}

function TargetCard({ target, runId }: { target: TargetLedger; runId: string }): JSX.Element {
  return (
    <Card title={target.target} flush>
      {target.entries.length > 0 && <Entries target={target} runId={runId} />}
      {target.note && <p class="card-body muted">{target.note}</p>}
      {target.error && (
        <div class="card-body">
          <ErrorPanel error={target.error} />
        </div>
      )}
    </Card>
  )
}

function Entries({ target, runId }: { target: TargetLedger; runId: string }): JSX.Element {
  return (
    <Scrolling label={`Ledger entries of ${target.target}`}>
      <table class="grid runs">
        <thead>
          <tr>
            <th>Batch</th>
            <th>Committed</th>
            <th class="number">Read</th>
            <th class="number">Inserted</th>
            <th class="number">Updated</th>
            <th class="number">Deleted</th>
            <th>Source range</th>
          </tr>
        </thead>
        <tbody>
          {target.entries.map(entry => (
            <tr key={entry.batch_key}>
              <td class="run-name">
                <code class="break">{entry.batch_key}</code>
                <div class="small muted break">
                  {entry.pipeline}, {entry.target}
                </div>
                {isOfAnotherRun(entry, runId) && (
                  <div class="small">
                    by <a href={pageOf.run(entry.run_id)}>run {entry.run_id.slice(0, 8)}</a>
                  </div>
                )}
              </td>
              <td class="cell-at">
                <Time at={entry.committed_at} />
              </td>
              <td class="number" data-label="read">
                {countText(entry.rows_read)}
              </td>
              <td class="number" data-label="inserted">
                {countText(entry.rows_inserted)}
              </td>
              <td class="number" data-label="updated">
                {countText(entry.rows_updated)}
              </td>
              <td class="number" data-label="deleted">
                {countText(entry.rows_deleted)}
              </td>
              <td class="small break cell-below">{rangeText(entry)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}

/** A batch of a stream has an id of its own, which no run has. */
export function isOfAnotherRun(entry: LedgerEntry, runId: string): boolean {
  return entry.run_id !== runId && !/^(stream|dlq):/.test(entry.batch_key)
}

export function rangeText(range: { source_from: string | null; source_to: string | null }): string {
  if (!range.source_from && !range.source_to) return 'the whole source'
  return `${range.source_from ?? 'the beginning'} → ${range.source_to ?? 'the end'}`
}
