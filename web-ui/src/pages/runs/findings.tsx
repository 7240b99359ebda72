// What a run found and did: targets with their counts, steps after the load, expectations, probes.

import type { JSX } from 'preact'
import type { PostStep, RunDetail, TargetResult } from '../../api/types'
import { Code } from '../../components/code'
import { ErrorPanel } from '../../components/feedback'
import { Card, Scrolling } from '../../components/layout'
import { Status } from '../../components/status'
import { countText } from '../../text/numbers'
import { durationText } from '../../text/times'

export function Targets({ run }: { run: RunDetail }): JSX.Element | null {
  const targets = run.metrics?.targets ?? []
  if (targets.length === 0) return null
  const severalFailed = targets.length > 1
  return (
    <Card title={targets.length === 1 ? 'Target' : 'Targets'} flush>
      <Scrolling label="Targets">
        <table class="grid targets">
          <thead>
            <tr>
              <th>Target</th>
              <th>Status</th>
              <th>Mode</th>
              <th>Path</th>
              <th class="number">Read</th>
              <th class="number">Inserted</th>
              <th class="number">Updated</th>
              <th class="number">Deleted</th>
              <th class="number">Unchanged</th>
              <th class="number">Quarantined</th>
              <th>Range</th>
            </tr>
          </thead>
          <tbody>
            {targets.map(target => (
              <tr key={target.target}>
                <td class="cell-main">{target.target}</td>
                <td>
                  <Status status={target.status} />
                  {target.reason && target.status !== 'failed' && (
                    <div class="small muted">{target.reason}</div>
                  )}
                </td>
                <td>{target.mode}</td>
                <td>{target.path}</td>
                <td class="number">{countText(target.rows_read)}</td>
                <td class="number">{countText(target.rows_inserted)}</td>
                <td class="number">{countText(target.rows_updated)}</td>
                <td class="number">{countText(target.rows_deleted)}</td>
                <td class="number">{countText(target.rows_unchanged)}</td>
                <td class="number">{countText(target.rows_quarantined)}</td>
                <td class="small">{rangeText(target)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolling>
      {severalFailed &&
        targets
          .filter(target => target.error)
          .map(target => (
            <div key={target.target} class="card-body">
              <h3>{target.target}</h3>
              {target.error && <ErrorPanel error={target.error} />}
            </div>
          ))}
    </Card>
  )
}

function rangeText(target: TargetResult): string {
  if (!target.source_from && !target.source_to) return ''
  return `${target.source_from ?? 'the beginning'} → ${target.source_to ?? 'the end'}`
}

export function PostSteps({ steps }: { steps: PostStep[] | undefined }): JSX.Element | null {
  if (!steps?.length) return null
  return (
    <Card title="Steps after the load" flush>
      <table class="grid">
        <thead>
          <tr>
            <th>Step</th>
            <th>Status</th>
            <th class="number">Took</th>
          </tr>
        </thead>
        <tbody>
          {steps.map((step, index) => (
            <tr key={index}>
              <td class="break">{step.label ?? step.step}</td>
              <td>
                <Status status={step.status ?? step.outcome} />
              </td>
              <td class="number">{durationText(step.seconds)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  )
}

const VERDICTS: Record<string, string> = { pass: 'ok', fail: 'failed', warn: 'late', error: 'error' }

export function Expectations({ targets }: { targets: TargetResult[] | undefined }): JSX.Element | null {
  const found = (targets ?? []).flatMap(target => (target.expectations ?? []).map(each => ({ target, each })))
  if (found.length === 0) return null
  const passed = found.filter(({ each }) => each.verdict === 'pass').length
  return (
    <Card title={`Expectations: ${passed} of ${found.length} pass`} flush>
      <Scrolling label="Expectations">
        <table class="grid">
          <thead>
            <tr>
              <th>Expectation</th>
              <th>Verdict</th>
              <th>Otherwise</th>
              <th class="number">Failing</th>
              <th class="number">Checked</th>
              <th>Target</th>
            </tr>
          </thead>
          <tbody>
            {found.map(({ target, each }, index) => (
              <tr key={index}>
                <td class="break">
                  {text(each.rule)}
                  {each.verdict !== 'pass' && each.message ? (
                    <div class="why">{text(each.message)}</div>
                  ) : null}
                </td>
                <td>
                  <Status status={VERDICTS[text(each.verdict)] ?? null} label={text(each.verdict)} />
                </td>
                <td>{text(each.action)}</td>
                <td class="number">{countText(each.failing as number | null)}</td>
                <td class="number">{countText(each.checked as number | null)}</td>
                <td>{target.target}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scrolling>
    </Card>
  )
}

export function Probes({ reports }: { reports: Record<string, unknown>[] | undefined }): JSX.Element | null {
  if (!reports?.length) return null
  return (
    <Card title="Probes">
      <ul class="stack">
        {reports.map((report, index) => (
          <li key={index}>
            <Status
              status={VERDICTS[text(report.verdict)] ?? null}
              label={`${text(report.probe_name)}: ${text(report.verdict)}`}
            />
            <ul>
              {failing(report).map(each => (
                <li key={text(each.name)}>
                  {text(each.name)}: <span class="break">{text(each.message)}</span>
                </li>
              ))}
            </ul>
            <details>
              <summary class="small muted">Report</summary>
              <Code text={JSON.stringify(report, null, 2)} label="report of the probe" />
            </details>
          </li>
        ))}
      </ul>
    </Card>
  )
}

function failing(report: Record<string, unknown>): Record<string, unknown>[] {
  const assertions = Array.isArray(report.assertions) ? (report.assertions as Record<string, unknown>[]) : []
  return assertions.filter(each => each.verdict !== 'pass')
}

function text(value: unknown): string {
  return value === null || value === undefined ? '' : String(value)
}
