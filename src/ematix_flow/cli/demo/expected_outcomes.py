"""The expected outcomes of the demo, including one intended failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.run.dag import PipelineOutcome

FIRST_ROUND = {
    "orders": "succeeded",
    "customers": "succeeded",
    "returns": "succeeded",
    "payments": "succeeded",
    "daily_revenue": "succeeded",
    "orders_to_lake": "succeeded",
    "daily_cash": "succeeded",
    "customer_value": "succeeded",
}
SECOND_ROUND = {**FIRST_ROUND, "returns": "skipped", "payments": "failed", "daily_cash": "not_run"}
REASONS = {
    "returns": "there was no new return",
    "payments": "one payment has a currency that does not fit, so none of the new ones was loaded",
    "daily_cash": "it depends on payments",
}


def unexpected_outcomes(outcomes: Sequence[PipelineOutcome], expected: dict[str, str]) -> list[str]:
    """The outcomes of a round that differ from the expected ones, in words."""
    found = {outcome.pipeline: outcome.status for outcome in outcomes}
    return [
        f"{name} is {found.get(name, 'missing').replace('_', ' ')}, expected {status.replace('_', ' ')}"
        for name, status in expected.items()
        if found.get(name) != status
    ]
