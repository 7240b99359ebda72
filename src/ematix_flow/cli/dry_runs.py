"""Dry runs of several pipelines: each does everything but commit, and a failure does not stop the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    from ematix_flow.cli.watching import RunView
    from ematix_flow.graph.registry import Registry
    from ematix_flow.schedule.dag import Outcome


def dry_run_all(registry: Registry, names: Sequence[str], engine: str | None, view: RunView) -> list[Outcome]:
    """What a run of each would do. Nothing is created, changed or recorded."""
    from ematix_flow.schedule.context import spark_starter
    from ematix_flow.schedule.dag import Outcome
    from ematix_flow.schedule.inspect import dry_run

    spark = spark_starter(engine)
    outcomes = []
    for name in names:
        view.started(name)
        try:
            result = dry_run(registry.pipeline(name), spark, view)
            outcome = Outcome(name, result.status, result=result, reason=result.reason)
        except FlowError as error:
            outcome = Outcome(name, "failed", error=error, reason=error.what)
        outcomes.append(outcome)
        view.finished(outcome)
    return outcomes
