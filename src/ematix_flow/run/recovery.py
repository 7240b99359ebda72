"""Recovers interrupted runs: settles each from the targets' ledgers, which know what committed."""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.sql.load_steps import count_unchanged_rows
from ematix_flow.engine.connections import Connections
from ematix_flow.errors import FlowError
from ematix_flow.observe.listener import Attempt
from ematix_flow.observe.observer import Observers, RunEnd
from ematix_flow.run.run_context import RestartedRun
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.spec.row_counts import NO_ROWS, RowCounts
from ematix_flow.state.file_locks import process_is_alive
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now

_LOOKBACK = 100  # runs and ledger entries: those of a slot that has not ended are among the newest
COMMITTED = "the process ended before it recorded its result, but the ledger has the batch: it is committed"
_log = logging.getLogger(__name__)


def settle_interrupted_runs(
    spec: PipelineSpec,
    connections: Connections,
    run_log: RunLog,
    own_run_id: str,
    unreachable: Collection[str],
    note: Callable[[str], None],
    observers: Observers,
) -> bool:
    """Settle the runs that died; true if there were any.

    Called with the pipeline's locks held: a run that is still ``running`` is dead. ``unreachable`` targets
    are not asked. If the run log does not answer, the next run settles them. No ledger knows whether
    post-load transforms ran: a pipeline that has some did not succeed unless its run recorded so.
    """
    try:
        unfinished = run_log.running(spec.name)
    except FlowError as error:
        note(f"it is not known whether an earlier run was interrupted: {error.what}")
        return False
    died_runs = [each for each in unfinished if each.run_id != own_run_id and not is_process_alive(each)]
    for record in died_runs:
        entries = committed_entries(spec, connections, record.run_id, record.batch, unreachable)
        committed, counts = list(entries), _committed_counts(spec, entries, record)
        if len(committed) == len(spec.targets) and not spec.transforms_post:
            reason = COMMITTED
            run_log.settle(record.run_id, "succeeded", reason, **counts)
        else:
            reason = _interrupted_reason(spec, committed, unreachable)
            if run_log.settle(record.run_id, "interrupted", reason, **counts):
                ended = {"finished_at": utc_now(), "error_message": reason, **counts}
                died = replace(record, status="interrupted", **ended)
                observers.run_finished(died, RunEnd(spec.retry.max_attempts, will_retry=True))
        note(f"run {record.run_id[:8]} of {record.started_at:%Y-%m-%d %H:%M:%S} UTC: {reason}")
    return bool(died_runs)


def _interrupted_reason(spec: PipelineSpec, committed: Collection[str], unreachable: Collection[str]) -> str:
    reachable = [t.label for t in spec.targets if t.label not in unreachable]
    missing = ", ".join(label for label in reachable if label not in committed)
    if missing:
        reason = f"the process ended before it committed to {missing}; nothing of it is there"
    else:
        reason = f"the process ended after it had committed to {', '.join(committed)}"
        if spec.transforms_post:
            reason += "; its post-load transforms may not have run"
    return f"{reason}; {', '.join(unreachable)} cannot be reached now" if unreachable else reason


def committed_targets(
    spec: PipelineSpec,
    connections: Connections,
    run_id: str | None,
    batch: str | None = None,
    unreachable: Collection[str] = (),
) -> list[str]:
    """Return the targets whose ledger holds this batch, or an entry of this run."""
    return list(committed_entries(spec, connections, run_id, batch, unreachable))


def committed_entries(
    spec: PipelineSpec,
    connections: Connections,
    run_id: str | None,
    batch: str | None = None,
    unreachable: Collection[str] = (),
) -> dict[str, LedgerEntry]:
    """Return, by target, the ledger entry of this run, or else of this batch."""
    reachable = [target for target in spec.targets if target.label not in unreachable]
    found = {target.label: ledger_entry(spec, target, connections, run_id, batch) for target in reachable}
    return {label: entry for label, entry in found.items() if entry is not None}


def restarted_entries(
    spec: PipelineSpec,
    connections: Connections,
    restart: RestartedRun,
    attempt: Attempt,
    unreachable: Collection[str] = (),
) -> dict[str, LedgerEntry]:
    """Return, by target, the ledger entry that a restarted run or an attempt of this run has committed."""
    run_ids = {*restart.run_ids, *attempt.earlier_run_ids}
    found: dict[str, LedgerEntry] = {}
    for target in spec.targets:
        if target.label not in unreachable:
            sink = connections.target(target.connection)
            for entry in sink.ledger(spec.name, target.label, limit=_LOOKBACK):
                if entry.run_id in run_ids or entry.batch_key == attempt.batch_key:
                    found.setdefault(target.label, entry)
    return found


def ledger_holds(
    spec: PipelineSpec,
    target: TargetSpec,
    connections: Connections,
    run_id: str | None,
    batch: str | None = None,
) -> bool:
    """Whether the target's ledger holds this batch, or an entry of this run."""
    return ledger_entry(spec, target, connections, run_id, batch) is not None


def ledger_entry(
    spec: PipelineSpec, target: TargetSpec, connections: Connections, run_id: str | None, batch: str | None
) -> LedgerEntry | None:
    """Return the target's ledger entry of this run, or else of this batch."""
    sink = connections.target(target.connection)
    own = sink.ledger(spec.name, target.label, run_id=run_id, limit=1) if run_id is not None else []
    if own:
        return own[0]
    # only recent batches are asked for; the load's own transaction finds older ones
    recent = sink.ledger(spec.name, target.label) if batch is not None else []
    return next((entry for entry in recent if entry.batch_key == batch), None)


def _committed_counts(
    spec: PipelineSpec, entries: Mapping[str, LedgerEntry], record: RunRecord
) -> dict[str, Any]:
    """Return what a run committed, as it would have recorded it; nothing if an earlier run loaded it."""
    targets = {target.label: target for target in spec.targets}
    own = {label: entry for label, entry in entries.items() if entry.run_id == record.run_id}
    if not own:
        return {}
    rows = sum((committed_rows(targets[label], entry) for label, entry in own.items()), NO_ROWS)
    first = own.get(spec.targets[0].label)
    return {"rows": rows} | (
        {"source_from": first.source_from, "source_to": first.source_to} if first else {}
    )


def committed_rows(target: TargetSpec, entry: LedgerEntry) -> RowCounts:
    """Return the counts of a committed load.

    For scd2 by event time a ledger cannot tell how many rows were unchanged: that count stays unknown.
    """
    if target.mode == "scd2" and target.event_timestamp_column is not None:
        return entry.rows
    return replace(entry.rows, unchanged=count_unchanged_rows(target.mode, entry.rows))


def slot_batch_key(slot: dt.datetime) -> str:
    """Return the batch key that every run of a slot loads under."""
    return f"slot:{slot.isoformat()}"


@dataclass(frozen=True)
class SlotLoad:
    """How far the runs of a slot or of a shared batch key got.

    ``loaded``: into every target; ``done``: with post-load transforms.

    No ledger knows whether post-load transforms ran. If the pipeline has some, a slot is done only when a
    run of it has recorded so.
    """

    loaded: bool = False
    done: bool = False


def slot_load(spec: PipelineSpec, slot: dt.datetime, connections: Connections, run_log: RunLog) -> SlotLoad:
    """Ask the ledgers and the run log. An incremental load is known by its run, any other by its batch."""
    return _load_of(spec, slot_batch_key(slot), lambda run: run.slot == slot, connections, run_log)


def batch_load(spec: PipelineSpec, batch: str, connections: Connections, run_log: RunLog) -> SlotLoad:
    """Ask the ledgers and the run log about a batch key that several runs may share."""
    return _load_of(spec, batch, lambda run: run.batch == batch, connections, run_log)


def _load_of(
    spec: PipelineSpec,
    batch: str,
    is_run: Callable[[RunRecord], bool],
    connections: Connections,
    run_log: RunLog,
) -> SlotLoad:
    try:
        runs = [run for run in run_log.list(spec.name, limit=_LOOKBACK) if is_run(run)]
    except FlowError:
        runs = []  # a run log that cannot be read stops no run
    ids = {run.run_id for run in runs}
    for target in spec.targets:
        entries = connections.target(target.connection).ledger(spec.name, target.label, limit=_LOOKBACK)
        if not any(entry.batch_key == batch or entry.run_id in ids for entry in entries):
            return SlotLoad()
    is_recorded = any(run.status == "succeeded" and run.error_message is None for run in runs)
    return SlotLoad(loaded=True, done=is_recorded or not spec.transforms_post)


def slot_is_done(
    spec: PipelineSpec,
    slot: dt.datetime,
    connections: Connections,
    run_log: RunLog,
    *,
    only_asked: bool = False,
) -> bool | None:
    """Whether a slot whose runs did not record their end is done; if so, its runs are recorded as succeeded.

    With ``only_asked`` nothing is recorded. None if a ledger cannot be read.
    """
    try:
        done = slot_load(spec, slot, connections, run_log).done
    except Exception as error:  # a driver may raise anything, and the slot has to end
        problem = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
        _log.warning("the ledger of %s could not be read for its slot %s: %s", spec.name, slot, problem)
        return None
    if only_asked:
        return done
    try:
        for record in run_log.running(spec.name) if done else ():
            if record.slot == slot and not is_process_alive(record):  # a live one records its own end
                counts = _committed_counts(spec, committed_entries(spec, connections, record.run_id), record)
                run_log.settle(record.run_id, "succeeded", COMMITTED, **counts)
    except FlowError as error:
        _log.warning(
            "the run log did not record that slot %s of %s is loaded: %s", slot, spec.name, error.what
        )
    return done


def is_process_alive(record: RunRecord) -> bool:
    """Whether the run is of another live process of this machine: it waits for a lock, or is about to end."""
    if record.host != socket.gethostname() or record.pid == os.getpid():
        return False
    return process_is_alive(record.pid)
