"""What one batch of a stream did: its counts, and the messages that it rejected."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ematix_flow.backends.messages.base import LagUnit
from ematix_flow.engine.streams.state.stateful_operator import StateReport
from ematix_flow.spec.expectations import ExpectationResult

MessagePlace = tuple[str | None, str | None, str | None]  # topic, partition and position


@dataclass(frozen=True)
class RejectedMessage:
    """A message or row that will not be loaded, and why."""

    stage: str  # decode | transform | write | expectation
    reason: str
    message: Mapping[str, Any]  # the columns of a message
    target: str | None = None  # the only target that refuses it


class DeadLetters(Protocol):
    """Stores messages that a stream cannot load. Adding a message a second time changes nothing."""

    def add(self, letters: Sequence[RejectedMessage], batch: str) -> None:
        """``batch`` is the key of the batch that the letters come from."""
        ...

    def failing_in(self, batch: str, target: str) -> Mapping[MessagePlace, str]:
        """The messages of a batch that are letters because a row fails an expectation, with the reasons.

        They are letters of this target, or of all.
        """
        ...


@dataclass
class BatchReport:
    """What one batch did, for metrics, progress and the run log."""

    number: int
    rows_read: int = 0
    rows_written: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    expectations: dict[str, tuple[ExpectationResult, ...]] = field(default_factory=dict)  # by target
    late: int = 0  # rows of windows that were already closed
    state: StateReport | None = None  # of a stream with a window
    empty: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    lag: Mapping[str, int] = field(default_factory=dict)
    lag_unit: LagUnit = "messages"

    @property
    def quarantined(self) -> int:
        return sum(each.quarantined for found in self.expectations.values() for each in found)

    @contextmanager
    def time_phase(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started
