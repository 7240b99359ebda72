"""The contract of executors: start a slot's run somewhere, and tell when one ends without a word.

The run itself keeps its claim and says how it ended, in the store. So an executor that loses sight of a run
loses nothing: a claim that is not kept expires. What an executor sees only makes that quicker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.spec.redaction import mask
from ematix_flow.state.slots.base import Claim

RUN_LOG_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"
ENGINE_VARIABLE = "EMATIX_FLOW_ENGINE"


@dataclass(frozen=True)
class RunDispatch:
    """One run: what ``flow run-slot`` is called with. Secrets are in its variables, never in words."""

    claim: Claim
    module: str
    lease_seconds: float
    run_log: str | None = None
    engine: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # what else a process here is told

    def arguments(self) -> list[str]:
        """After the name of the program."""
        claim = self.claim
        return [
            "run-slot",
            f"--module={self.module}",
            f"--slot={claim.slot.fire_time.isoformat()}",
            f"--claim={claim.fence}:{claim.holder}",
            f"--lease-seconds={self.lease_seconds:g}",
            *([f"--engine={self.engine}"] if self.engine and not has_secret(self.engine) else []),
            "--",  # a pipeline may be named like an option
            claim.slot.pipeline,
        ]

    def variables(self) -> dict[str, str]:
        told = {RUN_LOG_VARIABLE: self.run_log, ENGINE_VARIABLE: self.engine}
        return {**self.environment, **{name: value for name, value in told.items() if value}}


@dataclass(frozen=True)
class WorkerExit:
    """A run that is over. Whether its slot has heard of it, the store knows.

    ``unbegun``: it was asked to stop before it could even say that it was.
    """

    claim: Claim
    reason: str
    never_began: bool = False


@dataclass(frozen=True)
class WorkerState:
    """What an executor sees of its runs: which have ended badly, and which have not begun.

    One that has not begun cannot keep its claim; whoever started it does. An ending is told once.
    """

    exits: Sequence[WorkerExit] = ()
    starting: Sequence[Claim] = ()


class CannotDispatch(ConfigError):
    """The run was not started; the slot waits and is tried again."""


class Executor(ABC):
    """Open until it is closed. Used by one thread."""

    @abstractmethod
    def check(self, run_log: str, engine: str | None = None) -> None:
        """UsageError when its runs could not reach this store, or this engine but by a secret."""

    def check_alerts(self) -> None:
        """UsageError when its runs cannot learn of the scheduler's alerters; a warning when they may not."""
        return None

    @abstractmethod
    def capacity(self) -> int | None:
        """How many more runs it takes now; None when it sets no limit."""

    @abstractmethod
    def dispatch(self, job: RunDispatch) -> None:
        """Start it, and come back at once. CannotDispatch when that fails."""

    def poll_workers(self) -> WorkerState:
        """How its runs are; nothing where that cannot be seen."""
        return WorkerState()

    def has_freed_worker(self) -> bool:
        """Whether a run has ended since this was last asked. Cheap; False where only `watch` can tell."""
        return False

    @abstractmethod
    def close(self, grace: float) -> None:
        """No more runs. Those that are ours to end may go on for so many seconds, and are asked to stop."""

    @abstractmethod
    def abandon(self) -> None:
        """No more runs, at once: those that are ours to end are asked to stop, and not waited for."""


def has_secret(text: str) -> bool:
    return mask(text) != text


def require_engine_without_secret(executor: str, engine: str | None, place: str) -> None:
    """UsageError for an engine with a password or token, where others can read how a run is started."""
    if engine is not None and has_secret(engine):
        raise UsageError(
            f"--engine holds a secret, and how {executor} starts a run is no place for it",
            next_step=f"leave --engine out, and set {ENGINE_VARIABLE} {place}",
        )


def require_shared_run_log(executor: str, run_log: str) -> None:
    """UsageError for a run log in a file or in memory, where the runs of this executor are elsewhere."""
    scheme, separator, _ = run_log.partition("://")
    if not separator or scheme in ("sqlite", "duckdb", "memory", "file"):
        raise UsageError(
            f"runs of {executor} are on other machines, and cannot reach the run log {run_log}",
            next_step=f"give a run log that they reach, as --run-log postgres://… or {RUN_LOG_VARIABLE}",
        )
