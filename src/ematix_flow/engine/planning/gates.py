"""Plans the gate of a target: which rules its rows must pass, and the quarantine table.

What a kind of target cannot evaluate exactly is refused here, before anything is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.base import Backend, BatchTarget, SparkTarget, TablePlan
from ematix_flow.backends.gated_target import GatedTarget
from ematix_flow.backends.sql.rule_checks import column_infos
from ematix_flow.backends.sql.table_names import require_distinct_names, require_table_names
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.errors import PlanError, SchemaMismatch, Unsupported, did_you_mean
from ematix_flow.spec.expectations import (
    RULE,
    Expectation,
    ExpectationsSpec,
    Gate,
    quarantine_table,
    referenced_columns,
)
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.sql import identifier
from ematix_probe.assertions import Unique

if TYPE_CHECKING:
    from ematix_probe.compiling import CompiledMeasures

SKIP_VARIABLE = "EMATIX_SKIP_QUALITY"


@dataclass(frozen=True)
class PlannedGate:
    """The gate of a target, the changes of its quarantine table, and warnings for the plan."""

    gate: Gate | None = None
    quarantine_plan: TablePlan = field(default_factory=TablePlan)
    warnings: tuple[str, ...] = ()


def are_checks_skipped(env: Mapping[str, str] | None = None) -> bool:
    """Whether the environment says that no expectation is checked: any value of the variable but a "no"."""
    value = (os.environ if env is None else env).get(SKIP_VARIABLE, "")
    return value.strip().lower() not in ("", "0", "false", "no", "off")


def plan_gate(
    expectations: ExpectationsSpec,
    table: TableSpec,
    matching: Matching,
    sink: BatchTarget,
    kind: str,
    where: SourceLocation | None,
    *,
    max_identifier_bytes: int | None = None,
) -> PlannedGate:
    """``table`` is that of the target; ``kind`` is the kind of its backend."""
    repeats_keys = matching.order is not None  # the newest row of each key is loaded, or each as a version
    rules = expectations.for_table(table, repeats_keys=repeats_keys) if expectations else ()
    if not rules:
        return PlannedGate()
    if are_checks_skipped():
        note = f"{SKIP_VARIABLE} is set: the {len(rules)} expectations of {table.label} are NOT checked"
        return PlannedGate(warnings=(note,))
    _refuse_repeated_names(rules, table, where)
    _require_columns(rules, table, where)
    gate = Gate(rules, where=where)
    if gate.set_aside_rules and expectations.to_dead_letters:
        _refuse_lost_messages(sink, kind, where)
        gate = replace(gate, to_dead_letters=True)
    elif gate.set_aside_rules:
        _refuse_partial_batches(matching, where)
        quarantine = quarantine_table(table, expectations.quarantine)
        _refuse_own_table(quarantine, table, where)
        require_table_names(quarantine, max_identifier_bytes)
        gate = replace(gate, quarantine=quarantine)
    _require_evaluable(gate, table, sink, kind, where)
    changes = TablePlan() if gate.quarantine is None else plan_quarantine(gate.quarantine, sink, where)
    return PlannedGate(gate, changes)


def _refuse_repeated_names(
    rules: tuple[Expectation, ...], table: TableSpec, where: SourceLocation | None
) -> None:
    labels = [rule.label for rule in rules]
    for label in labels:
        if labels.count(label) > 1:
            raise PlanError(
                f'two expectations of {table.label} are called {label!r}: expectations="table" implies one',
                where=where,
                next_step="leave the other one out, or give it a name with name=",
            )


def _require_columns(rules: tuple[Expectation, ...], table: TableSpec, where: SourceLocation | None) -> None:
    for rule in rules:
        for name in referenced_columns(rule.assertion):
            if name not in table.column_names:
                raise SchemaMismatch(
                    f"the expectation {rule.label!r} names {name!r}, which is not a column of {table.label}."
                    f"{did_you_mean(name, table.column_names)}",
                    where=where,
                )


def _refuse_own_table(quarantine: TableSpec, table: TableSpec, where: SourceLocation | None) -> None:
    tables = (table, table.companion() or table)
    if quarantine.label.lower() in [each.label.lower() for each in tables]:
        raise PlanError(
            f"quarantine={quarantine.label!r} is the table that the pipeline loads",
            where=where,
            next_step=f"leave quarantine= out for {table.label}__quarantine, or name another table",
        )


def _refuse_lost_messages(sink: BatchTarget, kind: str, where: SourceLocation | None) -> None:
    if isinstance(sink, SparkTarget) or not isinstance(sink, RelationalTarget):
        raise Unsupported(
            f"a target of kind {kind!r} does not tell from which message a failing row comes, so that the "
            "message cannot become a dead letter",
            where=where,
            next_step="leave quarantine= out: failing rows then go to the table <table>__quarantine",
        )


def refuse_lost_older_rows(
    gate: Gate, table: TableSpec, matching: Matching, sink: BatchTarget, kind: str
) -> None:
    """Refuse to set aside the newest message of a key where no older one of the batch can take its place."""
    if isinstance(sink, SparkTarget) or not isinstance(sink, RelationalTarget):
        raise Unsupported(
            f"a target of kind {kind!r} sets no rows aside from a stream of messages that it merges: where "
            "the last message of a key fails, an earlier one of the batch that passes would be lost",
            where=gate.where,
            next_step='use on_fail="fail" or "warn", or load a database',
        )
    for rule in gate.set_aside_rules:
        assertion = rule.assertion
        if isinstance(assertion, Unique) and not set(matching.keys) <= set(assertion.columns):
            raise Unsupported(
                f"the expectation {rule.label!r} cannot set rows aside from a stream of messages that "
                f"{table.label} merges: where the last message of a key fails, an earlier one of the batch "
                "takes its place, and may repeat the values of another row",
                where=gate.where,
                next_step='give it the action "fail" or "warn"',
            )


def refuse_shared_quarantine(
    targets: Sequence[tuple[Gate | None, Backend]], where: SourceLocation | None
) -> None:
    """Refuse one quarantine table for two targets, also where two connections reach one database."""
    held = [(gate.quarantine, backend) for gate, backend in targets if gate is not None and gate.quarantine]
    for (first, one), (second, other) in combinations(held, 2):
        if first.label.lower() != second.label.lower() or one.kind != other.kind:
            continue
        if one is not other and not one.is_same_database(other):
            continue
        if first.schema is None and _default_database(one) != _default_database(other):
            continue
        names = " and ".join(repr(each.connection.name) for each in (one, other))
        raise PlanError(
            f"the quarantine table {first.label} would hold the rows of two targets: the connections {names} "
            "reach the same database",
            where=where,
            next_step="leave quarantine= out: then each target has its own table, <table>__quarantine",
        )


def _default_database(backend: Backend) -> str | None:
    return backend.query_context().get("default database")


def _refuse_partial_batches(matching: Matching, where: SourceLocation | None) -> None:
    if matching.deletes is not None:
        raise PlanError(
            f"handle_deletes={matching.deletes!r} takes rows that the source lacks for deleted, and rows "
            "that are set aside would look like that",
            where=where,
            next_step='leave handle_deletes= out, or use on_fail="fail"',
        )


def _require_evaluable(
    gate: Gate, table: TableSpec, sink: BatchTarget, kind: str, where: SourceLocation | None
) -> None:
    """Compile the rules for the target, which refuses what it cannot evaluate."""
    from ematix_probe.compiling import compile_assertions

    if not isinstance(sink, GatedTarget):
        raise Unsupported(
            f"expectations cannot be checked in a target of kind {kind!r} before its rows become visible",
            where=where,
            next_step="check the rows with a data probe in transforms_pre= or transforms_post=",
        )
    if not isinstance(sink, RelationalTarget):
        require_distinct_names(table, "the gate")
    columns = column_infos(table.columns, sink.dialect if isinstance(sink, RelationalTarget) else None)
    rows = exp.select("*").from_(exp.Table(this=identifier("rows")))
    for rule in gate.rules:
        compiled = compile_assertions([rule.assertion], columns, sink.gate_dialect(), rows, _any_table)
        problem = _compile_problem(compiled)
        if problem is not None:
            raise PlanError(
                f"the expectation {rule.label!r} cannot be checked in {table.label}: {problem}",
                where=where,
                next_step="correct the expectation, or the type of the column",
            )


def _compile_problem(compiled: CompiledMeasures) -> str | None:
    """Why an assertion cannot be compiled; None if it can. Its measure is then the reason, for any rows."""
    try:
        (measured,) = compiled.read([0] * len(compiled.query.selects))
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return None  # it reads the measures, so it has been compiled
    problem = measured.values.get("error")
    return None if problem is None else str(problem).split("\n", 1)[0]


def _any_table(name: str) -> exp.Table:
    return exp.Table(this=identifier(name))


def plan_quarantine(table: TableSpec, sink: BatchTarget, where: SourceLocation | None) -> TablePlan:
    """The changes of the quarantine table. It follows the target's columns without being asked."""
    live = sink.inspect(table)
    if live is not None and RULE not in [column.name.lower() for column in live.columns]:
        raise SchemaMismatch(
            f"quarantine={table.label!r} is a table that is there, and not one for rows in quarantine",
            where=where,
            state="nothing was touched",
            next_step="name another table with quarantine=, which the first load creates",
        )
    plan = sink.plan_table(table, live, Matching())
    if plan.differences:
        raise SchemaMismatch(
            f"the quarantine table {table.label} cannot hold rows of the target: "
            + "; ".join(plan.differences),
            where=where,
            state="nothing was touched",
            next_step=f"replay or purge its rows and drop {table.label}, or name another with quarantine=",
        )
    return plan
