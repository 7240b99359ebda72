"""The contract of executors: start a slot's run somewhere, and never mind how it ends.

The run itself keeps its claim and says how it ended, in the store. So an executor that loses sight of a run
loses nothing: a claim that is not kept expires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from ematix_flow.errors import ConfigError
from ematix_flow.state.slots import Claim

RUN_LOG_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"


@dataclass(frozen=True)
class Dispatch:
    """One run: what ``flow run-slot`` is called with. Secrets are in ``environment``, never in words."""

    claim: Claim
    module: str
    lease_seconds: float
    run_log: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> list[str]:
        """After the name of the program."""
        claim = self.claim
        return [
            "run-slot",
            claim.slot.pipeline,
            "--module",
            self.module,
            "--slot",
            claim.slot.at.isoformat(),
            "--claim",
            f"{claim.fence}:{claim.holder}",
            "--lease-seconds",
            f"{self.lease_seconds:g}",
        ]

    def variables(self) -> dict[str, str]:
        told = {RUN_LOG_VARIABLE: self.run_log} if self.run_log else {}
        return {**self.environment, **told}


class CannotDispatch(ConfigError):
    """The run was not started; the slot waits and is tried again."""


class Executor(ABC):
    """Open until it is closed. Used by one thread."""

    @abstractmethod
    def room(self) -> int | None:
        """How many more runs it takes now; None when it sets no limit."""

    @abstractmethod
    def dispatch(self, job: Dispatch) -> None:
        """Start it, and come back at once. CannotDispatch when that fails."""

    @abstractmethod
    def close(self, grace: float) -> None:
        """No more runs. Those that are at work may go on for so many seconds where they are ours to end."""
