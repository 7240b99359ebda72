"""What starts a pipeline or a workflow, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import PipelineSpec, WorkflowSpec


def schedule_of(spec: PipelineSpec | WorkflowSpec) -> str:
    return f"{spec.schedule} {spec.timezone}" if spec.schedule and spec.timezone else spec.schedule or ""


def starts_of(spec: WorkflowSpec) -> str:
    """What starts a workflow."""
    after = f"after {spec.triggered_by}" if spec.triggered_by else ""
    return "; ".join(part for part in (schedule_of(spec), after) if part)
