"""What the targets committed for a run: the entries that their ledgers have of it.

Targets are asked at the same time, and each has a limited time to answer. No engine is started: a ledger that
only Spark can read is not read.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ematix_flow.backends.base import STREAM_BATCHES, STREAM_BATCHES_KEPT, LedgerEntry
from ematix_flow.errors import CannotConnect, EngineError, FlowError
from ematix_flow.graph.registry import Registry
from ematix_flow.plan.results import unexpected_error
from ematix_flow.run.context_setup import refuse_spark
from ematix_flow.run.pipeline import open_connections
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.spec.streams import StreamTargetSpec
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now

ANSWER_SECONDS = 15.0
MOST_SHOWN, MOST_READ = 100, 1_000  # entries of a run of a stream, which has one for each batch
_REPLAY = "replay:"
_COUNTED = ("read", "inserted", "updated", "deleted", "unchanged")
_OLDER_NOT_READ = "older entries were not read"
_KEPT = f"it keeps the batches of a stream for {STREAM_BATCHES_KEPT.days} days"
_LEDGER_CHANGED = "it was emptied or restored, or the connection leads to another place now"
_NOTHING_YET = "nothing is committed for this run yet"
_NOTHING = "the ledger has no entry of this run: it committed nothing here"


@dataclass(frozen=True)
class TargetLedger:
    """The entries of a run in the ledger of one target, newest first.

    ``note`` says why there are none, or what about them is not plain. ``error``: the ledger was not read.
    """

    target: str
    entries: tuple[LedgerEntry, ...] = ()
    note: str | None = None
    error: FlowError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "entries": [_entry_json(entry) for entry in self.entries],
            "note": self.note,
            "error": self.error.to_json() if self.error else None,
        }


def _entry_json(entry: LedgerEntry) -> dict[str, Any]:
    return {
        "pipeline": entry.pipeline,
        "target": entry.target,
        "batch_key": entry.batch_key,
        "run_id": entry.run_id,
        "source_from": entry.source_from,
        "source_to": entry.source_to,
        "rows_read": entry.rows.read,
        "rows_inserted": entry.rows.inserted,
        "rows_updated": entry.rows.updated,
        "rows_deleted": entry.rows.deleted,
        "committed_at": entry.committed_at.isoformat(),
    }


Reader = Callable[[], TargetLedger]


def read_run_ledger(
    registry: Registry, record: RunRecord, seconds: float = ANSWER_SECONDS
) -> list[TargetLedger]:
    """Ask each target of the run. One that fails, or takes longer than ``seconds``, hides no other."""
    readers = _readers(registry, record)
    found: dict[str, TargetLedger] = {}

    def read(label: str) -> None:
        try:
            found[label] = readers[label]()
        except EngineError:
            note = "its ledger can be read by Spark only, which is not started to show it"
            found[label] = TargetLedger(label, note=note)
        except FlowError as error:
            found[label] = TargetLedger(label, error=error)
        except Exception as problem:  # a driver may raise anything, and the other targets are shown
            found[label] = TargetLedger(label, error=unexpected_error(problem))

    threads = []
    for label in readers:
        work = contextvars.copy_context().run  # the thread finds connections by the registry of this one
        threads.append(threading.Thread(target=work, args=(read, label), daemon=True))
        threads[-1].start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    answers = dict(found)
    return [answers.get(label) or _no_answer(label, seconds) for label in readers]


def _no_answer(label: str, seconds: float) -> TargetLedger:
    error = CannotConnect(
        f"{label} did not answer within {seconds:g} s",
        state="what it committed for this run is not known here; nothing was changed",
        next_step=f"flow connections check {label.partition(':')[0]}  says whether its connection works",
    )
    return TargetLedger(label, error=error)


# ------------------------------------------------------------------ which targets


def _readers(registry: Registry, record: RunRecord) -> dict[str, Reader]:
    """What reads the ledger of each target of the run."""
    name = record.pipeline.removeprefix(_REPLAY)
    declared: dict[str, Reader] = {}
    if name in registry.pipelines:
        spec = registry.pipelines[name].spec
        declared = {target.label: partial(_read_load, spec, target, record) for target in spec.targets}
    elif name in registry.streams:
        kind = STREAM_BATCHES if name == record.pipeline else "dlq:"
        targets = registry.streams[name].spec.targets
        declared = {target.label: partial(_read_batches, name, kind, target, record) for target in targets}
    else:
        why = f"the module does not declare {name!r}, so it is not known how to reach this target"
        if ":" in name:
            why = f"flow {name.partition(':')[0]} commits no batch, so no ledger has an entry of this run"
        return {record.target: partial(TargetLedger, record.target, note=why)}
    recorded = record.target.split(", ")
    if record.target == ", ".join(declared):
        recorded = list(declared)
    gone = f"{name!r} no longer has this target, so it is not asked"
    return {
        label: declared.get(label) or partial(TargetLedger, label, note=gone) for label in recorded if label
    }


# ------------------------------------------------------------------ one target


def _read_load(spec: PipelineSpec, target: TargetSpec, record: RunRecord) -> TargetLedger:
    """The entry of a run of a pipeline, which commits to a target once."""
    sink = open_connections(refuse_spark).target(target.connection)
    own = sink.ledger(spec.name, target.label, run_id=record.run_id, limit=1)
    if own:
        return TargetLedger(target.label, (own[0],))
    read = sink.ledger(spec.name, target.label, limit=MOST_READ) if record.batch is not None else []
    for entry in read:
        if entry.batch_key == record.batch:
            note = f"run {entry.run_id[:8]} committed the batch of this run; this run did not load it again"
            return TargetLedger(target.label, (entry,), note)
    if any(_recorded_rows(record, target.label)):
        note = f"the ledger no longer has the entry of this run, which recorded rows: {_LEDGER_CHANGED}"
    elif record.status == "running":
        note = _NOTHING_YET
    elif len(read) == MOST_READ:
        note = f"none of the newest {MOST_READ:,} entries is of this run or its batch; {_OLDER_NOT_READ}"
    else:
        note = _NOTHING
    return TargetLedger(target.label, note=note)


def _recorded_rows(record: RunRecord, label: str) -> tuple[int | None, ...]:
    """The counts that the run recorded of this target; none if it recorded only those of several together."""
    for found in record.metrics.get("targets") or ():
        if found.get("target") == label:
            return tuple(found.get(f"rows_{name}") for name in _COUNTED)
    return tuple(getattr(record.rows, name) for name in _COUNTED) if record.target == label else ()


def _read_batches(stream: str, kind: str, target: StreamTargetSpec, record: RunRecord) -> TargetLedger:
    """The entries of a run of a stream: all that committed during it, as its batches have their own ids.

    A replay of quarantined rows has the id of its run.
    """
    connections = open_connections(refuse_spark)
    if connections.backend(target.connection).message_target() is not None:
        return TargetLedger(target.label, note="a message broker keeps no ledger")
    sink = connections.target(target.connection)
    read = sink.ledger(stream, target.label, limit=MOST_READ)
    last = record.finished_at or dt.datetime.max.replace(tzinfo=dt.timezone.utc)
    found = [
        entry
        for entry in read
        if entry.run_id == record.run_id
        or (entry.batch_key.startswith(kind) and record.started_at <= entry.committed_at <= last)
    ]
    is_cut = len(read) == MOST_READ and read[-1].committed_at >= record.started_at
    forgets = sink.forgets_batches and kind == STREAM_BATCHES
    may_be_gone = forgets and record.started_at < utc_now() - STREAM_BATCHES_KEPT
    note = (
        _batches_note(len(found), is_cut=is_cut, may_be_gone=may_be_gone)
        if found
        else _no_batch_note(record, is_cut=is_cut, may_be_gone=may_be_gone)
    )
    return TargetLedger(target.label, tuple(found[:MOST_SHOWN]), note)


def _batches_note(count: int, *, is_cut: bool, may_be_gone: bool) -> str | None:
    """What about the batches that were found is not plain."""
    shown = f"the newest {MOST_SHOWN} of {count:,} batches" if count > MOST_SHOWN else None
    if is_cut:
        shown = shown or ("1 batch" if count == 1 else f"{count} batches")
        return f"{shown} among the newest {MOST_READ:,} entries of the ledger; {_OLDER_NOT_READ}"
    gone = f"older ones may be gone: {_KEPT}" if may_be_gone else None
    return "; ".join(filter(None, (shown, gone))) or None


def _no_batch_note(record: RunRecord, *, is_cut: bool, may_be_gone: bool) -> str:
    if is_cut:
        return f"none of the newest {MOST_READ:,} entries is of this run; {_OLDER_NOT_READ}"
    has_loaded = bool(record.rows.inserted)  # all rows that a stream has written
    if may_be_gone:
        gone = "no longer has the entries of this run" if has_loaded else "has no entry of this run"
        return f"the ledger {gone}: {_KEPT}, and this run began earlier"
    if has_loaded:
        return f"the ledger no longer has the entries of this run, which recorded rows: {_LEDGER_CHANGED}"
    return _NOTHING_YET if record.status == "running" else _NOTHING
