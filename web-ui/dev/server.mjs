// A server for work on the pages, without Python: invented data behind the interface of flow web, and the built
// pages under the policy that flow web sends.
//
//   node dev/server.mjs [--port 8181] [--pipelines 60] [--role reader] [--empty] [--failing] [--token SECRET]

import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { makePlan, makeProject } from './project.mjs'

const { values: options } = parseArgs({
  options: {
    port: { type: 'string', default: '8181' },
    pipelines: { type: 'string', default: '60' },
    role: { type: 'string', default: 'operator' },
    token: { type: 'string' },
    empty: { type: 'boolean', default: false },
    failing: { type: 'boolean', default: false },
  },
})
const BUILT = fileURLToPath(new URL('../../src/ematix_flow/web/ui/', import.meta.url))
const POLICY =
  "default-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' }
const project = makeProject(options.empty ? 0 : Number(options.pipelines))
const { iso, id, pick, random } = project
const actions = []
const holds = []
const readers = new Set()
const now = () => Date.now()

const STREAMS = options.empty ? [] : ['clickstream', 'order_events', 'device_readings']
const streamRuns = new Map(
  STREAMS.map((name, index) => {
    const run = project.makeRun({
      name,
      layer: 'live',
      area: name,
      status: index === 2 ? 'failed' : 'running',
      started: now() - 7_400_000,
      seconds: index === 2 ? 3_600 : null,
      slot: now(),
      trigger: 'consume',
    })
    run.metrics = {}
    project.runs.unshift(run)
    return [name, run]
  }),
)
const letters = options.empty
  ? []
  : Array.from({ length: 130 }, (_, index) => ({
      id: id(),
      pipeline: STREAMS[index % 2],
      stage: pick(['decode', 'transform', 'write']),
      status: pick(['pending', 'pending', 'pending', 'parked', 'replayed']),
      reason: pick([
        '"price" is not a number: "12,50 €"',
        'the message is not JSON: Expecting value: line 1 column 1 (char 0)',
        'null value in column "user_id" violates not-null constraint',
        '<script>alert(1)</script> is no known event',
      ]),
      source: 'kafka:clicks',
      partition: String(index % 6),
      position: 88_000 + index,
      target: 'warehouse:live.clicks',
      batch: String(400 + index),
      event_ts: iso(now() - index * 400_000),
      failed_at: iso(now() - index * 390_000),
      attempt: 1 + (index % 3),
      payload_format: 'json',
      payload_size: 180 + index,
      whole: true,
      headers: { trace: 'af31' },
      loaded_in: [],
    }))

function pipelineJson(each) {
  const last = each.last
  const failing = each.mood === 'failing'
  const hold = holds.find(hold => hold.name === each.name && hold.kind === 'run') ?? null
  return {
    kind: 'pipeline',
    pipeline: each.name,
    description: `Loads ${each.area} into ${each.layer}.`,
    schedule: each.every === 3_600_000 ? '0 * * * *' : '0 */4 * * *',
    timezone: 'UTC',
    depends_on: each.depends,
    tags: each.layer === 'report' ? ['nightly', 'finance'] : each.index % 4 === 0 ? ['nightly'] : [],
    targets: [{ target: `warehouse:${each.layer}.${each.area}`, mode: 'merge' }],
    incremental: each.index % 2 ? 'changed_at' : null,
    where: `shop/pipelines/${each.area}.py:41`,
    last_run: last && { ...last, metrics: {} },
    failures_since_success: failing ? 2 : 0,
    attempts_allowed: 3,
    slot: failing
      ? {
          at: last.slot,
          status: each.index % 2 ? 'gave_up' : 'waiting',
          failures: 2,
          reason: last.error_message.split('\n')[0],
          not_before: iso(now() + 240_000),
        }
      : null,
    why: failing ? last.error_message.split('\n')[0] : null,
    next_due: iso(Math.ceil(now() / each.every) * each.every),
    slot_ahead: null,
    unseen_since: null,
    due_slots: each.index % 31 === 9 ? 3 : 0,
    oldest_due: null,
    behind_seconds: each.index % 31 === 9 ? 9_400 : 0,
    bars: each.its.slice(-30).map(run => ({
      run_id: run.run_id,
      status: run.status,
      started_at: run.started_at,
      seconds: run.duration_seconds,
      rows: run.rows_inserted,
    })),
    freshness:
      each.index % 3
        ? null
        : {
            lag_seconds: 1_800 + each.index * 90,
            sla_seconds: 7_200,
            is_breached: 1_800 + each.index * 90 > 7_200,
          },
    rows_per_day: Array.from({ length: 14 }, (_, day) => ({
      day: iso(now() - (13 - day) * 86_400_000).slice(0, 10),
      rows:
        each.mood === 'never'
          ? 0
          : Math.floor(40_000 + 30_000 * Math.sin(day + each.index) + 900 * each.index),
    })),
    hold,
    schedule_hold: holds.find(hold => hold.name === each.name && hold.kind === 'schedule') ?? null,
  }
}

const rank = each => (each.mood === 'failing' ? 0 : each.mood === 'running' ? 1 : 2)
const page = (items, query) => {
  const limit = Number(query.get('limit') ?? 50)
  const start = Number(query.get('after') ?? 0)
  return {
    items: items.slice(start, start + limit),
    next: start + limit < items.length ? String(start + limit) : null,
  }
}
const refuse = (status, what, next) => ({
  status,
  body: {
    error: {
      type: status === 404 ? 'UnknownName' : 'UsageError',
      what,
      where: null,
      state: null,
      next: next ?? null,
    },
  },
})

const READS = [
  [
    '/me',
    () => ({
      role: options.role,
      read_only: false,
      version: '0.9.0',
      module: 'shop.pipelines',
      run_log: 'postgresql://flow:***@db/flow',
      scheduler: true,
      zone: 'UTC',
      features: { dead_letters: true, samples: true },
    }),
  ],
  [
    '/pipelines',
    query => {
      const select = query.get('select')
      if (select && !/^[\w:+*@]+$/.test(select))
        return refuse(400, `${select} is not a selector`, 'flow list --help  explains selectors')
      const word = select?.replace(/^.*:|[+*@]/g, '') ?? ''
      const found = project.pipelines.filter(
        each => !word || each.name.includes(word) || pipelineJson(each).tags.includes(word),
      )
      return { items: [...found].sort((one, other) => rank(one) - rank(other)).map(pipelineJson) }
    },
  ],
  [
    '/pipelines/:name',
    (_, { name }) => {
      const found = project.pipelines.find(each => each.name === name)
      if (!found)
        return refuse(404, `no pipeline is named '${name}'`, 'flow list  shows what the module declares')
      return {
        ...pipelineJson(found),
        upstreams: found.depends,
        downstreams: project.pipelines.filter(each => each.depends.includes(name)).map(each => each.name),
        source: { connection: 'shop', table: `shop.${found.area}`, watermark_column: 'changed_at' },
        schedule_text: 'every hour',
      }
    },
  ],
  ['/pipelines/:name/plan', (_, { name }) => makePlan(name, 'warehouse:daily.orders')],
  ['/graph', () => graph()],
  [
    '/runs',
    query => {
      const wanted = ['pipeline', 'status', 'trigger']
        .map(name => [name, query.get(name)])
        .filter(([, value]) => value)
      const text = query.get('text')
      const since = query.get('since')
      const found = project.runs.filter(
        run =>
          wanted.every(([name, value]) => run[name] === value) &&
          (!text || (run.error_message ?? '').includes(text)) &&
          (!since || run.started_at >= since),
      )
      return page(
        found.map(run => ({ ...run, is_held: false })),
        query,
      )
    },
  ],
  [
    '/runs/:id',
    (_, { id: wanted }) => {
      const run = project.runs.find(each => each.run_id.startsWith(wanted))
      if (!run) return refuse(404, `the run log has no run '${wanted}'`, 'flow runs list')
      const its = project.runs.filter(each => each.pipeline === run.pipeline)
      const at = its.indexOf(run)
      const may = (ok, why) => ({ ok, why: ok ? null : why })
      const works = run.status === 'running'
      const attempts =
        run.attempt > 1
          ? [
              {
                ...run,
                run_id: id(),
                attempt: 1,
                started_at: iso(Date.parse(run.started_at) - 90_000),
                finished_at: iso(Date.parse(run.started_at) - 40_000),
                duration_seconds: 50,
                metrics: {},
              },
              run,
            ]
          : [run]
      return {
        ...run,
        previous: its[at + 1]?.run_id ?? null,
        next: its[at - 1]?.run_id ?? null,
        attempts,
        can: {
          stop: may(works, `it has ended: ${run.status}`),
          restart: may(
            run.status === 'failed' && at === 0,
            works ? 'it is running' : at ? 'a newer run of this pipeline exists' : 'it ended well',
          ),
          pause: may(works, 'it has ended'),
          resume: may(false, 'it is not paused'),
          resume_from_watermark: may(run.status === 'failed', 'it is not incremental'),
        },
      }
    },
  ],
  [
    '/runs/:id/around',
    (_, { id: wanted }) => {
      const run = project.runs.find(each => each.run_id === wanted)
      if (!run) return refuse(404, `the run log has no run '${wanted}'`, 'flow runs list')
      const its = project.runs.filter(each => each.pipeline === run.pipeline)
      const at = its.indexOf(run)
      const depends = project.pipelines.find(each => each.name === run.pipeline)?.depends ?? []
      const following = project.pipelines.filter(each => each.depends.includes(run.pipeline))
      const before = each => each.started_at < run.started_at
      const after = each => run.finished_at && each.started_at > run.finished_at
      return {
        previous: its[at + 1] ?? null,
        next: its[at - 1] ?? null,
        upstream: depends.map(name => ({
          pipeline: name,
          run: project.runs.find(each => each.pipeline === name && before(each)) ?? null,
        })),
        downstream: following.map(({ name }) => ({
          pipeline: name,
          run: project.runs.findLast(each => each.pipeline === name && after(each)) ?? null,
        })),
        left_out: 0,
      }
    },
  ],
  [
    '/runs/:id/ledger',
    (_, { id: wanted }) => {
      const run = project.runs.find(each => each.run_id === wanted)
      if (!run) return refuse(404, `the run log has no run '${wanted}'`, 'flow runs list')
      const isOver = run.status === 'succeeded'
      const entry = {
        pipeline: run.pipeline,
        target: run.target,
        batch_key: run.batch ?? `run:${run.run_id}`,
        run_id: run.run_id,
        source_from: run.source_from,
        source_to: run.source_to,
        rows_read: run.rows_read,
        rows_inserted: run.rows_inserted,
        rows_updated: run.rows_updated,
        rows_deleted: run.rows_deleted,
        committed_at: run.finished_at,
      }
      const note = isOver ? null : 'the ledger has no entry of this run: it committed nothing here'
      return {
        run_id: wanted,
        targets: [{ target: run.target, entries: isOver ? [entry] : [], note, error: null }],
      }
    },
  ],
  [
    '/runs/:id/log',
    (query, { id: wanted }) => {
      const run = project.runs.find(each => each.run_id === wanted)
      const start = Date.parse(run?.started_at ?? iso(now()))
      const lines = Array.from(
        { length: 60 + (run?.status === 'running' ? Math.floor((now() / 2000) % 400) : 0) },
        (_, index) =>
          `${iso(start + index * 700)} ${index % 19 === 7 ? 'WARNING' : 'INFO'} ematix_flow.run ${pick(['read begins', 'partition 3 of 8: 128,204 rows', 'staging has 412,000 rows', 'apply into warehouse.daily'])}`,
      )
      if (run?.status === 'failed')
        lines.push(
          `${iso(start + 90_000)} ERROR ematix_flow.run failed: ${run.error_message?.split('\n')[0]}`,
        )
      return {
        run_id: wanted,
        status: run?.status ?? 'succeeded',
        lines: lines.slice(-Number(query.get('tail') ?? 400)),
      }
    },
  ],
  [
    '/streams',
    () => ({
      items: STREAMS.map((name, index) => ({
        name,
        kind: 'stream',
        description: `Follows ${name} as it comes.`,
        sources: [`kafka:${name}`],
        targets: [{ target: `warehouse:live.${name}`, mode: 'append' }],
        on_error: 'dead_letter',
        where: 'shop/streams.py:12',
        run: streamRuns.get(name),
        sample: sampleAt(now() - 3_000, index),
        hold: holds.find(hold => hold.name === name) ?? null,
        dead_letters: {
          by_status: lettersByStatus(name),
        },
      })),
    }),
  ],
  [
    '/streams/:name/samples',
    (query, { name }) => {
      const span =
        { '15m': 900, '1h': 3_600, '6h': 21_600, '24h': 86_400, '7d': 604_800 }[query.get('span') ?? '1h'] *
        1000
      const step = Math.max(10_000, span / 400)
      const samples = []
      for (let at = Math.floor((now() - span) / step) * step; at < now(); at += step)
        if (Math.floor(at / 10_000) % 200 > 8)
          samples.push(sampleAt(at, STREAMS.indexOf(name), step / 10_000))
      return { samples }
    },
  ],
  [
    '/dead-letters',
    query => {
      const found = letters.filter(
        letter =>
          (!query.get('pipeline') || letter.pipeline === query.get('pipeline')) &&
          (!query.get('status') || letter.status === query.get('status')) &&
          (!query.get('reason') || letter.reason.includes(query.get('reason'))),
      )
      const counts = STREAMS.flatMap(name =>
        ['pending', 'parked', 'replayed'].map(status => ({
          pipeline: name,
          stage: 'write',
          status,
          letters: letters.filter(letter => letter.pipeline === name && letter.status === status).length,
        })),
      )
      return { ...page(found, query), counts }
    },
  ],
  [
    '/dead-letters/:id',
    (_, { id: wanted }) => {
      const letter = letters.find(each => each.id === wanted)
      if (!letter) return refuse(404, `there is no dead letter '${wanted}'`, 'flow dlq list')
      const payload =
        letter.payload_size % 5
          ? {
              text: JSON.stringify({
                event: 'add_to_cart',
                price: '12,50 €',
                user: { id: null, name: '<b>Ada</b>' },
                items: [1, 2, 3],
              }),
            }
          : { hex: '0a0b48656c6c6f00ff'.repeat(9) }
      return { ...letter, payload, key: { text: 'user-4711' }, payload_shown: 180 }
    },
  ],
  ['/schedule', () => schedule()],
  [
    '/workflows',
    () => ({
      items: options.empty
        ? []
        : ['nightly', 'hourly_stock', 'finance_close'].map((workflow, index) => ({
            kind: 'workflow',
            workflow,
            jobs: project.names.slice(index * 5, index * 5 + 5 + index),
            schedule: index ? null : '0 2 * * *',
            timezone: 'Europe/Berlin',
            triggered_by: index
              ? {
                  kind: index > 1 ? 'all' : 'any',
                  members: ['daily_orders', { kind: 'any', members: ['daily_stock', 'nightly'] }],
                }
              : null,
            outcome: ['succeeded', 'running', 'gave up'][index],
            slot: {
              at: iso(now() - 5_400_000),
              status: 'succeeded',
              failures: 0,
              reason: index > 1 ? 'daily_payments gave up' : null,
            },
            waits_for: index ? ['daily_stock to succeed after 12:00'] : [],
            next_due: index ? null : iso(now() + 3_600_000 * 7),
            jobs_state: project.pipelines
              .slice(index * 5, index * 5 + 5 + index)
              .map(each => ({ pipeline: each.name, status: each.last?.status ?? 'never' })),
          })),
    }),
  ],
  [
    '/connections',
    () => ({
      items: options.empty
        ? []
        : ['shop', 'warehouse', 'lake', 'events'].map((name, index) => ({
            name,
            kind: ['postgres', 'postgres', 's3', 'kafka'][index],
            fields:
              index === 3
                ? { bootstrap_servers: 'kafka-1:9092', security: 'SASL_SSL', password: '***' }
                : { host: `${name}.internal`, database: name, user: 'etl', password: '***' },
            origin: { source: 'file', label: '~/.ematix-flow/connections.toml' },
            shadowed: index === 1 ? [{ source: 'env', label: 'WAREHOUSE_URL' }] : [],
            problem: index === 2 ? 'the variable LAKE_SECRET is not set' : null,
          })),
    }),
  ],
  [
    '/actions',
    query => {
      const found = actions.filter(
        action =>
          (!query.get('subject') || action.subject === query.get('subject')) &&
          (!query.get('unfinished') || ['waiting', 'claimed'].includes(action.status)),
      )
      return page(found, query)
    },
  ],
  [
    '/actions/:id',
    (_, { id: wanted }) =>
      actions.find(action => action.action_id === wanted) ?? refuse(404, 'no such action'),
  ],
]

function sampleAt(at, index, times = 1) {
  const wave = Math.sin(at / 400_000 + index) + 0.4 * Math.sin(at / 61_000)
  const read = Math.max(0, Math.floor((12_000 + 5_000 * wave) * times))
  return {
    at: iso(at),
    rows_read: read,
    rows_written: Math.floor(read * 0.997),
    batches: 2 * Math.ceil(times),
    dead_letters: at % 90_000 < 10_000 ? 3 : 0,
    phases: { read: 1.1 + 0.2 * wave, transform: 0.7, write: 1.9 + 0.6 * Math.abs(wave), commit: 0.2 },
    lag: { 0: Math.floor(900 + 600 * wave), 1: 300 },
    lag_unit: 'messages',
    watermark: iso(at - 42_000 - 9_000 * wave),
    state_rows: 180_000 + Math.floor(20_000 * wave),
    state_bytes: 48_000_000 + Math.floor(2_000_000 * wave),
    state: 'running',
  }
}

function schedule() {
  const slots = []
  const upcoming = []
  const missed = []
  for (const each of project.pipelines) {
    const late = each.index % 31 === 9
    for (
      let at = Math.ceil((now() - 172_800_000) / each.every) * each.every;
      at < now() + 172_800_000;
      at += each.every
    ) {
      if (at > now()) upcoming.push({ pipeline: each.name, at: iso(at) })
      else if (each.index % 13 === 4 && at % (each.every * 19) < each.every)
        missed.push({
          pipeline: each.name,
          at: iso(at),
          status: 'skipped',
          run_id: null,
          reason: 'no scheduler polled',
          failures: 0,
        })
      else {
        const newest = at > now() - each.every
        const status =
          newest && late
            ? 'waiting'
            : newest && each.mood === 'running'
              ? 'claimed'
              : newest && each.mood === 'failing'
                ? 'gave_up'
                : random() < 0.02
                  ? 'skipped'
                  : 'succeeded'
        slots.push({
          pipeline: each.name,
          at: iso(at),
          status,
          run_id: each.last?.run_id ?? null,
          reason: status === 'gave_up' ? 'attempt 3 of 3 failed' : null,
          failures: status === 'gave_up' ? 3 : 0,
        })
      }
    }
  }
  return { slots: slots.slice(0, 5_000), upcoming: upcoming.slice(0, 5_000), missed, holds }
}

function graph() {
  const nodes = new Map()
  const edges = []
  const add = (kind, name, state = null, detail = null) => {
    const key = `${kind}:${name}`
    if (!nodes.has(key)) nodes.set(key, { id: key, kind, name, state, detail })
    return key
  }
  for (const each of project.pipelines) {
    const key = add('pipeline', each.name, each.last?.status ?? 'never', pipelineJson(each).why)
    if (project.pipelines.length < 400)
      edges.push({ from: key, to: add('table', `warehouse:${each.layer}.${each.area}`), kind: 'loads' })
    for (const upstream of each.depends)
      edges.push({ from: `pipeline:${upstream}`, to: key, kind: 'depends_on' })
  }
  for (const name of STREAMS) {
    const key = add('stream', name, streamRuns.get(name).status)
    edges.push(
      { from: add('table', `kafka:${name}`), to: key, kind: 'reads' },
      { from: key, to: add('table', `warehouse:live.${name}`), kind: 'loads' },
    )
  }
  if (!options.empty)
    for (const job of project.names.slice(0, 5))
      edges.push({ from: add('workflow', 'nightly', 'succeeded'), to: `pipeline:${job}`, kind: 'runs' })
  return { nodes: [...nodes.values()], edges }
}

function requestAction({ kind, subject, arguments: given }) {
  const known = actions.find(
    action =>
      action.kind === kind && action.subject === subject && ['waiting', 'claimed'].includes(action.status),
  )
  if (known) return { status: 200, body: known }
  const atOnce = !['run', 'restart', 'resume_from_watermark', 'replay_letters', 'stop'].includes(kind)
  const action = {
    action_id: id(),
    kind,
    subject,
    arguments: given ?? {},
    status: atOnce ? 'done' : 'waiting',
    requested_by: 'ada',
    via: 'web',
    requested_at: iso(now()),
    ended_at: atOnce ? iso(now()) : null,
    fence: 0,
    holder: null,
    expires_at: null,
    outcome: atOnce ? 'done' : null,
    run_ids: [],
  }
  actions.unshift(action)
  if (kind === 'pause' || kind === 'pause_schedule')
    holds.push({
      kind: kind === 'pause' ? 'run' : 'schedule',
      name: subject,
      by: 'ada',
      since: iso(now()),
      reason: given?.reason ?? null,
      held_run: null,
      held_at: kind === 'pause' ? 'before apply into warehouse.daily' : null,
    })
  if (kind === 'resume' || kind === 'resume_schedule')
    holds.splice(
      holds.findIndex(hold => hold.name === subject),
      1,
    )
  if (!atOnce) {
    setTimeout(() => change(action, { status: 'claimed', holder: 'etl-2:4711' }), 1_500)
    setTimeout(
      () =>
        change(action, {
          status: 'done',
          ended_at: iso(now()),
          outcome: `${subject} ran: 12,204 rows in 3.1 s`,
          run_ids: [project.runs[0]?.run_id].filter(Boolean),
        }),
      5_000,
    )
  }
  return { status: 201, body: action }
}

function change(action, values) {
  Object.assign(action, values)
  tell({ kind: 'action', name: action.subject, id: action.action_id, status: action.status, at: iso(now()) })
}

function tell(event) {
  for (const reader of readers) reader.write(`event: change\ndata: ${JSON.stringify(event)}\n\n`)
}

setInterval(() => {
  const running = project.runs.find(run => run.status === 'running' && run.metrics.progress)
  if (!running) return
  const { progress } = running.metrics
  progress.rows = Math.min(progress.expected_rows, progress.rows + 18_240)
  progress.eta_seconds = Math.max(0, (progress.expected_rows - progress.rows) / 9_120)
  tell({
    kind: 'run',
    name: running.pipeline,
    id: running.run_id,
    status: 'running',
    at: iso(now()),
    progress,
  })
  for (const name of STREAMS) tell({ kind: 'stream', name, id: null, status: 'running', at: iso(now()) })
}, 2_000)

createServer((request, response) => void answer(request, response)).listen(
  Number(options.port),
  '127.0.0.1',
  () => {
    console.log(`http://127.0.0.1:${options.port}`)
  },
)

async function answer(request, response) {
  const url = new URL(request.url, 'http://localhost')
  if (!url.pathname.startsWith('/api/v1')) return sendFile(url.pathname, response)
  const path = url.pathname.slice('/api/v1'.length)
  const isOpen = !options.token || (request.headers.cookie ?? '').includes('session=open')
  if (request.method === 'POST' && path === '/session') {
    const { token } = await bodyOf(request)
    if (token !== options.token)
      return sendJson(
        response,
        refuse(401, 'the token is not right', 'flow web prints the address with its token'),
      )
    response.setHeader('Set-Cookie', 'session=open; HttpOnly; SameSite=Strict; Path=/')
    return sendJson(response, { status: 200, body: {} })
  }
  if (!isOpen) return sendJson(response, refuse(401, 'a token is needed'))
  if (options.failing && path !== '/me')
    return sendJson(
      response,
      refuse(503, 'the run log does not answer: connection refused (db:5432)', 'flow doctor  checks it'),
    )
  if (path === '/events') {
    response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' })
    response.write(': hello\n\n')
    readers.add(response)
    request.on('close', () => readers.delete(response))
    return undefined
  }
  if (request.method === 'POST' && path === '/actions')
    return sendJson(response, requestAction(await bodyOf(request)))
  if (request.method === 'POST' && /^\/connections\/[^/]+\/check$/.test(path)) {
    const name = path.split('/')[2]
    const body =
      name === 'events'
        ? {
            name,
            result: 'failed',
            seconds: 5.01,
            found: 'no broker answers',
            error: {
              type: 'CannotConnect',
              what: 'no broker of kafka-1:9092 answers within 5 s',
              where: null,
              state: null,
              next: 'check the network',
            },
          }
        : { name, result: 'ok', seconds: 0.04, found: 'PostgreSQL 16.4', error: null }
    return sendJson(response, { status: 200, body })
  }
  for (const [pattern, read] of READS) {
    const names = [...pattern.matchAll(/:(\w+)/g)].map(found => found[1])
    const found = new RegExp(`^${pattern.replace(/:\w+/g, '([^/]+)')}$`).exec(path)
    if (!found) continue
    const given = Object.fromEntries(names.map((name, index) => [name, decodeURIComponent(found[index + 1])]))
    const value = read(url.searchParams, given)
    return sendJson(response, value.status && value.body?.error ? value : { status: 200, body: value })
  }
  return sendJson(response, refuse(404, `there is no ${path}`))
}

async function bodyOf(request) {
  let text = ''
  for await (const part of request) text += part
  return JSON.parse(text || '{}')
}

function sendJson(response, { status, body }) {
  response.writeHead(status, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' })
  response.end(JSON.stringify(body))
}

async function sendFile(path, response) {
  const name = /^\/assets\/[\w.-]+$/.test(path) ? path : '/index.html'
  try {
    const content = await readFile(join(BUILT, name))
    response.writeHead(200, {
      'Content-Type': TYPES[extname(name)] ?? 'application/octet-stream',
      'Content-Security-Policy': POLICY,
    })
    response.end(content)
  } catch {
    response.writeHead(404)
    response.end('not built: npm run build')
  }
}

function lettersByStatus(name) {
  const counts = {}
  for (const letter of letters)
    if (letter.pipeline === name) counts[letter.status] = (counts[letter.status] ?? 0) + 1
  return counts
}
