"""The handler of a function of AWS Lambda: it runs slots, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.lambda_handler import handler


@pytest.mark.parametrize(
    "event",
    [
        {},
        [],
        "run-slot",
        {"arguments": "run-slot"},
        {"arguments": []},
        {"arguments": ["run-slot", 3]},
        {"arguments": ["init", "/tmp/x"]},
        {"arguments": ["--debug", "init"]},
    ],
)
def test_an_event_that_no_scheduler_sent_is_refused(event: Any) -> None:
    with pytest.raises(ValueError):
        handler(event)


def test_a_slot_that_cannot_be_run_is_no_failure_of_the_invocation() -> None:
    arguments = ["run-slot", "--module=nothing", "--slot=2026-01-01T00:00:00+00:00", "--claim=1:me", "x"]
    assert handler({"arguments": arguments})["exit_code"] != 0
