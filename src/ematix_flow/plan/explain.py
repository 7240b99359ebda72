"""Describes the stages of a plan for a person, from the same values that the executor carries out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ematix_flow.plan.stages import (
    ApplyRows,
    CopyRows,
    PrepareControlTables,
    SharedRead,
    Stage,
    TargetPlan,
    TransformRows,
)
from ematix_flow.spec.watermarks import SourceRange


def describe_stage(stage: Stage, plan: TargetPlan) -> list[str]:
    """What a stage will do, as lines."""
    if isinstance(stage, PrepareControlTables):
        return []
    if isinstance(stage, ApplyRows):
        return [
            *_describe_table_changes(plan),
            *_describe_gate_step(plan),
            _describe_transaction(stage, plan),
        ]
    if isinstance(stage, CopyRows):
        return [f"copy rows to staging with {_tasks_text(stage.tasks)}"]
    if isinstance(stage, TransformRows):
        reader = (
            "Spark answers the SQL from files" if stage.native else f"read with {_tasks_text(stage.tasks)}"
        )
        computed = ["compute the projection in Spark SQL"] if stage.projection else []
        return [", ".join([reader, *computed, "write staging"])]


def _describe_table_changes(plan: TargetPlan) -> list[str]:
    found = plan.load.table_plan
    if not found.changes:
        differs = any(line.mark != "=" for line in found.diff)
        state = "differs and is left as it is" if differs else "is there and fits"
        return [f"table {plan.table.label} {state}"]
    # a rebuild has several statements
    return list(dict.fromkeys(f"{c.action.replace('_', ' ')} {c.subject}" for c in found.changes))


def _describe_transaction(stage: ApplyRows, plan: TargetPlan) -> str:
    where = "inside the database" if stage.sql is not None else "from staging"
    mark = " and the new watermark" if plan.range else ""
    once = "one commit" if stage.by_commit else "one transaction"
    return f"{once}: {_describe_strategy(plan)} {where}, the ledger entry{mark}"


def _describe_strategy(plan: TargetPlan) -> str:
    """What the mode does with the rows, and by which columns."""
    matching = plan.load.matching
    keys = ", ".join(matching.keys)
    if plan.target.mode == "merge":
        differing = f"update those that differ in ({', '.join(matching.compare)})"
        others = differing if matching.compare else "leave those that are there"
        description = f"insert new rows, {others} by key ({keys})"
        gone = {"hard": ", delete those that the source lacks", "soft": ", mark those that the source lacks"}
        return description + gone.get(matching.deletes or "", "")
    if plan.target.mode == "scd2":
        since = f"from {matching.event} on" if matching.event else "from this load on"
        which = f"rows that differ in ({', '.join(matching.compare)})" if matching.compare else "new rows"
        description = f"a new version, {since}, of {which} by key ({keys})"
        description += ", close those that the source lacks" if matching.deletes else ""
        ttl = matching.ttl_seconds
        return description + (
            f", close what nothing has confirmed for {ttl:,.0f} s" if ttl is not None else ""
        )
    return {"append": "insert the rows", "truncate": "replace every row"}[plan.target.mode]


@dataclass(frozen=True)
class PlanStep:
    """A step of the text and JSON output. The table changes of the transaction are a separate step."""

    name: str
    lines: Sequence[str]
    details: Sequence[str] = ()
    sql: Sequence[str] = ()


def plan_steps(plan: TargetPlan) -> Iterator[PlanStep]:
    for stage in plan.stages:
        if isinstance(stage, ApplyRows):
            changes = [line for c in plan.load.table_plan.changes for line in c.sql.splitlines()]
            yield PlanStep("PrepareTable", _describe_table_changes(plan), [*describe_diff(plan), *changes])
            checks = _describe_gate_step(plan)
            if checks:
                made = [line for c in plan.load.quarantine_plan.changes for line in c.sql.splitlines()]
                yield PlanStep("CheckRows", checks, describe_gate(plan), made)
            yield PlanStep(
                "ApplyRows", [_describe_transaction(stage, plan)], sql=(stage.sql or "").splitlines()
            )
        elif isinstance(stage, TransformRows):
            sql = (stage.projection or "").splitlines()
            yield PlanStep("TransformRows", describe_stage(stage, plan), sql=sql)
        elif isinstance(stage, CopyRows):
            yield PlanStep("CopyRows", describe_stage(stage, plan))


def describe_gate(plan: TargetPlan) -> list[str]:
    """The rules that the rows must pass, and what happens to those that do not."""
    gate = plan.load.gate
    if gate is None:
        return []
    aside = "dead letter" if gate.to_dead_letters else "quarantine"
    if gate.quarantine is not None:
        aside += f" into {gate.quarantine.label}"
    does = {"fail": "fail", "warn": "warn", "quarantine": aside}
    return [f"{rule.label}: else {does[rule.action]}" for rule in gate.rules]


def _describe_gate_step(plan: TargetPlan) -> list[str]:
    rules = describe_gate(plan)
    if not rules:
        return []
    count = "1 expectation" if len(rules) == 1 else f"{len(rules)} expectations"
    made = [f"{c.action.replace('_', ' ')} {c.subject}" for c in plan.load.quarantine_plan.changes]
    return [*made, f"check {count} on the rows, before they become visible"]


def describe_range(source_range: SourceRange | None) -> str | None:
    if source_range is None:
        return None
    low = f">= {source_range.low.encode()}" if source_range.low else "from the beginning"
    high = f" and <= {source_range.high.encode()}" if source_range.high else ""
    return f"{source_range.column} {low}{high}"


def describe_read(shared: SharedRead, targets: int) -> str:
    """How one read feeds several targets."""
    how = {
        "copy": f"each batch goes to the staging of every target, with {_tasks_text(shared.tasks)}",
        "frame": "Spark keeps the rows and computes each target's from them",
        "table": "the database computes the rows into a table that each target loads from",
    }[shared.method]
    read = describe_range(shared.query.range)
    return f"once for {targets} targets: {how}" + (f"; {read}" if read else "")


def describe_diff(plan: TargetPlan) -> list[str]:
    """The declared table compared with the live one: + added, ~ changed, = unchanged, ! refused."""
    diff = plan.load.table_plan.diff
    width = max((len(line.subject) for line in diff), default=0)
    return [str(replace(line, subject=line.subject.ljust(width))).rstrip() for line in diff]


def _tasks_text(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"
