"""Describes what starts a pipeline or a workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.spec.pipelines import PipelineSpec
    from ematix_flow.spec.workflows import WorkflowSpec


def schedule_text(spec: PipelineSpec | WorkflowSpec) -> str:
    """The schedule with its time zone, which is UTC by default; empty without a schedule."""
    return f"{spec.schedule} {spec.timezone or 'UTC'}" if spec.schedule else ""


def pipeline_trigger_text(spec: PipelineSpec, registry: Registry) -> str:
    """What starts a pipeline: its schedule, the workflows that run it, or ``by hand``."""
    running = [workflow.name for workflow in registry.workflows.values() if spec.name in workflow.jobs]
    parts = [schedule_text(spec), f"workflow {', '.join(running)}" if running else ""]
    return "; ".join(part for part in parts if part) or "by hand"


def workflow_trigger_text(spec: WorkflowSpec) -> str:
    """What starts a workflow: its schedule, its trigger, or both."""
    after = f"after {spec.triggered_by}" if spec.triggered_by else ""
    return "; ".join(part for part in (schedule_text(spec), after) if part)
