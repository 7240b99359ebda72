"""The JSON Schemas of what the interface answers and takes, by name."""

from __future__ import annotations

from typing import Any, get_args

from ematix_flow.state.actions.records import ActionKind, ActionStatus
from ematix_flow.state.dead_letters.base import LetterStage, LetterStatus
from ematix_flow.state.runlog.records import RunStatus
from ematix_flow.state.slots.base import SlotStatus

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "number"}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
WHOLE: Schema = {"type": "integer"}
MAYBE_WHOLE: Schema = {"type": ["integer", "null"]}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
MAYBE_TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
ANYTHING: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def _object(**properties: Schema) -> Schema:
    """An object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _with(base: Schema, **properties: Schema) -> Schema:
    return _object(**{**base["properties"], **properties})


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _maybe(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "null"}]}


def _items(item: Schema) -> Schema:
    return _object(items=_list(item))


def _page(item: Schema, **more: Schema) -> Schema:
    return _object(items=_list(item), next=MAYBE_TEXT, **more)


def _one_of(values: Any) -> Schema:
    return {"type": "string", "enum": list(get_args(values))}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_RUN = _object(
    run_id=TEXT,
    pipeline=TEXT,
    target=TEXT,
    mode=TEXT,
    path=MAYBE_TEXT,
    trigger=TEXT,
    slot=MAYBE_TIME,
    attempt=WHOLE,
    batch=MAYBE_TEXT,
    overdue=TEXTS,
    status=_one_of(RunStatus),
    started_at=TIME,
    finished_at=MAYBE_TIME,
    host=TEXT,
    pid=WHOLE,
    rows_read=MAYBE_WHOLE,
    rows_inserted=MAYBE_WHOLE,
    rows_updated=MAYBE_WHOLE,
    rows_deleted=MAYBE_WHOLE,
    rows_unchanged=MAYBE_WHOLE,
    source_from=MAYBE_TEXT,
    source_to=MAYBE_TEXT,
    error_type=MAYBE_TEXT,
    error_message=MAYBE_TEXT,
    error_where=MAYBE_TEXT,
    engine=MAYBE_TEXT,
    code_version=MAYBE_TEXT,
    metrics=ANYTHING,
    duration_seconds=MAYBE_NUMBER,
)
_TARGETS = _list(_object(target=TEXT, mode=TEXT))
_HOLD = _object(
    kind={"type": "string", "enum": ["schedule", "run"]},
    name=TEXT,
    by=TEXT,
    since=TIME,
    reason=MAYBE_TEXT,
    held_run=MAYBE_TEXT,
    held_at=MAYBE_TEXT,
)
_SLOT_STATE = _object(at=TIME, status=_one_of(SlotStatus), failures=WHOLE, reason=MAYBE_TEXT, not_before=TIME)
_PIPELINE = _object(
    kind={"const": "pipeline"},
    name=TEXT,
    pipeline=TEXT,
    description=MAYBE_TEXT,
    where=MAYBE_TEXT,
    incremental=FLAG,
    targets=_TARGETS,
    schedule=MAYBE_TEXT,
    timezone=MAYBE_TEXT,
    depends_on=TEXTS,
    tags=TEXTS,
    last_run=_maybe(_named("Run")),
    failures_since_success=WHOLE,
    attempts_allowed=WHOLE,
    slot=_maybe(_SLOT_STATE),
    why=MAYBE_TEXT,
    next_due=MAYBE_TIME,
    slot_ahead=MAYBE_TIME,
    unseen_since=MAYBE_TIME,
    due_slots=WHOLE,
    oldest_due=MAYBE_TIME,
    behind_seconds=NUMBER,
    bars=_list(
        _object(
            run_id=TEXT, status=_one_of(RunStatus), started_at=TIME, seconds=MAYBE_NUMBER, rows=MAYBE_WHOLE
        )
    ),
    freshness=_maybe(_object(lag_seconds=MAYBE_NUMBER, sla_seconds=NUMBER, is_breached=FLAG)),
    rows_per_day=_list(_object(day={"type": "string", "format": "date"}, rows=WHOLE)),
    hold=_maybe(_named("Hold")),
    schedule_hold=_maybe(_named("Hold")),
)
_POSSIBLE = _object(ok=FLAG, why=MAYBE_TEXT)
_SLOT = _object(
    pipeline=TEXT,
    at=TIME,
    status=_one_of(SlotStatus),
    run_id=MAYBE_TEXT,
    reason=MAYBE_TEXT,
    failures=WHOLE,
)
_LETTER = _object(
    id=TEXT,
    pipeline=TEXT,
    stage=_one_of(LetterStage),
    status=_one_of(LetterStatus),
    reason=TEXT,
    source=MAYBE_TEXT,
    partition=MAYBE_TEXT,
    position=MAYBE_TEXT,
    target=MAYBE_TEXT,
    batch=MAYBE_TEXT,
    event_ts=MAYBE_TIME,
    failed_at=TIME,
    attempt=WHOLE,
    payload_format=TEXT,
    payload_size=WHOLE,
    whole=FLAG,
    headers=MAYBE_TEXT,
    loaded_in=TEXTS,
)
_LETTER_COUNT = _object(
    pipeline=TEXT,
    stage=_one_of(LetterStage),
    status=_one_of(LetterStatus),
    letters=WHOLE,
    oldest=TIME,
    newest=TIME,
)
_BYTES = _maybe({"type": "object", "properties": {"text": TEXT, "hex": TEXT}})
_ORIGIN = _object(source=TEXT, label=TEXT)
_CONNECTION = _object(
    name=TEXT,
    kind=MAYBE_TEXT,
    fields=ANYTHING,
    origin=_ORIGIN,
    shadowed=_list(_ORIGIN),
    problem=MAYBE_TEXT,
)
_ERROR_PARTS = _object(type=TEXT, what=TEXT, where=MAYBE_TEXT, state=MAYBE_TEXT, next=MAYBE_TEXT)
_ACTION = _object(
    action_id=TEXT,
    kind=_one_of(ActionKind),
    subject=TEXT,
    arguments=ANYTHING,
    status=_one_of(ActionStatus),
    requested_by=TEXT,
    via=TEXT,
    requested_at=TIME,
    ended_at=MAYBE_TIME,
    fence=WHOLE,
    holder=MAYBE_TEXT,
    expires_at=MAYBE_TIME,
    outcome=MAYBE_TEXT,
    run_ids=TEXTS,
    begun=FLAG,
    deaths=WHOLE,
    why=MAYBE_TEXT,
)
_LEDGER_ENTRY = _object(
    pipeline=TEXT,
    target=TEXT,
    batch_key=TEXT,
    run_id=TEXT,
    source_from=MAYBE_TEXT,
    source_to=MAYBE_TEXT,
    rows_read=MAYBE_WHOLE,
    rows_inserted=MAYBE_WHOLE,
    rows_updated=MAYBE_WHOLE,
    rows_deleted=MAYBE_WHOLE,
    committed_at=TIME,
)
_NEIGHBOURS = _list(_object(pipeline=TEXT, run=_maybe(_named("Run"))))
_NODE = _object(
    id=TEXT,
    kind={"type": "string", "enum": ["pipeline", "stream", "workflow", "table"]},
    name=TEXT,
    state=MAYBE_TEXT,
    detail=MAYBE_TEXT,
)
_EDGE_KINDS: Schema = {"type": "string", "enum": ["loads", "reads", "depends_on", "runs", "triggers"]}

SCHEMAS: dict[str, Schema] = {
    "Error": _object(error=_ERROR_PARTS),
    "Session": _object(token=TEXT),
    "SessionRole": _object(role={"type": "string", "enum": ["reader", "operator"]}),
    "Me": _object(
        role={"type": "string", "enum": ["reader", "operator"]},
        read_only=FLAG,
        version=TEXT,
        module=TEXT,
        run_log=TEXT,
        scheduler=FLAG,
        zone=TEXT,
        module_changed=TEXTS,
        features=_object(dead_letters=FLAG, samples=FLAG),
    ),
    "Change": _object(
        kind={"type": "string", "enum": ["run", "action", "slot", "stream", "hold", "store"]},
        name=TEXT,
        id=TEXT,
        status=TEXT,
        at=TIME,
    ),
    "Hold": _HOLD,
    "Run": _RUN,
    "Pipeline": _PIPELINE,
    "Pipelines": _items(_named("Pipeline")),
    "PipelineDetails": _with(
        _PIPELINE,
        upstreams=TEXTS,
        downstreams=TEXTS,
        workflows=TEXTS,
        source=_object(connection=TEXT, table=MAYBE_TEXT, watermark_column=MAYBE_TEXT),
        schedule_text=TEXT,
    ),
    "Plan": {"type": "object", "description": "As flow plan --output json."},
    "Graph": _object(
        nodes=_list(_NODE), edges=_list(_object(**{"from": TEXT, "to": TEXT, "kind": _EDGE_KINDS}))
    ),
    "Runs": _page(_with(_RUN, is_held=FLAG)),
    "RunDetails": _with(
        _RUN,
        previous=MAYBE_TEXT,
        next=MAYBE_TEXT,
        attempts=_list(_named("Run")),
        can=_object(
            stop=_POSSIBLE,
            restart=_POSSIBLE,
            pause=_POSSIBLE,
            resume=_POSSIBLE,
            resume_from_watermark=_POSSIBLE,
        ),
    ),
    "RunsAround": _object(
        previous=_maybe(_named("Run")),
        next=_maybe(_named("Run")),
        upstream=_NEIGHBOURS,
        downstream=_NEIGHBOURS,
        left_out=WHOLE,
    ),
    "RunLedger": _object(
        run_id=TEXT,
        targets=_list(
            _object(
                target=TEXT,
                entries=_list(_LEDGER_ENTRY),
                note=MAYBE_TEXT,
                error=_maybe(_with(_ERROR_PARTS, exit_code=WHOLE)),
            )
        ),
    ),
    "RunLines": _object(run_id=TEXT, status=_one_of(RunStatus), lines=TEXTS),
    "Stream": _object(
        name=TEXT,
        kind={"const": "stream"},
        description=MAYBE_TEXT,
        sources=TEXTS,
        targets=_TARGETS,
        on_error=TEXT,
        where=MAYBE_TEXT,
        run=_maybe(_named("Run")),
        sample=_maybe(ANYTHING),
        hold=_maybe(_named("Hold")),
        dead_letters=_maybe(_object(by_status=ANYTHING)),
    ),
    "Streams": _items(_named("Stream")),
    "Samples": _object(samples=_list(ANYTHING)),
    "Letter": _LETTER,
    "Letters": _page(_named("Letter"), counts=_list(_LETTER_COUNT)),
    "LetterDetails": _with(_LETTER, payload=_BYTES, key=_BYTES, payload_shown=WHOLE),
    "Schedule": _object(
        slots=_list(_SLOT),
        upcoming=_list(_object(pipeline=TEXT, at=TIME)),
        missed=_list(_SLOT),
        holds=_list(_named("Hold")),
    ),
    "Workflows": _items(
        _object(
            kind={"const": "workflow"},
            workflow=TEXT,
            jobs=TEXTS,
            schedule=MAYBE_TEXT,
            timezone=MAYBE_TEXT,
            triggered_by=_maybe(ANYTHING),
            outcome=TEXT,
            slot=_maybe(_SLOT_STATE),
            waits_for=TEXTS,
            next_due=MAYBE_TIME,
            jobs_state=_list(_object(pipeline=TEXT, status=TEXT)),
        )
    ),
    "Connections": _items(_CONNECTION),
    "ConnectionCheck": _object(
        name=TEXT,
        result={"type": "string", "enum": ["ok", "failed"]},
        seconds=NUMBER,
        found=TEXT,
        error=_maybe(ANYTHING),
    ),
    "Action": _ACTION,
    "Actions": _page(_with(_ACTION, pipeline=MAYBE_TEXT)),
    "ActionRequest": {
        "type": "object",
        "properties": {"kind": _one_of(ActionKind), "subject": TEXT, "arguments": ANYTHING},
        "required": ["kind", "subject"],
    },
}
