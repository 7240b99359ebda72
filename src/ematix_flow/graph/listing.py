"""What `flow list` and the web page show of each declaration, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import PipelineSpec
    from ematix_flow.spec.streams import StreamSpec
    from ematix_flow.spec.workflows import WorkflowSpec


def pipeline_listing(spec: PipelineSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": "pipeline",
        "description": spec.description,
        "targets": [{"target": t.label, "mode": t.mode} for t in spec.targets],
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "tags": list(spec.tags),
        "depends_on": list(spec.depends_on),
        "incremental": spec.source.incremental,
        "where": str(spec.where) if spec.where else None,
    }


def workflow_listing(spec: WorkflowSpec) -> dict[str, Any]:
    where = str(spec.where) if spec.where else None
    return {**spec.to_json(), "kind": "workflow", "where": where}


def stream_listing(spec: StreamSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "kind": "stream",
        "description": spec.description,
        "sources": [source.label for source in spec.sources],
        "targets": [{"target": t.label, "mode": t.mode} for t in spec.targets],
        "on_error": spec.on_error,
        "where": str(spec.where) if spec.where else None,
    }
