"""What a run tells whoever watches it. The default listens to nothing."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.plan.definition import Plan
    from ematix_flow.plan.results import RunResult


@dataclass(frozen=True)
class Attempt:
    """Which run is watched: one attempt at loading a pipeline."""

    pipeline: str
    run_id: str
    number: int = 1
    slot: dt.datetime | None = None
    trigger: str = "sync"


@dataclass(frozen=True)
class Progress:
    """How far a stage is. ``expected_rows`` only where the source knows, so that a time left is honest."""

    rows: int
    bytes: int = 0
    expected_rows: int | None = None


class Listener:
    """Override what you want to see. Called from the run's own thread, except `progress`."""

    def run_started(self, attempt: Attempt) -> Listener:
        """A run begins. What this returns hears of it; several may be at work at once."""
        return self

    def planned(self, plan: Plan) -> None:
        """The plan is made and will be carried out now."""

    def stage_started(self, target: str, stage: str) -> None:
        """A stage begins."""

    def progress(self, target: str, progress: Progress) -> None:
        """So much was staged so far. Called from a background thread."""

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        """A stage ended well."""

    def note(self, text: str) -> None:
        """Something worth saying: an interrupted run was settled, leftovers were removed."""

    def run_finished(self, result: RunResult | None, error: BaseException | None) -> None:
        """The run ended: with a result, with an error, or with both when only some targets failed."""
