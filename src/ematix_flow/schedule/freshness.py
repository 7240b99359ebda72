"""Checks freshness: how old the loaded data of a pipeline is, compared with its ``freshness_sla``."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlglot import exp

from ematix_flow.backends.base import BatchSource
from ematix_flow.engine.connections import Connections
from ematix_flow.errors import FlowError, LoadError, Unsupported, UsageError
from ematix_flow.observe.alerts.event import FRESHNESS
from ematix_flow.observe.observer import Observers, RunEnd
from ematix_flow.run.recording import with_code_version
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from ematix_flow.strategies.sql import column, verbatim

FreshnessState = Literal["healthy", "warning", "breached"]
WARNING_SHARE = 0.8
_MEANWHILE = dt.timedelta(seconds=10)  # within which another machine may report the same
_LOOKBACK = 50
_NAMES = uuid.UUID("0f0f3c4e-6a4e-4c40-8d0c-5d1d6f6c1b11")


class Stale(LoadError):
    """The loaded data of a pipeline is older than its ``freshness_sla`` allows."""


@dataclass(frozen=True)
class Freshness:
    """The freshness of one pipeline. ``since`` is the time of its newest data, None if there is none."""

    pipeline: str
    state: FreshnessState
    sla_seconds: float
    since: dt.datetime | None = None
    lag_seconds: float | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state": self.state,
            "lag_seconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "sla_seconds": self.sla_seconds,
            "since": self.since.isoformat() if self.since else None,
            "reason": self.reason,
        }


def check_freshness(
    spec: PipelineSpec, run_log: RunLog, now: dt.datetime, connections: Connections | None = None
) -> Freshness | None:
    """Return the freshness of a pipeline; None if it declares no ``freshness_sla``.

    A ``freshness_column`` is read from the target, which needs ``connections``. ``breached``: the pipeline
    never succeeded, its data is too old, or the target cannot be read. ``warning``: from 80 % of the SLA on.
    """
    sla = spec.freshness_seconds
    if sla is None:
        return None
    if spec.freshness_column is None:
        since, missing = last_success_time(spec.name, run_log), "it never succeeded"
    elif connections is None:
        raise ValueError("a freshness_column is read from the target: give the connections")
    else:
        try:
            since, missing = (
                _newest_value(spec, connections),
                f"{spec.freshness_column} has no value in the target",
            )
        except FlowError as error:
            advice = f" ({error.next_step})" if error.next_step else ""
            since, missing = None, f"the target cannot be read: {error.what}{advice}"
    if since is None:
        return Freshness(spec.name, "breached", sla, reason=missing)
    lag = max(0.0, (now - since).total_seconds())
    state: FreshnessState = "healthy"
    if lag > sla:
        state = "breached"
    elif lag >= WARNING_SHARE * sla:
        state = "warning"
    return Freshness(spec.name, state, sla, since, lag)


def last_success_time(pipeline: str, run_log: RunLog) -> dt.datetime | None:
    """Return the end of the newest run that loaded, or that found nothing new."""
    found = run_log.list(pipeline, "succeeded", limit=1)
    recent = run_log.list(pipeline, "skipped", limit=_LOOKBACK)
    found += tuple(run for run in recent if run.ended_well)[:1]
    return max((run.finished_at or run.started_at for run in found), default=None)


def _newest_value(spec: PipelineSpec, connections: Connections) -> dt.datetime | None:
    """Return the highest value of the freshness column in the target, by one query."""
    target = spec.targets[0]
    backend = connections.backend(target.connection)
    source = backend.source()
    if not isinstance(source, BatchSource) or target.table is None or spec.freshness_column is None:
        raise Unsupported(
            f"the newest {spec.freshness_column} of {target.label} cannot be read without Spark",
            where=spec.where,
            next_step="leave out freshness_column=, and the last successful run counts",
        )
    rows = source.table_query(target.table.label, [("newest", spec.freshness_column)])
    query = exp.select(exp.Max(this=column("newest"))).from_(exp.alias_(verbatim(rows), "loaded", table=True))
    _, found = backend.query(query.sql(dialect=source.dialect), limit=1)
    return _as_utc(found[0][0] if found else None, spec)


def _as_utc(value: object, spec: PipelineSpec) -> dt.datetime | None:
    """Return a value of the driver as a UTC time.

    A value without a time zone is UTC, like all loaded times.
    """
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # then it is refused below
            value = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    if value is None or isinstance(value, dt.datetime):
        return value if value is None or value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
    raise Unsupported(
        f"freshness_column={spec.freshness_column!r} holds {type(value).__name__}, and must hold times",
        where=spec.where,
        next_step="name a column of timestamps or dates",
    )


def report_freshness(spec: PipelineSpec, freshness: Freshness, run_log: RunLog, observers: Observers) -> None:
    """Report a breach, and its end, to the observers. Each is recorded once in the run log."""
    name = f"{FRESHNESS}{freshness.pipeline}"
    last = run_log.last(name)
    error = None
    if freshness.state == "breached":
        step = f"flow runs list --pipeline {freshness.pipeline}"
        error = Stale(_breach_message(freshness), where=spec.where, next_step=step)
    elif last is None:
        return
    # a known breach is reported again; observers that already reported it stay silent
    is_known = last is not None and (last.status == "failed") == (error is not None)
    _record_and_notify(
        last if last is not None and is_known else _next_record(name, spec, last), error, run_log, observers
    )


def _next_record(name: str, spec: PipelineSpec, last: RunRecord | None) -> RunRecord:
    record = RunRecord(
        # not random: another process that checks at the same time finds the same record
        run_id=str(uuid.uuid5(_NAMES, f"{name}\n{last.run_id if last else ''}")),
        pipeline=name,
        target=", ".join(target.label for target in spec.targets),
        mode="freshness",
        trigger="freshness-check",
    )
    return with_code_version(record, spec.where)


def _record_and_notify(
    record: RunRecord, error: FlowError | None, run_log: RunLog, observers: Observers
) -> None:
    status: Literal["succeeded", "failed"] = "succeeded" if error is None else "failed"
    try:
        run_log.start(record)
        run_log.finish(record.run_id, status, error=error)
    except UsageError:
        record = run_log.get(record.run_id)
        if utc_now() - record.started_at < _MEANWHILE:
            return
    finished = replace(
        record,
        status=status,
        finished_at=utc_now(),
        error_type=None if error is None else type(error).__name__,
        error_message=None if error is None else str(error),
    )
    observers.run_finished(finished, RunEnd(error=error))


def _breach_message(freshness: Freshness) -> str:
    allowed = _format_duration(freshness.sla_seconds)
    if freshness.lag_seconds is None:
        return f"{freshness.reason}; its freshness_sla is {allowed}"
    return f"its newest data is {_format_duration(freshness.lag_seconds)} old; its freshness_sla is {allowed}"


def _format_duration(seconds: float) -> str:
    whole = round(seconds)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if whole >= 2 * size or whole == size:
            return f"{whole // size} {unit}"
    return f"{whole} s"
