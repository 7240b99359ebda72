"""Dry-runs several pipelines: everything except the commit. A failure does not stop the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.errors import DatabaseMissing, FlowError

if TYPE_CHECKING:
    from ematix_flow.cli.run_views import RunView
    from ematix_flow.graph.registry import Registry
    from ematix_flow.run.dag import PipelineOutcome


def dry_run_all(
    registry: Registry, names: Sequence[str], engine: str | None, view: RunView
) -> list[PipelineOutcome]:
    """Dry-run each pipeline. Nothing is created, changed or recorded."""
    from ematix_flow.run.context_setup import spark_starter
    from ematix_flow.run.dag import PipelineOutcome
    from ematix_flow.run.preview import dry_run

    spark = spark_starter(engine)
    outcomes = []
    for name in names:
        view.started(name)
        try:
            result = dry_run(registry.pipeline(name), spark, view)
            outcome = PipelineOutcome(name, result.status, result=result, reason=result.reason)
        except FlowError as error:
            if isinstance(error, DatabaseMissing) and error.created_by in names:
                reason = f"the database that it reads is created when {error.created_by} runs"
                outcome = PipelineOutcome(name, "skipped", reason=reason)
            else:
                outcome = PipelineOutcome(name, "failed", error=error, reason=error.what)
        outcomes.append(outcome)
        view.finished(outcome)
    return outcomes
