"""The contract of executors: start the run of a slot somewhere, and report runs that die.

The run itself renews its claim and records its end in the store. So an executor that loses track of a run
loses nothing: a claim that is not renewed expires. What an executor sees only makes that quicker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.state.slots.base import Claim
from ematix_probe.redaction import mask

RUN_LOG_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"
ENGINE_VARIABLE = "EMATIX_FLOW_ENGINE"


@dataclass(frozen=True)
class RunDispatch:
    """One run: the call of ``flow run-slot``. Secrets are in its variables, never in its arguments."""

    claim: Claim
    module: str
    lease_seconds: float
    run_log: str | None = None
    engine: str | None = None
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # further variables for a process of this machine

    def arguments(self) -> list[str]:
        """Return the arguments that follow the name of the program."""
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
        settings = {RUN_LOG_VARIABLE: self.run_log, ENGINE_VARIABLE: self.engine}
        return {**self.environment, **{name: value for name, value in settings.items() if value}}


@dataclass(frozen=True)
class WorkerExit:
    """A run whose worker has ended. The store knows whether the run recorded its end.

    ``never_began``: it was stopped before it could record its start.
    """

    claim: Claim
    reason: str
    never_began: bool = False


@dataclass(frozen=True)
class WorkerState:
    """What an executor sees of its runs: which workers have failed, and which have not begun.

    A run that has not begun cannot renew its claim; the scheduler does. An exit is reported once.
    """

    exits: Sequence[WorkerExit] = ()
    starting: Sequence[Claim] = ()


class CannotDispatch(ConfigError):
    """The run was not started; the slot waits for the next attempt."""


class Executor(ABC):
    """Starts runs until it is closed. Used by one thread."""

    @abstractmethod
    def check(self, run_log: str, engine: str | None = None) -> None:
        """Raise UsageError if its runs cannot reach this run log, or need a secret to reach this engine."""

    def check_alerts(self) -> None:
        """Raise UsageError if its runs cannot get the scheduler's alerters; warn if they may not get them."""
        return None

    @abstractmethod
    def capacity(self) -> int | None:
        """Return how many more runs it can start now; None if there is no limit."""

    @abstractmethod
    def dispatch(self, job: RunDispatch) -> None:
        """Start the run and return at once. Raises CannotDispatch if that fails."""

    def poll_workers(self) -> WorkerState:
        """Return the state of its workers; empty if the executor cannot see them."""
        return WorkerState()

    def has_freed_worker(self) -> bool:
        """Whether a run has ended since the last call. Cheap; False if only `poll_workers` knows."""
        return False

    @abstractmethod
    def close(self, grace: float) -> None:
        """Start no more runs. Runs that it can stop may go on for ``grace`` seconds; then it stops them."""

    @abstractmethod
    def abandon(self) -> None:
        """Start no more runs, and stop the runs that it can stop, without waiting for them."""


def has_secret(text: str) -> bool:
    return mask(text) != text


def require_engine_without_secret(executor: str, engine: str | None, place: str) -> None:
    """Raise UsageError for an engine with a password or token, if others can read how a run is started."""
    if engine is not None and has_secret(engine):
        raise UsageError(
            f"--engine holds a secret, and {executor} would show it where it starts a run",
            next_step=f"leave --engine out, and set {ENGINE_VARIABLE} {place}",
        )


def require_shared_run_log(executor: str, run_log: str) -> None:
    """Raise UsageError for a run log in a file or in memory, which runs on other machines cannot reach."""
    scheme, separator, _ = run_log.partition("://")
    if not separator or scheme in ("sqlite", "duckdb", "memory", "file"):
        raise UsageError(
            f"runs of {executor} are on other machines, and cannot reach the run log {run_log}",
            next_step=f"give a run log that they reach, as --run-log postgres://… or {RUN_LOG_VARIABLE}",
        )
