"""Whether an action may be requested now: its pipeline or run exists and is in a state that allows it.

A check is made when the action is requested. What has changed by the time it is carried out is found there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import UnknownName, UsageError, did_you_mean
from ematix_flow.graph.registry import Registry
from ematix_flow.graph.selection import select
from ematix_flow.run.restart import find_restart, finished_restart
from ematix_flow.schedule.actions.arguments import letter_selection
from ematix_flow.schedule.actions.schedule_holds import describe_hold
from ematix_flow.schedule.clearing import clearable_slots
from ematix_flow.schedule.stopped_slots import slot_between_attempts, stoppable_slots
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import ActionKind, Hold
from ematix_flow.state.process_liveness import run_is_dead
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.next_attempts import has_next_attempt
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.runlog.slot_attempts import attempts_at_slot
from ematix_flow.state.slots.base import Slot, SlotRecord, SlotStore


@dataclass(frozen=True)
class ActionChecks:
    """Checks requests against what a module declares and what its stores hold."""

    registry: Registry
    run_log: RunLog
    slots: SlotStore
    actions: ActionStore

    def check(self, kind: ActionKind, subject: str, arguments: Mapping[str, Any]) -> str:
        """Return the subject with its whole name. Raises UsageError if the action is not possible now."""
        checks: Mapping[ActionKind, Callable[[str, Mapping[str, Any]], str]] = {
            "run": self._check_run,
            "restart": self._check_restart,
            "resume_from_watermark": self._check_resume_from_watermark,
            "clear": self._check_clear,
            "stop": self._check_stop,
            "pause": self._check_pause,
            "resume": self._check_resume,
            "pause_schedule": self._check_pause_schedule,
            "resume_schedule": self._check_resume_schedule,
            "replay_letters": self._check_letters,
            "park_letters": self._check_letters,
            "purge_letters": self._check_letters,
        }
        return checks[kind](subject, arguments)

    # ------------------------------------------------------------------ what is carried out by a process

    def _check_run(self, subject: str, arguments: Mapping[str, Any]) -> str:
        pipelines_to_run(self.registry, subject, arguments)
        return subject

    def _check_restart(self, subject: str, arguments: Mapping[str, Any]) -> str:
        record = self.run_log.get(subject)
        if record.mode == "stream" or record.pipeline in self.registry.streams:
            raise UsageError(
                f"run {record.run_id[:8]} is of the stream {record.pipeline!r}, which keeps its position",
                next_step=f"flow consume {record.pipeline}  goes on where the stream stopped",
            )
        spec = self.registry.pipeline(record.pipeline).spec
        if not self._is_left_restart(record):
            find_restart(spec, self.run_log, record)
        return record.run_id

    def _is_left_restart(self, failed: RunRecord) -> bool:
        """Whether an earlier restart of the run did not record its end. The request completes it.

        If it has run well, its process may have died only now, and still hold its claim.
        """
        found = self.actions.list(limit=1, subject=failed.run_id, kind="restart", unfinished=True)
        return any(
            action.fence
            and (
                action.is_claimable(self.actions.now()) or finished_restart(self.run_log, failed) is not None
            )
            for action in found
        )

    def _check_resume_from_watermark(self, subject: str, arguments: Mapping[str, Any]) -> str:
        spec = self.registry.pipeline(subject).spec
        if spec.source.watermark_column is None:
            raise UsageError(
                f"{subject!r} has no watermark: it is not incremental",
                where=spec.where,
                next_step=f"flow run {subject}  runs it again",
            )
        return subject

    def _check_stop(self, subject: str, arguments: Mapping[str, Any]) -> str:
        record = self._run_to_stop(subject)
        if record is None:  # a slot waits, and no attempt at it is known
            return subject
        short = record.run_id[:8]
        is_dead = run_is_dead(record)
        if (record.status == "running" and not is_dead) or self._is_between_attempts(record):
            return record.run_id
        waits = slot_between_attempts(self.slots, record)
        if waits is not None:
            attempts = attempts_at_slot(self.run_log, waits.slot.pipeline, waits.slot.fire_time)
            return (*attempts, record)[0].run_id
        if is_dead:
            raise UsageError(
                f"there is nothing to stop: the process {record.pid} of run {short} of {record.pipeline!r} "
                "is gone",
                state="the next run reads from the ledger what it committed",
                next_step=f"flow restart {short}  runs it again",
            )
        if self.actions.stop_requested(record.run_id) is not None:
            return record.run_id  # it was interrupted, and this request completes it
        raise UsageError(
            f"run {short} of {record.pipeline!r} has ended: it is {record.status}",
            next_step=f"flow runs show {short}",
        )

    def _run_to_stop(self, subject: str) -> RunRecord | None:
        """Return the run with this id; of a pipeline or stream the run at work.

        If none is, return the last attempt at the slot that waits for its next one, None if that is not
        known.
        """
        if subject not in self.registry.pipelines and subject not in self.registry.streams:
            return self.run_log.get(subject)
        live = [record for record in self.run_log.running(subject) if not run_is_dead(record)]
        if len(live) > 1:
            ids = ", ".join(record.run_id[:8] for record in live)
            raise UsageError(
                f"{subject!r} has several runs: {ids}", next_step="flow stop RUN  stops one of them"
            )
        if live:
            return live[0]
        if waits := stoppable_slots(self.slots, [subject]):
            return next(iter(attempts_at_slot(self.run_log, subject, waits[0].slot.fire_time)), None)
        last = self.run_log.last(subject)
        if last is not None and self._is_between_attempts(last):
            return last
        raise UsageError(
            f"there is nothing to stop: {subject!r} is not running, and none of its slots waits for its next "
            "attempt",
            next_step=f"flow status {subject}",
        )

    def _is_between_attempts(self, record: RunRecord) -> bool:
        """Whether the next attempt has not begun. Once it has, its own run is to be stopped."""
        if not has_next_attempt(record):
            return False
        newest = self.run_log.last(record.pipeline)
        return newest is None or newest.run_id == record.run_id

    # ------------------------------------------------------------------ what is done at once

    def _check_pause(self, subject: str, arguments: Mapping[str, Any]) -> str:
        self._require_declared(subject)
        self._refuse_paused(self.actions.find_hold("run", subject))
        if self._may_be_between_attempts(subject):
            return subject
        if all(run_is_dead(record) for record in self.run_log.running(subject)):
            raise UsageError(
                f"{subject!r} is not running, so there is no run to pause",
                next_step=f"flow status {subject}  shows its state, or hold back its next runs with  "
                "--schedule",
            )
        return subject

    def _may_be_between_attempts(self, name: str) -> bool:
        """Whether a pause holds the next attempt although nothing runs now: of a stream, or of a retry."""
        if name in self.registry.streams:
            return True
        return self.registry.pipeline(name).spec.retry.max_attempts > 1

    def _check_pause_schedule(self, subject: str, arguments: Mapping[str, Any]) -> str:
        self._require_declared(subject)
        if subject in self.registry.streams:
            raise UsageError(
                f"{subject!r} is a stream, which has no schedule",
                next_step=f"flow pause {subject}  holds its running batches",
            )
        self._refuse_paused(self.actions.find_hold("schedule", subject))
        spec = self.registry.pipeline(subject).spec
        jobs = {job for workflow in self.registry.workflows.values() for job in workflow.jobs}
        if spec.schedule is None and subject not in jobs:
            raise UsageError(
                f"{subject!r} has no schedule, and no workflow runs it",
                where=spec.where,
                next_step="flow status",
            )
        return subject

    def _refuse_paused(self, hold: Hold | None) -> None:
        if hold is not None:
            what = "the schedule of " if hold.kind == "schedule" else ""
            option = " --schedule" if hold.kind == "schedule" else ""
            raise UsageError(
                f"{what}{hold.name!r} is already {describe_hold(hold)}",
                next_step=f"flow resume {hold.name}{option}",
            )

    def _check_resume(self, subject: str, arguments: Mapping[str, Any]) -> str:
        return self._check_held("run", subject)

    def _check_resume_schedule(self, subject: str, arguments: Mapping[str, Any]) -> str:
        return self._check_held("schedule", subject)

    def _check_held(self, kind: str, subject: str) -> str:
        """A pause can be ended even if the pipeline is no longer declared."""
        holds = self.actions.holds()
        if any((hold.kind, hold.name) == (kind, subject) for hold in holds):
            return subject
        if any(hold.name == subject for hold in holds):
            is_run = kind == "run"
            what = f"no run of {subject!r} is paused, but its schedule is"
            if not is_run:
                what = f"the schedule of {subject!r} is not paused, but its runs are"
            option = " --schedule" if is_run else ""
            raise UsageError(what, next_step=f"flow resume {subject}{option}")
        paused = {hold.name for hold in holds}
        raise UsageError(
            f"{subject!r} is not paused.{did_you_mean(subject, paused)}",
            next_step="flow status  shows what is paused",
        )

    def _check_clear(self, subject: str, arguments: Mapping[str, Any]) -> str:
        self.registry.pipeline(subject)
        if not slots_to_clear(self.slots, subject, arguments):
            raise UsageError(
                f"there is nothing to clear: {subject!r} has no such slot that was given up or skipped",
                next_step=f"flow status {subject}",
            )
        return subject

    def _check_letters(self, subject: str, arguments: Mapping[str, Any]) -> str:
        self.registry.stream(subject)
        letter_selection(arguments)
        return subject

    def _require_declared(self, name: str) -> None:
        known = {*self.registry.pipelines, *self.registry.streams}
        if name in known:
            return
        hint = did_you_mean(name, known)
        if name in self.registry.workflows:
            hint = f" It is a workflow: pause its jobs {', '.join(self.registry.workflows[name].jobs)}"
        raise UnknownName(
            f"no pipeline or stream is named {name!r}.{hint}",
            next_step="flow list  shows what the module declares",
        )


def pipelines_to_run(registry: Registry, subject: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the pipelines of a ``run``, upstreams first. Raises UsageError if a selector matches nothing."""
    downstream = "+" if arguments.get("with_downstream") else ""
    wanted = [f"{subject}{downstream}", *(f"{each}{downstream}" for each in arguments.get("select", ()))]
    return select(registry, wanted, with_upstream=bool(arguments.get("with_upstream")))


def slots_to_clear(store: SlotStore, pipeline: str, arguments: Mapping[str, Any]) -> list[SlotRecord]:
    """Return the unsuccessful slots that the arguments name: by time, or all since a time, or the last."""
    if times := arguments.get("slots"):
        wanted = store.get_many([Slot(pipeline, parse_time(text)) for text in times])
        return [record for record in wanted.values() if record.status in ("gave_up", "skipped")]
    since = arguments.get("since")
    return clearable_slots(store, [pipeline], None if since is None else parse_time(since))


def parse_time(text: str) -> dt.datetime:
    """Parse a time in ISO 8601, in UTC if it names no zone."""
    try:
        found = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a time such as 2026-03-29T12:00:00+00:00") from error
    return found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)
