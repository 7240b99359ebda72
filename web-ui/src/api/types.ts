// What the server answers, as far as the pages use it. Times are ISO 8601 in UTC.

export type RunStatus =
  | 'running'
  | 'succeeded'
  | 'skipped'
  | 'locked'
  | 'failed'
  | 'interrupted'
  | 'cancelled'

export interface ErrorParts {
  type: string
  what: string
  where?: string | null
  state?: string | null
  next?: string | null
}

export interface Page<T> {
  items: T[]
  next: string | null
}

export interface Me {
  role: 'reader' | 'operator'
  read_only: boolean
  version: string
  module: string | null
  run_log: string
  scheduler: boolean
  zone: string
  module_changed?: string[]
  features?: { dead_letters?: boolean; samples?: boolean }
}

export interface Hold {
  kind: 'schedule' | 'run'
  name: string
  by: string
  since: string
  reason: string | null
  held_run: string | null
  held_at: string | null
}

export interface Bar {
  run_id: string
  status: RunStatus
  started_at: string
  seconds: number | null
  rows: number | null
}

export interface SlotState {
  at: string
  status: SlotStatus
  failures: number
  reason: string | null
  not_before?: string
}

export type SlotStatus = 'waiting' | 'claimed' | 'succeeded' | 'gave_up' | 'skipped'

export interface TargetMode {
  target: string
  mode: string
}

export interface Pipeline {
  pipeline: string
  description?: string | null
  schedule: string | null
  timezone: string | null
  depends_on: string[]
  tags: string[]
  targets?: TargetMode[]
  incremental?: boolean | string | null
  where?: string | null
  last_run: Run | null
  failures_since_success: number
  attempts_allowed: number
  slot: SlotState | null
  why: string | null
  next_due: string | null
  unseen_since?: string | null
  due_slots: number
  oldest_due: string | null
  behind_seconds: number
  bars?: Bar[]
  freshness?: Freshness | null
  rows_per_day?: RowsOfDay[]
  hold?: Hold | null
  schedule_hold?: Hold | null
  upstreams?: string[]
  downstreams?: string[]
  /** The workflows that run it. */
  workflows?: string[]
  source?: Record<string, unknown> | null
  schedule_text?: string | null
}

export interface Freshness {
  lag_seconds: number | null
  sla_seconds: number | null
  is_breached: boolean
}

export interface RowsOfDay {
  day: string
  rows: number
}

export interface Stage {
  target: string
  stage: string
  at: number
  seconds: number
  ended?: boolean
  /** A step after the load that ended with an error. */
  failed?: boolean
}

export interface Progress {
  target?: string
  stage?: string
  rows?: number | null
  rows_per_second?: number | null
  expected_rows?: number | null
  eta_seconds?: number | null
  at?: string
}

export interface TargetResult {
  target: string
  mode: string
  path: string
  status: string
  reason: string | null
  rows_read?: number | null
  rows_inserted?: number | null
  rows_updated?: number | null
  rows_deleted?: number | null
  rows_unchanged?: number | null
  rows_quarantined?: number | null
  source_from?: string | null
  source_to?: string | null
  seconds?: Record<string, number>
  error?: ErrorParts | null
  expectations?: Record<string, unknown>[]
}

export interface PostStep {
  label?: string
  step?: string
  status?: string
  outcome?: string
  seconds?: number
}

export interface Metrics {
  stages?: Stage[]
  targets?: TargetResult[]
  post?: PostStep[]
  progress?: Progress | null
  plan?: Plan | null
  probes?: Record<string, unknown>[]
  notes?: string[]
  [name: string]: unknown
}

export interface Run {
  run_id: string
  pipeline: string
  target: string
  mode: string
  path: string | null
  trigger: string
  slot: string | null
  attempt: number
  batch: string | null
  overdue?: string[]
  status: RunStatus
  started_at: string
  finished_at: string | null
  duration_seconds: number | null
  host: string
  pid: number
  rows_read: number | null
  rows_inserted: number | null
  rows_updated: number | null
  rows_deleted: number | null
  rows_unchanged: number | null
  source_from: string | null
  source_to: string | null
  error_type: string | null
  error_message: string | null
  error_where: string | null
  engine: string | null
  code_version: string | null
  metrics?: Metrics
}

export interface ListedRun extends Run {
  /** It waits at a safe point; the run log counts it as running. */
  is_held: boolean
}

export interface Permission {
  ok: boolean
  why: string | null
}

export type RunAction = 'stop' | 'restart' | 'pause' | 'resume' | 'resume_from_watermark'

export interface RunDetail extends Run {
  previous: string | null
  next: string | null
  attempts: Run[]
  can: Partial<Record<RunAction, Permission>>
  error?: ErrorParts | null
}

export interface RunsAround {
  previous: Run | null
  next: Run | null
  upstream: { pipeline: string; run: Run | null }[]
  downstream: { pipeline: string; run: Run | null }[]
  left_out: number
}

export interface LedgerEntry {
  pipeline: string
  target: string
  batch_key: string
  run_id: string
  source_from: string | null
  source_to: string | null
  rows_read: number | null
  rows_inserted: number | null
  rows_updated: number | null
  rows_deleted: number | null
  committed_at: string
}

export interface TargetLedger {
  target: string
  entries: LedgerEntry[]
  note: string | null
  error: ErrorParts | null
}

export interface RunLedger {
  run_id: string
  targets: TargetLedger[]
}

export interface PlanColumn {
  name: string
  type: string | null
  native?: string | null
}

export interface PlanTarget {
  target: string
  table: string
  mode: string
  path: string
  guarantee: string
  range: string | null
  choices: { name: string; value: string; reason: string }[]
  changes: { action: string; subject: string; sql: string }[]
  diff: { mark: string; subject: string; was: string | null; now: string | null }[]
  expectations: { rule: string; action: string }[]
  quarantine: string | null
  stages: { stage: string; does: string[] }[]
  warnings: string[]
}

export interface Plan {
  pipeline: string
  where?: string | null
  source?: { connection?: string; kind?: string; sql?: string | null; columns?: PlanColumn[] } | null
  read?: string | null
  targets?: PlanTarget[]
  functions?: string[]
  probes_pre?: string[]
  post?: { kind: string; text: string }[]
  has_changes?: boolean
  [name: string]: unknown
}

export interface RunLogLines {
  run_id: string
  status: RunStatus
  lines: string[]
}

export interface Sample {
  at: string
  rows_read?: number | null
  rows_written?: number | null
  batches?: number | null
  dead_letters?: number | null
  phases?: Record<string, number>
  lag?: Record<string, number> | number | null
  lag_unit?: string | null
  watermark?: string | null
  state_rows?: number | null
  state_bytes?: number | null
  state?: string | null
  seconds?: number | null
}

export interface Stream {
  name: string
  description?: string | null
  sources: string[]
  targets: TargetMode[]
  on_error?: string
  where?: string | null
  run: Run | null
  sample: Sample | null
  hold?: Hold | null
  dead_letters?: { by_status: Record<string, number> } | null
}

export interface Letter {
  id: string
  pipeline: string
  stage: string
  status: string
  reason: string
  source: string | null
  partition: number | string | null
  position: number | string | null
  target: string | null
  batch: string | null
  event_ts: string | null
  failed_at: string
  attempt: number
  payload_format: string
  payload_size: number
  whole?: boolean
  headers?: unknown
  loaded_in?: string[]
}

export interface LetterDetail extends Letter {
  payload: unknown
  key: unknown
  payload_shown?: number
}

export interface LetterPage extends Page<Letter> {
  counts?: unknown
}

export interface ScheduledSlot {
  pipeline: string
  at: string
  status: SlotStatus
  run_id: string | null
  reason: string | null
  failures: number
}

export interface FireTime {
  pipeline: string
  at: string
}

export interface ScheduleView {
  slots: ScheduledSlot[]
  upcoming: FireTime[]
  missed: FireTime[]
  holds: Hold[]
}

export interface Trigger {
  kind: string
  members: (string | Trigger)[]
}

export interface Workflow {
  workflow: string
  jobs: string[]
  schedule: string | null
  timezone: string | null
  triggered_by: Trigger | null
  outcome: string
  slot: SlotState | null
  waits_for: string[]
  next_due: string | null
  jobs_state?: { pipeline: string; status: string | null }[]
}

export interface Connection {
  name: string
  kind: string | null
  fields: Record<string, unknown>
  origin: { source: string; label: string }
  shadowed: { source: string; label: string }[]
  problem: string | null
}

export interface ConnectionCheck {
  name: string
  result: string
  seconds: number
  found: string
  error: ErrorParts | null
}

export type NodeKind = 'pipeline' | 'stream' | 'workflow' | 'table'

export interface GraphNode {
  id: string
  kind: NodeKind
  name: string
  state: string | null
  detail: string | null
}

export interface GraphEdge {
  from: string
  to: string
  kind: 'loads' | 'reads' | 'depends_on' | 'runs' | 'triggers'
}

export interface Graph {
  nodes: GraphNode[]
  edges: GraphEdge[]
}

export type ActionKind =
  | 'run'
  | 'restart'
  | 'resume_from_watermark'
  | 'clear'
  | 'stop'
  | 'pause'
  | 'resume'
  | 'pause_schedule'
  | 'resume_schedule'
  | 'replay_letters'
  | 'park_letters'
  | 'purge_letters'

export type ActionStatus = 'waiting' | 'claimed' | 'done' | 'failed' | 'refused'

export interface Action {
  action_id: string
  kind: ActionKind
  subject: string
  /** Of the run that is the subject. */
  pipeline?: string | null
  arguments: Record<string, unknown>
  status: ActionStatus
  requested_by: string
  via: string
  requested_at: string
  ended_at: string | null
  holder: string | null
  outcome: string | null
  /** Why nothing happens to it, while it waits. */
  why?: string | null
  run_ids: string[]
}

export interface Change {
  /** store: the run log is away, or back. */
  kind: 'run' | 'action' | 'slot' | 'stream' | 'hold' | 'store'
  name: string
  id: string | null
  status: string | null
  at: string
  progress?: Progress | null
}
