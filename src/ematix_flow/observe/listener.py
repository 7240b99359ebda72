"""The events of a run for its listener. The default listener ignores them."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematix_flow.plan.definition import Plan
    from ematix_flow.plan.results import RunResult


@dataclass(frozen=True)
class Attempt:
    """One attempt at running a pipeline; the run log stores it as a `RunRecord`.

    All attempts of a run share the batch key, so that the ledger knows what an earlier one committed.
    """

    pipeline: str
    run_id: str
    number: int = 1
    slot: dt.datetime | None = None
    trigger: str = "sync"
    batch_key: str = ""
    earlier_run_ids: tuple[str, ...] = ()  # of the earlier attempts of this run
    started: float = field(default_factory=time.monotonic, compare=False)  # by the monotonic clock

    def next_attempt(self) -> Attempt:
        """Return the attempt that follows this one, which failed."""
        return replace(
            self,
            run_id=str(uuid.uuid4()),
            number=self.number + 1,
            earlier_run_ids=(*self.earlier_run_ids, self.run_id),
            started=time.monotonic(),
        )


@dataclass(frozen=True)
class Progress:
    """The progress of a stage. ``expected_rows`` is set only if the source knows it."""

    rows: int
    bytes: int = 0
    expected_rows: int | None = None


@dataclass(frozen=True)
class PostStepEnd:
    """How a post-load step ended. ``target`` is the one whose connection it used."""

    label: str
    target: str
    seconds: float
    error: str | None = None

    @property
    def stage(self) -> str:
        """The name of the step's stage, as `Listener.stage_started` gets it."""
        return post_stage(self.label)

    def to_json(self) -> dict[str, Any]:
        ended = {"label": self.label, "status": "ok" if self.error is None else "failed"}
        return {**ended, "seconds": round(self.seconds, 3), "error": self.error}


_POST_STAGE = "then "
START_SPARK = "start Spark"


def post_stage(label: str) -> str:
    """Return the name of the stage of a post-load step."""
    return f"{_POST_STAGE}{label}"


def safe_point_before(target: str, stage: str) -> str:
    """Return where a run is that has not begun this stage yet, as a person reads it."""
    if stage == START_SPARK:
        return "before Spark starts"
    if stage.startswith(_POST_STAGE):
        return f"before the post-load step {stage.removeprefix(_POST_STAGE)}"
    return f"before {stage} into {target}"


class Listener:
    """Override the events you need. They are called on the run's own thread, except `progress`."""

    def run_started(self, attempt: Attempt) -> Listener:
        """A run begins. The returned listener gets its events; several runs may be active at once."""
        return self

    def planned(self, plan: Plan) -> None:
        """The plan is made and runs now."""

    def stage_started(self, target: str, stage: str) -> None:
        """A stage begins."""

    def progress(self, target: str, progress: Progress) -> None:
        """The progress of a stage so far. Called from a background thread."""

    def stage_finished(self, target: str, stage: str, seconds: float) -> None:
        """A stage ended well."""

    def post_step_finished(self, step: PostStepEnd) -> None:
        """A post-load step ended, well or not."""

    def note(self, text: str) -> None:
        """A message about the run, such as: an interrupted run was settled, leftovers were removed."""

    def run_finished(self, result: RunResult | None, error: BaseException | None) -> None:
        """The run ended: with a result, with an error, or with both when only some targets failed."""
