"""A plan: what a run will do, as an immutable value made of typed stages.

The executor and the explainer read the same stages, so a run does what its preview shows.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import Any

from ematix_flow.backends.base import SourceColumn
from ematix_flow.plan.explain import describe_range, describe_read, plan_steps
from ematix_flow.plan.stages import RunPostTransform, SharedRead, TargetPlan
from ematix_flow.spec.expectations import Expectation
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_probe.redaction import mask


@dataclass(frozen=True)
class Plan:
    """Everything that one run of a pipeline will do."""

    pipeline: PipelineSpec
    source_connection: str
    source_kind: str
    source_sql: str
    source_columns: tuple[SourceColumn, ...]
    targets: tuple[TargetPlan, ...]
    post: tuple[RunPostTransform, ...] = ()  # after all targets, on the first target's connection
    shared: SharedRead | None = None  # with several targets

    @property
    def has_changes(self) -> bool:
        """Whether a run would change a table's definition."""
        return any(
            target.load.table_plan.changes or target.load.quarantine_plan.changes for target in self.targets
        )

    def to_text(self, *, verbose: bool = False) -> str:
        """The plan for a person. ``verbose`` adds the SQL of each stage."""
        spec = self.pipeline
        lines = [f"pipeline  {spec.name}" + (f"   ({spec.where})" if spec.where else "")]
        lines.append(f"source    {self.source_connection} ({self.source_kind})")
        lines += [f"          {line}" for line in _sql_lines(self.source_sql, 12 if not verbose else None)]
        lines += [f"function  {function.signature}" for function in spec.functions]
        lines += [f"first     probe: {name}" for name in spec.probes_pre]
        if self.shared is not None:
            lines.append(f"read      {describe_read(self.shared, len(self.targets))}")
        for target in self.targets:
            lines.append(f"target    {target.target.label}   mode {target.target.mode}")
            lines.append(f"path      {target.path.value}: {target.path.reason}")
            lines.append(f"guarantee {target.guarantee.value}: {target.guarantee.reason}")
            if target.range is not None:
                lines.append(f"range     {describe_range(target.range)}")
            lines += [f"tuning    {c.name} = {c.value}: {c.reason}" for c in target.tuning]
            number = 0
            for step in plan_steps(target):
                for text in step.lines:
                    number += 1
                    lines.append(f"  {number}. {text}")
                lines += [f"       {line}" for line in (*step.details, *(step.sql if verbose else ()))]
            lines += [f"warning   {text}" for text in target.warnings]
        lines += [f"then      {post.step.kind}: {post.step.label}" for post in self.post]
        return mask("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """The plan for ``--output json``."""
        return {
            "pipeline": self.pipeline.name,
            "where": str(self.pipeline.where) if self.pipeline.where else None,
            "source": {
                "connection": self.source_connection,
                "kind": self.source_kind,
                "sql": mask(self.source_sql),
                "columns": [
                    {"name": c.name, "type": str(c.type) if c.type else None, "native": c.native}
                    for c in self.source_columns
                ],
            },
            "read": describe_read(self.shared, len(self.targets)) if self.shared else None,
            "targets": [_target_json(target) for target in self.targets],
            "functions": [function.signature for function in self.pipeline.functions],
            "probes_pre": list(self.pipeline.probes_pre),
            "post": [{"kind": p.step.kind, "text": mask(p.step.text)} for p in self.post],
            "has_changes": self.has_changes,
        }

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _target_json(target: TargetPlan) -> dict[str, Any]:
    decisions = [target.path, target.guarantee, *target.tuning]
    return {
        "target": target.target.label,
        "table": target.table.label,
        "mode": target.target.mode,
        "path": target.path.value,
        "guarantee": target.guarantee.value,
        "range": describe_range(target.range),
        "choices": [{"name": c.name, "value": c.value, "reason": c.reason} for c in decisions],
        "changes": [
            {"action": c.action, "subject": c.subject, "sql": c.sql} for c in target.load.table_plan.changes
        ],
        "diff": [
            {"mark": line.mark, "subject": line.subject, "was": line.was or None, "now": line.now or None}
            for line in target.load.table_plan.diff
        ],
        "expectations": [_expectation_json(rule) for rule in target.load.gate.rules]
        if target.load.gate
        else [],
        "quarantine": target.load.gate.quarantine.label
        if target.load.gate and target.load.gate.quarantine
        else None,
        "stages": [{"stage": step.name, "does": list(step.lines)} for step in plan_steps(target)],
        "warnings": list(target.warnings),
    }


def _expectation_json(rule: Expectation) -> dict[str, Any]:
    return {"rule": rule.label, "action": rule.action, **rule.assertion.to_json()}


def _sql_lines(sql: str, limit: int | None) -> list[str]:
    lines = textwrap.dedent(sql).strip().splitlines()
    if limit is not None and len(lines) > limit:
        return [*lines[: limit - 1], f"… {len(lines) - limit + 1} more lines"]
    return lines
