// A plan: what a run reads, decides, changes and executes, with its SQL.

import type { JSX } from 'preact'
import type { Plan, PlanTarget } from '../../api/types'
import { Code } from '../../components/code'
import { Empty } from '../../components/feedback'
import { Card, Facts, Scrolling } from '../../components/layout'

export function PlanView({ plan }: { plan: Plan }): JSX.Element {
  const targets = plan.targets ?? []
  return (
    <>
      {plan.source && (
        <Card title="Source">
          <div class="stack">
            <Facts
              of={[
                ['Connection', plan.source.connection],
                ['Kind', plan.source.kind],
                ['Read', plan.read],
                [
                  'Columns',
                  plan.source.columns?.map(column => `${column.name} ${column.type ?? ''}`.trim()).join(', '),
                ],
                ['Python functions', plan.functions?.join(', ')],
                ['Probes before', plan.probes_pre?.join(', ')],
              ]}
            />
            {plan.source.sql && <Code text={plan.source.sql} label="SQL of the source" />}
          </div>
        </Card>
      )}
      {targets.map(target => (
        <TargetPlanCard key={target.target} target={target} />
      ))}
      {(plan.post?.length ?? 0) > 0 && (
        <Card title="After the load">
          <ol class="stack">
            {plan.post?.map((step, index) => (
              <li key={index}>
                <div class="muted small">{step.kind}</div>
                <Code text={step.text} label={`step ${index + 1} after the load`} />
              </li>
            ))}
          </ol>
        </Card>
      )}
      {!plan.source && targets.length === 0 && <Empty title="The plan is empty" />}
    </>
  )
}

function TargetPlanCard({ target }: { target: PlanTarget }): JSX.Element {
  return (
    <Card
      title={target.target}
      tools={
        <span class="row">
          <span class="tag">{target.mode}</span>
          <span class="tag">{target.path}</span>
          <span class="tag">{target.guarantee}</span>
        </span>
      }
    >
      <div class="stack">
        {target.warnings?.map(warning => (
          <div key={warning} class="note wait">
            {warning}
          </div>
        ))}
        <Facts
          of={[
            ['Range', target.range],
            ['Expectations', target.expectations?.map(each => `${each.rule} (${each.action})`).join(', ')],
            ['Quarantine', target.quarantine],
          ]}
        />
        <Choices target={target} />
        {target.changes?.length > 0 && (
          <div class="stack">
            <h3>Changes of the table</h3>
            {target.changes.map((change, index) => (
              <div key={index}>
                <div>
                  {change.action} <strong>{change.subject}</strong>
                </div>
                {change.sql && <Code text={change.sql} label={`SQL to ${change.action} ${change.subject}`} />}
              </div>
            ))}
          </div>
        )}
        {target.stages?.length > 0 && (
          <div class="stack">
            <h3>Stages</h3>
            {target.stages.map(stage => (
              <details key={stage.stage} open={target.stages.length < 4}>
                <summary>{stage.stage}</summary>
                <Code text={stage.does.join('\n')} label={`stage ${stage.stage}`} />
              </details>
            ))}
          </div>
        )}
      </div>
    </Card>
  )
}

/** The decisions and the tuning of a load, each with its reason. */
function Choices({ target }: { target: PlanTarget }): JSX.Element | null {
  if (!target.choices?.length) return null
  return (
    <Scrolling label={`Decisions for ${target.target}`}>
      <table class="grid">
        <thead>
          <tr>
            <th>Decision</th>
            <th>Value</th>
            <th>Why</th>
          </tr>
        </thead>
        <tbody>
          {target.choices.map(choice => (
            <tr key={choice.name}>
              <td class="tight">{choice.name}</td>
              <td class="break">
                <strong>{String(choice.value)}</strong>
              </td>
              <td class="break muted">{choice.reason}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolling>
  )
}
