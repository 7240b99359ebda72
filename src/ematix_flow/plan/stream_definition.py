"""The plan of a stream: its columns, and how each target is loaded, as an immutable value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ematix_flow.backends.base import LoadPlan
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.plan.decisions import Decision
from ematix_flow.plan.stream_progress import QueryProgress
from ematix_flow.spec.pipelines import connection_label
from ematix_flow.spec.streams import LookupSpec, StreamSpec, StreamTargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.windows import StateStore, Watermark


@dataclass(frozen=True)
class ExpectedTarget:
    """What is known about a target before the first message: everything except its columns."""

    target: StreamTargetSpec
    guarantee: Decision

    @property
    def open_question(self) -> str:
        what = "what a message holds comes" if self.target.is_broker else "the table's columns come"
        return f"{what} with the first messages"

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target.label,
            "mode": self.target.mode,
            "keys": list(self.target.keys),
            "guarantee": self.guarantee.value,
            "reason": self.guarantee.reason,
            "changes": [],
            "warnings": [],
            "open": self.open_question,
        }


@dataclass(frozen=True)
class StreamTargetPlan:
    """The plan of one target.

    ``table`` has the columns that it receives; for a broker those of its messages.
    """

    target: StreamTargetSpec
    load: LoadPlan
    guarantee: Decision
    projection: str | None = None  # Spark SQL over `STREAM_VIEW` that makes the table's rows
    warnings: tuple[str, ...] = ()
    commit: Decision | None = None  # how batches are committed, where the target has several methods

    @property
    def table(self) -> TableSpec:
        return self.load.table


@dataclass(frozen=True)
class StreamPlan:
    """Everything that a stream will do, and why."""

    stream: StreamSpec
    columns: tuple[ColumnSpec, ...] | None  # None: inferred from the first messages
    columns_by: str
    payloads: tuple[PayloadSpec | None, ...]  # of each source; None if its rows have columns
    source_columns: tuple[tuple[ColumnSpec, ...] | None, ...] = ()  # of each source of a join, if known
    targets: tuple[StreamTargetPlan, ...] = ()
    expected: tuple[ExpectedTarget, ...] = ()  # instead of targets, until the columns are known
    progress: tuple[QueryProgress, ...] = ()  # of each query, as it was when the plan was asked for

    @property
    def joined_columns(self) -> tuple[tuple[ColumnSpec, ...], tuple[ColumnSpec, ...]]:
        """The columns of the left and of the right source of the join."""
        left, right = (self.source_columns[number] for number in self.stream.joined_sources)
        assert left is not None and right is not None
        return left, right

    def to_json(self) -> dict[str, Any]:
        spec = self.stream
        return {
            "pipeline": spec.name,
            "sources": [
                {"source": source.label, "payload": payload.format if payload else "columns"}
                for source, payload in zip(spec.sources, self.payloads, strict=True)
            ],
            "columns": [{"name": c.name, "type": str(c.type)} for c in self.columns or ()],
            "columns_by": self.columns_by,
            "transform_sql": spec.transform_sql,
            "lookups": [_lookup_json(lookup) for lookup in spec.lookups],
            "functions": [function.signature for function in spec.functions],
            "window": spec.window.to_json() if spec.window else None,
            "join": spec.join.to_json() if spec.join else None,
            "watermark": asdict(spec.watermark or Watermark()) if spec.is_stateful else None,
            "state_store": (spec.state_store or StateStore()).kind if spec.is_stateful else None,
            "cdc": spec.cdc.to_json() if spec.cdc else None,
            "on_error": spec.on_error,
            "progress": [each.to_json() for each in self.progress],
            "targets": [
                {
                    "target": plan.target.label,
                    "mode": plan.target.mode,
                    "keys": list(plan.target.keys),
                    "guarantee": plan.guarantee.value,
                    "reason": plan.guarantee.reason,
                    "commit": asdict(plan.commit) if plan.commit else None,
                    "changes": [change.sql or change.subject for change in plan.load.table_plan.changes],
                    "warnings": list(plan.warnings),
                }
                for plan in self.targets
            ]
            + [expected.to_json() for expected in self.expected],
        }

    def __str__(self) -> str:
        spec = self.stream
        lines = [f"stream {spec.name}"]
        for source, payload in zip(spec.sources, self.payloads, strict=True):
            lines.append(
                f"  follows   {source.label}  ({payload.format if payload else 'rows with columns'})"
            )
        lines += [line for each in self.progress for line in each.lines()]
        if any(source.starting for source in spec.sources) and any(each.has_begun for each in self.progress):
            lines.append("              starting= has no effect: only a new stream begins there")
        lines.append(f"  columns   {self.columns_by}")
        for column in self.columns or ():
            lines.append(
                f"              {column.name}  {column.type}{'' if column.nullable else '  not null'}"
            )
        sql = [f"  SQL       {' '.join(spec.transform_sql.split())[:100]}"] if spec.transform_sql else []
        sql += [f"  lookup    {_describe_lookup(lookup)}" for lookup in spec.lookups]
        sql += [f"  function  {function.signature}" for function in spec.functions]
        state = _describe_state(spec)
        lines += [*state, *sql] if spec.join else [*sql, *state]  # in the order in which they run
        lines += [f"  cdc       {spec.cdc}"] if spec.cdc else []
        lines.append(f"  on error  {spec.on_error}")
        for plan in self.targets:
            lines += _describe_target(plan.target, plan.guarantee)
            if plan.commit is not None:
                lines.append(f"              commit = {plan.commit.value}: {plan.commit.reason}")
            lines += [
                f"              {change.sql or change.subject}" for change in plan.load.table_plan.changes
            ]
            lines += [f"              warning: {text}" for text in plan.warnings]
        for expected in self.expected:
            lines += _describe_target(expected.target, expected.guarantee)
            lines.append(f"              {expected.open_question}")
        return "\n".join(lines)


def _describe_state(spec: StreamSpec) -> list[str]:
    """The lines of a plan about the window or the join, its watermark and its state."""
    stateful = spec.window or spec.join
    if stateful is None:
        return []
    watermark = spec.watermark or Watermark()
    late = f" for {stateful.allowed_lateness_ms} ms" if stateful.late_data == "reopen" else ""
    idle_ms = watermark.source_idleness_ms
    idle = "" if idle_ms is None else f"; goes on with the clock after {idle_ms} ms without rows"
    kept = spec.state_store.kind if spec.state_store else "checkpoint"
    lost = "open windows" if spec.window else "rows that wait for a partner"
    where = {
        "in_memory": f"in memory: a restart loses {lost}",
        "postgres": f"next to the checkpoint, and both in Postgres, schema {_schema(spec)}",
    }.get(kept, "next to the checkpoint")
    return [
        f"  {'window' if spec.window else 'join':9} {stateful}",
        f"  event     {stateful.event_time_column}, watermark {watermark.lateness_ms or 0} ms behind{idle}",
        f"  late rows {stateful.late_data}{late}",
        f"  state     {where}",
    ]


def _lookup_json(lookup: LookupSpec) -> dict[str, Any]:
    """Without the connection's fields, which may hold secrets."""
    return {**lookup.to_json(), "connection": connection_label(lookup.connection)}


def _describe_lookup(lookup: LookupSpec) -> str:
    what = lookup.table or "a query"
    again = "at the start only"
    if lookup.refresh_interval_ms is not None:
        again = f"at the start and every {lookup.refresh_interval_ms} ms"
    return f"{lookup.name}: {what} of {connection_label(lookup.connection)}, read {again}"


def _schema(spec: StreamSpec) -> str:
    return spec.state_store.schema if spec.state_store else ""


def _describe_target(target: StreamTargetSpec, guarantee: Decision) -> list[str]:
    """A target's lines in a plan as text."""
    keys = f"  (keys {', '.join(target.keys)})" if target.keys else ""
    return [
        f"  {target.mode:9} into {target.label}{keys}",
        f"              {guarantee.value}: {guarantee.reason}",
    ]
