"""Whether another attempt at a pipeline follows a failed one in the same call."""

from __future__ import annotations

from ematix_flow.errors import (
    ConfigError,
    DeclarationError,
    ExpectationFailed,
    FlowError,
    Interrupted,
    PipelineLocked,
    PlanError,
    PostTransformFailed,
    RowRejected,
    ShrinkRefused,
)
from ematix_flow.run.run_context import RunContext
from ematix_flow.spec.pipelines import PipelineSpec

# errors that the next attempt would meet again
_NOT_RETRIED = (
    DeclarationError,
    ConfigError,
    PlanError,
    PipelineLocked,
    Interrupted,
    RowRejected,
    ShrinkRefused,
    ExpectationFailed,
    PostTransformFailed,  # the load is committed; only a transform failed
)


def will_retry(spec: PipelineSpec, context: RunContext, number: int, error: object) -> bool:
    """Whether another attempt follows. The scheduler retries a slot later, when the cause may be fixed."""
    if number >= spec.retry.max_attempts:
        return False
    return context.retried_by_scheduler or (
        isinstance(error, FlowError) and not isinstance(error, _NOT_RETRIED)
    )
