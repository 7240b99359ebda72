"""Targets that may fail separately: how their failures are reported at the end."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from ematix_flow.engine.streams.stream_runner import StreamRunner
from ematix_flow.errors import CannotConnect, FlowError


@dataclass
class FakeTargetGroup:
    label: str
    error: FlowError | None = None

    def run_with_retries(self, failures: list[FlowError]) -> None:
        if self.error is not None:
            failures.append(self.error)


def run(*parts: Any, stopped: bool = False) -> None:
    stream = object.__new__(StreamRunner)
    stream.stop = threading.Event()
    if stopped:
        stream.stop.set()
    stream._run_groups(parts)


def test_the_error_of_one_target_says_that_the_others_have_everything() -> None:
    with pytest.raises(CannotConnect) as failed:
        run(FakeTargetGroup("warehouse:f_ok"), FakeTargetGroup("other:f", CannotConnect("nothing listens")))
    assert failed.value.state == (
        "the other targets (warehouse:f_ok) have everything; other:f catches up at the next start"
    )


def test_a_state_that_an_error_has_already_is_kept() -> None:
    broken = CannotConnect("away", state="nothing was sent")
    with pytest.raises(CannotConnect) as failed:
        run(FakeTargetGroup("a:x", broken), FakeTargetGroup("b:y", CannotConnect("away too")))
    assert failed.value.state == "nothing was sent; a:x, b:y catch up at the next start"


def test_a_stream_that_was_stopped_does_not_claim_that_all_is_there() -> None:
    with pytest.raises(CannotConnect) as failed:
        run(FakeTargetGroup("a:x"), FakeTargetGroup("b:y", CannotConnect("away")), stopped=True)
    assert "have all batches until the stop" in str(failed.value.state)


def test_targets_that_are_all_well_raise_nothing() -> None:
    run(FakeTargetGroup("a:x"), FakeTargetGroup("b:y"))
