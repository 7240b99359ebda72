"""Carries out one claimed action in this process: begins it, renews its claim meanwhile, and ends it once.

A process that dies at any point leaves a claim that expires; the next one carries the action out again. Its
runs load under the action's batch key, so that what has loaded is not loaded again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ematix_flow import fault_points
from ematix_flow.errors import FlowError, Interrupted, RunStopped, UsageError
from ematix_flow.plan.results import unexpected_error
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import ActionRecord, ActionStatus
from ematix_flow.state.process_liveness import format_holder, new_holder
from ematix_flow.state.runlog.records import bounded_text

LEASE_SECONDS = 60.0
_STORE_RETRY_SECONDS = (1.0, 4.0, 15.0)  # between attempts to record the end of an action
_JOIN_SECONDS = 5.0
_LONGEST_OUTCOME = 1_000  # characters of the error of a process that could not begin
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActionEnd:
    """How an action ended, in a sentence, and the runs that it made. ``error`` is one that failed it."""

    status: ActionStatus
    outcome: str
    run_ids: tuple[str, ...] = ()
    error: FlowError | None = None


class ActionInterrupted(Interrupted):
    """A run of the action was interrupted: the runs that it had made, and whether a person stopped one."""

    def __init__(self, error: Interrupted, run_ids: tuple[str, ...]) -> None:
        super().__init__(error.what, where=error.where, state=error.state, next_step=error.next_step)
        self.run_ids, self.is_stop = run_ids, isinstance(error, RunStopped)


ActionWork = Callable[[ActionRecord], ActionEnd]


@dataclass(frozen=True)
class ActionCarryingOut:
    """Carries out claimed actions. ``work`` does what an action asks for; its errors fail the action.

    With ``hands_back`` an action whose process is stopped is handed back, so that another process carries it
    out. Otherwise a person has stopped it, and it ends.
    """

    actions: ActionStore
    work: ActionWork
    hands_back: bool
    lease_seconds: float = LEASE_SECONDS
    holder: str = field(default_factory=new_holder)
    sleep: Callable[[float], None] = time.sleep

    def carry_out(self, claimed: ActionRecord) -> ActionEnd:
        """Carry out the action and return how it ended.

        Raises UsageError if another process has it, and Interrupted if this one was interrupted.
        """
        if not self.actions.begin(claimed, self.lease_seconds, self.holder):
            raise _is_lost(self.actions.get(claimed.action_id))
        fault_points.point("action.begun")
        with self._keep_claim_alive(claimed):
            try:
                ended = self.work(claimed)
            except ActionInterrupted as error:
                self._end_interrupted(claimed, error)
                raise
            except FlowError as error:
                ended = ActionEnd("failed", error.what, error=error)
            except KeyboardInterrupt:
                self._end_interrupted(claimed, ActionInterrupted(Interrupted("it was interrupted"), ()))
                raise
            except Exception as problem:
                failure = unexpected_error(problem)
                failure.__cause__ = problem
                ended = ActionEnd("failed", failure.what, error=failure)
            fault_points.point("action.carried_out")
            self._record_end(claimed, ended)
        return ended

    def _end_interrupted(self, claimed: ActionRecord, error: ActionInterrupted) -> None:
        """End an action whose run a person stopped; hand it back if only its process was stopped."""
        if error.is_stop or not self.hands_back:
            self._record_end(claimed, ActionEnd("failed", error.what, error.run_ids))
            return
        try:
            self.actions.hand_back(claimed)
        except FlowError as problem:
            _log.warning("the action %s was not handed back: %s", claimed.action_id[:8], problem.what)

    def _record_end(self, claimed: ActionRecord, ended: ActionEnd) -> None:
        """Record the end, unless another process has taken the action over: that one records its own."""
        for pause in (*_STORE_RETRY_SECONDS, None):
            try:
                if not self.actions.end(claimed, ended.status, ended.outcome, ended.run_ids):
                    known = self.actions.get(claimed.action_id)
                    if known.fence != claimed.fence:
                        _log.warning(
                            "the action %s was taken over by %s",
                            claimed.action_id[:8],
                            format_holder(known.holder or "another process"),
                        )
                return
            except FlowError as error:
                if pause is None:
                    _log.warning(
                        "the end of action %s was not recorded: %s", claimed.action_id[:8], error.what
                    )
                    return
                self.sleep(pause)

    @contextmanager
    def _keep_claim_alive(self, claimed: ActionRecord) -> Iterator[None]:
        """Renew the claim while the block runs. If it is lost, the work goes on: the ledger takes it once."""
        is_over = threading.Event()

        def renew() -> None:
            while not is_over.wait(self.lease_seconds / 3):
                try:
                    if not self.actions.renew(claimed, self.lease_seconds):
                        return
                except FlowError as error:
                    if not is_over.is_set():
                        _log.warning(
                            "the claim of action %s was not renewed: %s", claimed.action_id[:8], error.what
                        )

        thread = threading.Thread(target=renew, name="ematix-flow-action", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join(_JOIN_SECONDS)  # a thread that still waits for the store does no harm


@contextmanager
def ends_before_it_begins(actions: ActionStore, claimed: ActionRecord) -> Iterator[None]:
    """Within the block, which prepares the process, an error ends the action and is its outcome.

    Not if the process is interrupted, or another one has begun the action under the same claim.
    """
    try:
        yield
    except Interrupted:
        raise
    except Exception as problem:
        error = problem if isinstance(problem, FlowError) else unexpected_error(problem)
        place = f", at {error.where}" if error.where else ""
        outcome = bounded_text(f"its process could not begin: {error.what}{place}")
        if len(outcome) > _LONGEST_OUTCOME:  # only now: a part of a secret would not be masked
            outcome = f"{outcome[:_LONGEST_OUTCOME]}…"
        # The error of a store that is away must not replace this one. The action is then ended by the carrier
        # that started the process, or by another once the claim has expired.
        with suppress(FlowError):
            record = actions.get(claimed.action_id)
            if record.fence == claimed.fence and not record.begun:
                actions.end(record, "failed", outcome)
        raise


def resolve_action_claim(actions: ActionStore, action_id: str, claim_text: str) -> ActionRecord:
    """Return the claimed action that ``fence:holder`` names, if that is still its newest claim."""
    record = actions.get(action_id)
    fence, _, holder = claim_text.partition(":")
    if record.status != "claimed" or str(record.fence) != fence or record.holder != holder:
        raise _is_lost(record)
    return record


def _is_lost(record: ActionRecord) -> UsageError:
    short = record.action_id[:8]
    holder = f"{format_holder(record.holder)} carries it out" if record.holder else f"it is {record.status}"
    return UsageError(
        f"the action {short} is no longer claimed by this process",
        state=f"nothing was run; {holder}",
        next_step=f"flow actions show {short}",
    )
