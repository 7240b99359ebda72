// Connections, with secrets masked by the server, and a check of each.

import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { partsOf, post } from '../../api/client'
import { useQuery } from '../../api/queries'
import { refusal } from '../../api/session'
import type { Connection, ConnectionCheck, ErrorParts } from '../../api/types'
import { Empty, ErrorPanel, WithData } from '../../components/feedback'
import { Page, Scrolling } from '../../components/layout'
import { Status } from '../../components/status'
import { durationText } from '../../text/times'

type Result = 'checking' | ConnectionCheck | { failure: ErrorParts }

export function ConnectionsPage(): JSX.Element {
  const query = useQuery<{ items: Connection[] } | Connection[]>('/connections', { kinds: [] })
  const [results, setResults] = useState<Record<string, Result>>({})
  const keep = (name: string, result: Result) => setResults(known => ({ ...known, [name]: result }))
  const check = async (name: string) => {
    keep(name, 'checking')
    try {
      keep(name, await post<ConnectionCheck>(`/connections/${encodeURIComponent(name)}/check`))
    } catch (problem) {
      keep(name, { failure: partsOf(problem) })
    }
  }
  const checkAll = async (names: string[]) => {
    for (const name of names) await check(name)
  }
  const found = query.data && (Array.isArray(query.data) ? query.data : query.data.items)
  const refused = refusal()
  const names = (found ?? []).filter(each => !each.problem).map(each => each.name)
  return (
    <Page
      title="Connections"
      tabTitle="Connections"
      tools={
        names.length > 0 && (
          <CheckButton
            label="Check all"
            refused={refused}
            isBusy={false}
            check={() => void checkAll(names)}
          />
        )
      }
    >
      <div class="card">
        <WithData query={query} what="connections">
          {() =>
            found?.length ? (
              <Scrolling label="Connections">
                <table class="grid">
                  <thead>
                    <tr>
                      <th>Name</th>
                      <th>Kind</th>
                      <th>Leads to</th>
                      <th>Defined in</th>
                      <th>Check</th>
                    </tr>
                  </thead>
                  <tbody>
                    {found.map(each => (
                      <ConnectionRow
                        key={each.name}
                        connection={each}
                        result={results[each.name]}
                        refused={refused}
                        check={() => void check(each.name)}
                      />
                    ))}
                  </tbody>
                </table>
              </Scrolling>
            ) : (
              <Empty title="No connection is known here">
                Define one: <code>flow connections set NAME url=…</code>
              </Empty>
            )
          }
        </WithData>
      </div>
    </Page>
  )
}

function ConnectionRow({
  connection,
  result,
  refused,
  check,
}: {
  connection: Connection
  result: Result | undefined
  refused: string | null
  check: () => void
}): JSX.Element {
  const fields = Object.entries(connection.fields).filter(([, value]) => value !== null && value !== '')
  return (
    <tr>
      <td class="cell-main">{connection.name}</td>
      <td>{connection.kind ?? '?'}</td>
      <td>
        {connection.problem ? (
          <div class="why">{connection.problem}</div>
        ) : (
          fields.map(([name, value]) => (
            <div key={name} class="small break">
              <span class="muted">{name}</span> {typeof value === 'string' ? value : JSON.stringify(value)}
            </div>
          ))
        )}
      </td>
      <td class="small break">
        {connection.origin.label}
        {connection.shadowed.length > 0 && (
          <div class="muted">hides {connection.shadowed.map(each => each.label).join(', ')}</div>
        )}
      </td>
      <td class="check-cell">
        <CheckButton
          label="Check"
          name={connection.name}
          refused={connection.problem ? 'Its definition is not valid.' : refused}
          isBusy={result === 'checking'}
          check={check}
        />
        <div aria-live="polite">{result && result !== 'checking' && <CheckResult result={result} />}</div>
      </td>
    </tr>
  )
}

function CheckResult({ result }: { result: Exclude<Result, 'checking'> }): JSX.Element {
  if ('failure' in result) return <ErrorPanel error={result.failure} />
  return (
    <div class="stack">
      <Status status={result.result} label={`${result.result} in ${durationText(result.seconds)}`} />
      {result.error ? <ErrorPanel error={result.error} /> : <span class="small break">{result.found}</span>}
    </div>
  )
}

function CheckButton({
  label,
  name,
  refused,
  isBusy,
  check,
}: {
  label: string
  name?: string
  refused: string | null
  isBusy: boolean
  check: () => void
}): JSX.Element {
  return (
    <button
      type="button"
      class="button narrow"
      aria-disabled={refused || isBusy ? 'true' : undefined}
      title={refused ?? undefined}
      onClick={() => !refused && !isBusy && check()}
    >
      {isBusy ? 'Checking …' : label}
      {name && <span class="hidden-text"> {name}</span>}
      {refused && <span class="hidden-text">: not possible, {refused}</span>}
    </button>
  )
}
