"""A plan in words and as JSON, from the very stages that the executor walks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ematix_flow.plan.definition import (
    ApplyRows,
    CopyRows,
    Plan,
    PrepareTable,
    SharedRead,
    Stage,
    TargetPlan,
    TransformRows,
)
from ematix_flow.spec.redaction import mask
from ematix_flow.spec.watermarks import SourceRange


def describe_stage(stage: Stage, plan: TargetPlan) -> list[str]:
    """What a stage will do, a line each."""
    if isinstance(stage, PrepareTable):
        if not stage.changes.changes:
            differs = any(line.mark != "=" for line in stage.changes.diff)
            found = "differs and is left as it is" if differs else "is there and fits"
            return [f"table {plan.table.label} {found}"]
        # a table that is rebuilt is so in several statements
        told = [f"{change.action.replace('_', ' ')} {change.subject}" for change in stage.changes.changes]
        return list(dict.fromkeys(told))
    if isinstance(stage, CopyRows):
        return [f"copy rows to staging with {_tasks_text(stage.tasks)}"]
    if isinstance(stage, TransformRows):
        reader = (
            "Spark answers the SQL from files" if stage.native else f"read with {_tasks_text(stage.tasks)}"
        )
        computed = ["compute the projection in Spark SQL"] if stage.projection else []
        return [", ".join([reader, *computed, "write staging"])]
    where = "inside the database" if stage.sql is not None else "from staging"
    verb = _describe_strategy(plan)
    mark = " and the new watermark" if plan.range else ""
    once = "one commit" if stage.by_commit else "one transaction"
    return [f"{once}: {verb} {where}, the ledger entry{mark}"]


def _describe_strategy(plan: TargetPlan) -> str:
    """What the mode does with the rows, with the columns that decide."""
    matching = plan.matching
    keys = ", ".join(matching.keys)
    if plan.target.mode == "merge":
        differing = f"update those that differ in ({', '.join(matching.compare)})"
        others = differing if matching.compare else "leave those that are there"
        told = f"insert new rows, {others} by key ({keys})"
        gone = {"hard": ", delete those that the source lacks", "soft": ", mark those that the source lacks"}
        return told + gone.get(matching.deletes or "", "")
    if plan.target.mode == "scd2":
        since = f"from {matching.event} on" if matching.event else "from this load on"
        which = f"rows that differ in ({', '.join(matching.compare)})" if matching.compare else "new rows"
        told = f"a new version, {since}, of {which} by key ({keys})"
        told += ", close those that the source lacks" if matching.deletes else ""
        ttl = matching.ttl_seconds
        return told + (f", close what nothing has confirmed for {ttl:,.0f} s" if ttl is not None else "")
    return {"append": "insert the rows", "truncate": "replace every row"}[plan.target.mode]


def describe_range(source_range: SourceRange | None) -> str | None:
    if source_range is None:
        return None
    low = f">= {source_range.low.encode()}" if source_range.low else "from the beginning"
    high = f" and <= {source_range.high.encode()}" if source_range.high else ""
    return f"{source_range.column} {low}{high}"


def describe_read(shared: SharedRead, targets: int) -> str:
    """How one read comes to feed several targets."""
    how = {
        "copy": f"each batch goes to the staging of every target, with {_tasks_text(shared.tasks)}",
        "frame": "Spark keeps the rows and computes each target's from them",
        "table": "the database computes the rows into a table that each target loads from",
    }[shared.method]
    read = describe_range(shared.query.range)
    return f"once for {targets} targets: {how}" + (f"; {read}" if read else "")


def describe_diff(stage: PrepareTable) -> list[str]:
    """The declared table against the live one: + added, ~ changed, = left alone, ! refused."""
    width = max((len(line.subject) for line in stage.changes.diff), default=0)
    return [str(replace(line, subject=line.subject.ljust(width))).rstrip() for line in stage.changes.diff]


def plan_to_text(plan: Plan, *, verbose: bool = False) -> str:
    """The plan as a person reads it."""
    spec = plan.pipeline
    lines = [f"pipeline  {spec.name}" + (f"   ({spec.where})" if spec.where else "")]
    lines.append(f"source    {plan.source_connection} ({plan.source_kind})")
    lines += [f"          {line}" for line in _sql_lines(plan.source_sql, 12 if not verbose else None)]
    if plan.shared is not None:
        lines.append(f"read      {describe_read(plan.shared, len(plan.targets))}")
    for target in plan.targets:
        lines.append(f"target    {target.target.label}   mode {target.target.mode}")
        lines.append(f"path      {target.path.value}: {target.path.reason}")
        lines.append(f"guarantee {target.guarantee.value}: {target.guarantee.reason}")
        if target.range is not None:
            lines.append(f"range     {describe_range(target.range)}")
        lines += [f"tuning    {c.name} = {c.value}: {c.reason}" for c in target.tuning]
        number = 0
        for stage in target.stages:
            for text in describe_stage(stage, target):
                number += 1
                lines.append(f"  {number}. {text}")
            if isinstance(stage, PrepareTable):
                lines += [f"       {line}" for line in describe_diff(stage)]
            lines += [f"       {line}" for line in _stage_sql(stage, verbose)]
        lines += [f"warning   {text}" for text in target.warnings]
    lines += [f"then      {post.step.kind}: {post.step.label}" for post in plan.post]
    return mask("\n".join(lines))


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan for ``--output json``."""
    return {
        "pipeline": plan.pipeline.name,
        "where": str(plan.pipeline.where) if plan.pipeline.where else None,
        "source": {
            "connection": plan.source_connection,
            "kind": plan.source_kind,
            "sql": mask(plan.source_sql),
            "columns": [
                {"name": c.name, "type": str(c.type) if c.type else None, "native": c.native}
                for c in plan.source_columns
            ],
        },
        "read": describe_read(plan.shared, len(plan.targets)) if plan.shared else None,
        "targets": [_target_json(target) for target in plan.targets],
        "post": [{"kind": p.step.kind, "text": mask(p.step.text)} for p in plan.post],
        "has_changes": plan.has_changes,
    }


def _target_json(target: TargetPlan) -> dict[str, Any]:
    choices = [target.path, target.guarantee, *target.tuning]
    return {
        "target": target.target.label,
        "table": target.table.label,
        "mode": target.target.mode,
        "path": target.path.value,
        "guarantee": target.guarantee.value,
        "range": describe_range(target.range),
        "choices": [{"name": c.name, "value": c.value, "reason": c.reason} for c in choices],
        "changes": [
            {"action": c.action, "subject": c.subject, "sql": c.sql}
            for stage in target.stages
            if isinstance(stage, PrepareTable)
            for c in stage.changes.changes
        ],
        "diff": [
            {"mark": line.mark, "subject": line.subject, "was": line.was or None, "now": line.now or None}
            for stage in target.stages
            if isinstance(stage, PrepareTable)
            for line in stage.changes.diff
        ],
        "stages": [
            {"stage": type(stage).__name__, "does": describe_stage(stage, target)} for stage in target.stages
        ],
        "warnings": list(target.warnings),
    }


def _tasks_text(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _stage_sql(stage: Stage, verbose: bool) -> list[str]:
    if isinstance(stage, PrepareTable):
        return [line for change in stage.changes.changes for line in change.sql.splitlines()]
    if isinstance(stage, ApplyRows) and stage.sql is not None and verbose:
        return stage.sql.splitlines()
    if isinstance(stage, TransformRows) and stage.projection and verbose:
        return stage.projection.splitlines()
    return []


def _sql_lines(sql: str, limit: int | None) -> list[str]:
    import textwrap

    lines = textwrap.dedent(sql).strip().splitlines()
    if limit is not None and len(lines) > limit:
        return [*lines[: limit - 1], f"… {len(lines) - limit + 1} more lines"]
    return lines
