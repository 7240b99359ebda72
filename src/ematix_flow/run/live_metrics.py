"""What a run tells about its work, as values of its record: stages, progress, post-load steps, its plan.

Owns the values and their JSON, and knows which have changed; `run.recording` writes them to the run log.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.observe.listener import PostStepEnd, Progress
from ematix_flow.observe.throughput import Throughput
from ematix_flow.state.runlog.records import mask_metrics
from ematix_flow.state.times import utc_now

if TYPE_CHECKING:
    from ematix_flow.plan.definition import Plan

LONGEST_PLAN = 100_000  # bytes of JSON
_SHORTER = ((20_000, 500), (2_000, 100), (200, 20))  # characters of a text and items of a list


@dataclass(frozen=True)
class RunStage:
    """A stage of a run: when it began, in seconds after the run, and how long it took (None: not ended).

    ``has_failed``: a step after the load that ended with an error.
    """

    target: str
    stage: str
    started_after: float
    seconds: float | None = None
    has_failed: bool = False

    def to_json(self, now: float) -> dict[str, Any]:
        """A stage that has not ended lasts until ``now``."""
        ended = self.seconds is not None
        seconds = now - self.started_after if self.seconds is None else self.seconds
        return {
            "target": self.target,
            "stage": self.stage,
            "at": round(self.started_after, 3),
            "seconds": round(seconds, 3),
            "ended": ended,
            **({"failed": True} if self.has_failed else {}),
        }


class LiveMetrics:
    """Collects the events of one run. Progress arrives on another thread than the rest.

    ``post`` are the post-load steps that an earlier run had ended well.
    """

    def __init__(self, post: Sequence[Mapping[str, Any]] = ()) -> None:
        self._began = time.monotonic()
        self._stages: list[RunStage] = []
        self._reached: dict[str, Progress] = {}  # by target, in the stage that is being worked on
        self._pace = Throughput(self._began)
        self._progress: dict[str, Any] | None = None
        self._post = [dict(step) for step in post]
        self._plan: Plan | None = None
        self._has_new_plan = False
        self._has_changed = False
        self._lock = threading.Lock()

    def planned(self, plan: Plan) -> None:
        with self._lock:
            self._plan, self._has_new_plan = plan, True

    def stage_started(self, target: str, stage: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._stages.append(RunStage(target, stage, now - self._began))
            self._reached.clear()
            self._pace = Throughput(now)
            self._set_progress(target, stage)

    def progress(self, target: str, progress: Progress) -> None:
        """With several targets, the progress of a stage is that of the slowest."""
        with self._lock:
            self._reached[target] = progress
            slowest = min(self._reached, key=lambda name: self._reached[name].rows)
            self._pace.record(time.monotonic(), self._reached[slowest])
            stages = [each.stage for each in self._stages if each.target == slowest]
            self._set_progress(slowest, stages[-1] if stages else "", has_rows=True)

    def stage_finished(self, target: str, stage: str, seconds: float, *, has_failed: bool = False) -> None:
        ended = time.monotonic() - self._began
        with self._lock:
            same = [n for n, each in enumerate(self._stages) if (each.target, each.stage) == (target, stage)]
            found = RunStage(target, stage, max(0.0, ended - seconds), seconds, has_failed)
            if same:
                self._stages[same[-1]] = found
            else:
                self._stages.append(found)
            self._has_changed = True

    def post_step_finished(self, step: PostStepEnd) -> None:
        self.stage_finished(step.target, step.stage, step.seconds, has_failed=step.error is not None)
        with self._lock:
            self._post.append(step.to_json())

    def _set_progress(self, target: str, stage: str, *, has_rows: bool = False) -> None:
        pace = self._pace
        left = pace.seconds_left if has_rows else None
        self._progress = {
            "target": target,
            "stage": stage,
            "rows": pace.progress.rows if has_rows else None,
            "rows_per_second": round(pace.rows_per_second, 1) if has_rows else None,
            "expected_rows": pace.expected_rows if has_rows else None,
            "eta_seconds": None if left is None else round(left, 1),
            "at": utc_now().isoformat(),
        }
        self._has_changed = True

    # ------------------------------------------------------------------ as values of the record

    def post_steps(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._post)

    def take_changes(self) -> dict[str, Any]:
        """Return the progress and the stages so far, and a new plan once.

        Empty if nothing has changed since the last call.
        """
        with self._lock:
            changes: dict[str, Any] = {}
            if self._has_changed:
                self._has_changed = False
                changes |= {"progress": self._progress, "stages": self._stages_json()}
            has_new_plan, self._has_new_plan = self._has_new_plan, False
        if has_new_plan and (plan := self._plan_json()):
            changes["plan"] = plan
        return changes

    def at_end(self) -> dict[str, Any]:
        """Return what the record of the ended run holds; what there is none of is left out."""
        plan = self._plan_json()
        with self._lock:
            found = {"stages": self._stages_json(), "post": list(self._post), "plan": plan}
            return {name: value for name, value in found.items() if value}

    def _plan_json(self) -> dict[str, Any] | None:
        plan = self._plan
        return None if plan is None else bounded_plan(plan.to_json())

    def _stages_json(self) -> list[dict[str, Any]]:
        now = time.monotonic() - self._began
        return [stage.to_json(now) for stage in self._stages]


def bounded_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan in at most `LONGEST_PLAN` bytes of JSON: long texts and lists are cut.

    A plan that was cut has ``"is_cut": true``.
    """
    if _json_size(plan) <= LONGEST_PLAN:
        return plan
    masked = mask_metrics(plan)  # before a text is cut: half a secret is not recognized as one
    for characters, items in _SHORTER:
        shorter = {**_cut(masked, characters, items), "is_cut": True}
        if _json_size(shorter) <= LONGEST_PLAN:
            return shorter
    return {"pipeline": masked.get("pipeline"), "is_cut": True}


def _json_size(value: object) -> int:
    return len(json.dumps(value))  # of ASCII: characters are bytes


def _cut(value: Any, characters: int, items: int) -> Any:  # any JSON value
    if isinstance(value, str):
        return value if len(value) <= characters else value[: characters - 1] + "…"
    if isinstance(value, list):
        return [_cut(each, characters, items) for each in value[:items]]
    if isinstance(value, dict):
        return {name: _cut(each, characters, items) for name, each in value.items()}
    return value
