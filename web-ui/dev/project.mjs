// An invented project for the development server: pipelines, streams, workflows, runs, with every state that a page
// can show. The same seed gives the same project.

export function makeProject(number) {
  const random = seeded(7)
  const pick = list => list[Math.floor(random() * list.length)]
  const now = Date.now()
  const iso = at => new Date(at).toISOString()
  const id = () => Array.from({ length: 32 }, () => Math.floor(random() * 16).toString(16)).join('')
  const areas = [
    'orders',
    'customers',
    'payments',
    'stock',
    'shipments',
    'clicks',
    'prices',
    'refunds',
    'suppliers',
    'ledger',
    'sessions',
    'invoices',
  ]
  const layers = ['raw', 'clean', 'daily', 'report', 'export']
  const names = []
  for (let round = 0; names.length < number; round += 1) {
    for (const area of areas) {
      for (const layer of layers) {
        if (names.length < number) names.push(round ? `${layer}_${area}_${round}` : `${layer}_${area}`)
      }
    }
  }
  const known = new Set(names)
  const messages = [
    [
      'LoadError',
      'cannot cast "n/a" to DECIMAL(12,2): column amount of shop.payments, row 48,211\n  state: nothing was committed; staging was dropped\n  next:  flow run report_payments  once the source is corrected',
    ],
    [
      'CannotConnect',
      'the warehouse does not answer: connection refused (10.0.4.17:5432)\n  state: nothing was read\n  next:  flow connections check warehouse',
    ],
    [
      'ExpectationFailed',
      'expectation "customer_id is unique" fails for 312 of 1,204,882 rows\n  state: nothing was committed\n  next:  flow quarantine list',
    ],
  ]
  const runs = []
  const pipelines = names.map((name, index) => {
    const [layer, area, round] = name.split('_')
    const upstream = layers[layers.indexOf(layer) - 1]
    const up = upstream ? `${upstream}_${area}${round ? `_${round}` : ''}` : null
    const cross =
      layer === 'report' && area !== 'customers' && known.has('daily_customers') && index % 3 === 0
        ? ['daily_customers']
        : []
    const mood =
      index % 17 === 3 ? 'failing' : index % 23 === 5 ? 'running' : index % 29 === 7 ? 'never' : 'well'
    const base = 4 + random() * 60
    const every = layer === 'raw' ? 3_600_000 : 4 * 3_600_000
    const its = []
    for (let back = 34; back >= 0 && mood !== 'never'; back -= 1) {
      const started = now - back * every - Math.floor(random() * 60_000) - 200_000
      const newest = back === 0
      let status = random() < 0.03 ? 'failed' : random() < 0.03 ? 'skipped' : 'succeeded'
      if (newest && mood === 'failing') status = 'failed'
      if (newest && mood === 'running') status = 'running'
      const seconds = status === 'running' ? null : base * (0.7 + random() * 0.6)
      its.push(
        makeRun({
          name,
          layer,
          area,
          status,
          started,
          seconds,
          slot: started - (started % 3_600_000),
          newest,
        }),
      )
    }
    runs.push(...its)
    const last = its[its.length - 1] ?? null
    return {
      name,
      layer,
      area,
      last,
      its,
      depends: [up, ...cross].filter(each => each && known.has(each)),
      mood,
      every,
      index,
    }
  })

  function makeRun({ name, layer, area, status, started, seconds, slot, trigger = 'schedule' }) {
    const read = Math.floor(2_000 + random() * 900_000)
    const failed = status === 'failed'
    const error = failed ? pick(messages) : null
    const ended = seconds === null ? null : started + seconds * 1000
    const length = seconds ?? 190
    const target = `warehouse:${layer}.${area}`
    const did = (share, width) => ({ at: round3(share * length), seconds: round3(width * length) })
    const stages = [
      { target, stage: 'plan', ...did(0, 0.06), ended: true },
      { target, stage: 'read', ...did(0.06, 0.5), ended: true },
      { target, stage: 'stage', ...did(0.2, 0.45), ended: status !== 'running' },
    ]
    if (status !== 'running') stages.push({ target, stage: 'apply', ...did(0.66, 0.3), ended: !failed })
    const counts =
      status === 'succeeded'
        ? {
            inserted: Math.floor(read * 0.7),
            updated: Math.floor(read * 0.2),
            deleted: Math.floor(read * 0.01),
            unchanged: Math.floor(read * 0.09),
          }
        : {}
    return {
      run_id: id(),
      pipeline: name,
      target,
      mode: layer === 'report' ? 'scd2' : 'merge',
      path: layer === 'raw' ? 'spark' : 'same_db',
      trigger,
      slot: trigger === 'schedule' ? iso(slot) : null,
      attempt: failed && random() < 0.5 ? 2 : 1,
      batch: `slot:${iso(slot)}`,
      overdue: [],
      status,
      started_at: iso(started),
      finished_at: ended === null ? null : iso(ended),
      host: 'etl-2',
      pid: 4000 + Math.floor(random() * 2000),
      rows_read: status === 'succeeded' ? read : null,
      rows_inserted: counts.inserted ?? null,
      rows_updated: counts.updated ?? null,
      rows_deleted: counts.deleted ?? null,
      rows_unchanged: counts.unchanged ?? null,
      source_from: iso(started - 3_600_000),
      source_to: status === 'succeeded' ? iso(started - 5_000) : null,
      error_type: error?.[0] ?? (status === 'skipped' ? null : null),
      error_message: error?.[1] ?? null,
      error_where: error ? `shop/pipelines/${area}.py:${20 + Math.floor(random() * 90)}` : null,
      engine: 'spark 4.1.3 local[4]',
      code_version: 'ematix-flow 0.9.0, shop 4f1c2aa',
      duration_seconds: seconds === null ? null : round3(seconds),
      metrics: {
        stages,
        ...(status === 'running'
          ? {
              progress: {
                target,
                stage: 'stage',
                rows: 412_000,
                rows_per_second: 9_120,
                expected_rows: 1_040_000,
                eta_seconds: 69,
                at: iso(now),
              },
            }
          : {
              targets: [
                {
                  target,
                  mode: 'merge',
                  path: 'spark',
                  status: failed ? 'failed' : status,
                  reason: failed ? error[1].split('\n')[0] : null,
                  rows_read: read,
                  ...Object.fromEntries(Object.entries(counts).map(([key, value]) => [`rows_${key}`, value])),
                  rows_quarantined: 0,
                  source_from: iso(started - 3_600_000),
                  source_to: iso(started - 5_000),
                  seconds: {},
                  error: null,
                  expectations: [
                    {
                      rule: 'order_id is never null',
                      kind: 'not_null',
                      action: 'fail',
                      verdict: 'pass',
                      message: null,
                      failing: 0,
                      checked: read,
                    },
                    {
                      rule: 'amount is at least 0',
                      kind: 'range',
                      action: 'quarantine',
                      verdict: index2(read) ? 'pass' : 'warn',
                      message: '14 rows are below 0',
                      failing: 14,
                      checked: read,
                    },
                  ],
                },
              ],
              post: [{ label: 'analyze table', status: failed ? 'skipped' : 'succeeded', seconds: 0.8 }],
              plan: status === 'succeeded' ? makePlan(name, target) : null,
            }),
      },
    }
  }
  function index2(value) {
    return value % 3 !== 0
  }
  return {
    names,
    pipelines,
    runs: runs.sort((one, other) => other.started_at.localeCompare(one.started_at)),
    makeRun,
    random,
    pick,
    id,
    iso,
  }
}

export function makePlan(name, target) {
  const sql = `SELECT o.order_id, o.customer_id, o.amount, o.currency, o.changed_at\nFROM shop.orders AS o\nWHERE o.changed_at > :watermark`
  return {
    pipeline: name,
    where: 'shop/pipelines/orders.py:41',
    source: {
      connection: 'shop',
      kind: 'postgres',
      sql,
      columns: [
        'order_id BIGINT',
        'customer_id BIGINT',
        'amount DECIMAL(12,2)',
        'currency TEXT',
        'changed_at TIMESTAMPTZ',
      ].map(text => {
        const [column, ...type] = text.split(' ')
        return { name: column, type: type.join(' '), native: type.join(' ') }
      }),
    },
    read: null,
    targets: [
      {
        target,
        table: target.split(':')[1],
        mode: 'merge',
        path: 'spark',
        guarantee: 'exactly once',
        range: 'changed_at after 2026-10-11T22:00:00Z',
        choices: [
          { name: 'path', value: 'spark', reason: 'source and target are on different servers' },
          {
            name: 'guarantee',
            value: 'exactly once',
            reason: 'the target keeps a ledger in the transaction of the load',
          },
          {
            name: 'read partitions',
            value: '8',
            reason: 'the source has about 1,040,000 new rows; 8 ranges of order_id',
          },
          { name: 'staging', value: 'unlogged table, COPY binary', reason: 'the target is PostgreSQL 16' },
        ],
        changes: [
          {
            action: 'add column',
            subject: `${target}.currency`,
            sql: `ALTER TABLE ${target.split(':')[1]} ADD COLUMN currency text`,
          },
        ],
        diff: [],
        expectations: [{ rule: 'order_id is never null', action: 'fail' }],
        quarantine: null,
        stages: [
          { stage: 'read', does: [sql] },
          { stage: 'stage', does: ['COPY staging FROM STDIN (FORMAT binary)'] },
          {
            stage: 'apply',
            does: [
              'MERGE INTO daily.orders AS t\nUSING staging AS s ON t.order_id = s.order_id\nWHEN MATCHED AND t.hash <> s.hash THEN UPDATE SET …\nWHEN NOT MATCHED THEN INSERT …',
            ],
          },
        ],
        warnings: ['the source has no index on changed_at: the read scans the table'],
      },
    ],
    functions: [],
    probes_pre: [],
    post: [{ kind: 'sql', text: 'ANALYZE daily.orders' }],
    has_changes: true,
  }
}

export function seeded(seed) {
  let state = seed
  return () => {
    state = (state * 1664525 + 1013904223) % 4294967296
    return state / 4294967296
  }
}

function round3(value) {
  return Math.round(value * 1000) / 1000
}
