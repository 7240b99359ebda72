"""The pipelines and workflows of the simulated project: each policy, dependencies, triggers, retries."""

from __future__ import annotations

import functools
from typing import Any

from ematix_flow.graph.registry import DeclaredPipeline, Registry
from ematix_flow.spec.pipelines import PipelineSpec, PostTransform, TargetSpec
from ematix_flow.spec.retry_policy import RetryPolicy
from ematix_flow.spec.workflows import Trigger, WorkflowSpec

TARGET = TargetSpec("db")
ANALYZE = PostTransform("sql", "ANALYZE")
THRICE = RetryPolicy(max_attempts=3, backoff="exponential", base_seconds=5)


class _Project(Registry):
    """Sorted once for all polls of all simulations."""

    @functools.cache  # noqa: B019  # there is one
    def dependency_order(self, *given: Any) -> Any:
        return super().dependency_order(*given)

    __hash__ = object.__hash__


REGISTRY = _Project()


def _declare(name: str, schedule: str | None = None, **more: Any) -> None:
    spec = PipelineSpec(name, f"project:{name}", (TARGET,), schedule=schedule, **more)
    REGISTRY.add_pipeline(DeclaredPipeline(spec, lambda: "", None))


_declare("minutes", "*/4 * * * *", catchup="all", retry=THRICE)
_declare("berlin", "*/20 1,3 * * *", timezone="Europe/Berlin", catchup="all", retry=THRICE)
_declare("latest", "*/3 * * * *", catchup="last", retry=THRICE)
_declare("punctual", "*/5 * * * *", catchup="none")
_declare("rare", "58 * * * *", catchup="last")  # its first fire may come while no scheduler polls
_declare("items", "*/6 * * * *", catchup="all", retry=THRICE)
_declare("report", "*/6 * * * *", catchup="all", depends_on=("items",))
_declare("archive", "*/12 * * * *", catchup="last", depends_on=("report",))
_declare("fan", "*/10 * * * *", catchup="all", retry=THRICE, continue_on_target_failure=True)
_declare("orders", "*/7 * * * *", catchup="all", retry=THRICE)  # has its own schedule, and is a job
_declare(
    "mart", "*/8 * * * *", catchup="all", retry=THRICE, transforms_post=(PostTransform("sql", "ANALYZE"),)
)
_declare("stock")
_declare("mail")
_declare("ledgers", retry=THRICE)

for workflow in (
    WorkflowSpec("nightly", ("stock", "ledgers"), schedule="*/9 * * * *", catchup="all"),
    WorkflowSpec("any", ("mail", "orders"), Trigger("any", ("minutes", "latest"))),
    WorkflowSpec("both", ("report",), Trigger("all", ("berlin", "nightly"))),
):
    REGISTRY.add_workflow(workflow)
REGISTRY.check()
