"""Actions: what people asked for, which process carries each out, and how it ended; and what is paused.

An action is requested once, claimed by one holder at a time, and ended once. Each claim has a growing number,
the fence: a change of a holder counts only while its fence is the newest. Times come from the store's own
clock, so that the clocks of holders do not matter.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.state.actions.records import ActionKind, ActionRecord, ActionStatus, Hold, HoldKind


class ActionStore(ABC):
    """Stores actions and holds.

    Each call is one transaction. A failed call may have taken effect: asking again shows it.
    """

    def close(self) -> None:
        """Close the store. It can be opened again."""
        return

    def __enter__(self) -> ActionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def now(self) -> dt.datetime:
        """Return the time of the store's clock."""

    # ------------------------------------------------------------------ requests

    @abstractmethod
    def request(
        self, kind: ActionKind, subject: str, arguments: Mapping[str, Any], *, by: str, via: str
    ) -> tuple[ActionRecord, bool]:
        """Store a waiting action. False: the same one has not ended yet, and is returned instead."""

    @abstractmethod
    def get(self, action_id: str) -> ActionRecord:
        """Return the action with this id or unique prefix. Raises UsageError if none or several match."""

    @abstractmethod
    def list(
        self,
        *,
        limit: int = 50,
        before: tuple[dt.datetime, str] | None = None,
        subject: str | None = None,
        kind: ActionKind | None = None,
        unfinished: bool = False,
    ) -> tuple[ActionRecord, ...]:
        """Return actions, newest first: at most ``limit``.

        ``before`` is the time and id of the last action of the page before.
        """

    @abstractmethod
    def stop_requested(self, run_id: str) -> ActionRecord | None:
        """Return the request to stop this run, if it has not been obeyed yet."""

    # ------------------------------------------------------------------ carrying out

    @abstractmethod
    def keep_waiting(self, seen: ActionRecord, seconds: float) -> bool:
        """Let an action that waits expire only ``seconds`` from now: a carrier will take it, and is busy.

        False if it no longer waits as it was ``seen``.
        """

    @abstractmethod
    def claimable(self) -> tuple[ActionRecord, ...]:
        """Return the actions that a carrier may claim now, oldest first."""

    @abstractmethod
    def claim(self, seen: ActionRecord, holder: str, seconds: float) -> ActionRecord | None:
        """Claim an action that is still as it was ``seen``; None if another was faster.

        A claim that is taken over from a process that had begun counts as a death.
        """

    @abstractmethod
    def begin(self, claimed: ActionRecord, seconds: float, holder: str | None = None) -> bool:
        """Begin to carry it out, under the claim for ``seconds`` from now.

        False if the claim is lost or already begun: if two processes are started for one claim, one goes on.
        ``holder`` is the name of the process, if it did not make the claim itself.
        """

    @abstractmethod
    def renew(self, claimed: ActionRecord, seconds: float) -> bool:
        """Extend the claim to ``seconds`` from now. False if the claim is lost."""

    @abstractmethod
    def hand_back(self, claimed: ActionRecord) -> bool:
        """Let another process carry it out, without counting a death. False if the claim is lost."""

    @abstractmethod
    def end(
        self,
        claimed: ActionRecord,
        status: ActionStatus,
        outcome: str,
        run_ids: tuple[str, ...] = (),
    ) -> bool:
        """End the action. False if it has ended, or the claim is not the newest.

        An action that waits ends too: what is done at once, and a stop, which its run obeys without a claim.
        """

    # ------------------------------------------------------------------ holds

    @abstractmethod
    def hold(self, kind: HoldKind, name: str, *, by: str, reason: str | None = None) -> bool:
        """Pause the schedule or the runs of ``name``. False if they are paused already."""

    @abstractmethod
    def release(self, kind: HoldKind, name: str) -> bool:
        """End the pause. False if there is none."""

    @abstractmethod
    def holds(self) -> tuple[Hold, ...]:
        """Return everything that is paused, by kind and name."""

    def find_hold(self, kind: HoldKind, name: str) -> Hold | None:
        return next((hold for hold in self.holds() if (hold.kind, hold.name) == (kind, name)), None)

    @abstractmethod
    def mark_held(self, name: str, run_id: str, at: str) -> None:
        """Record that this run waits at a safe point because the runs of ``name`` are paused."""

    @abstractmethod
    def mark_released(self, name: str, run_id: str) -> None:
        """Record that this run waits no longer."""

    @abstractmethod
    def purge(self, before: dt.datetime) -> int:
        """Delete the actions that ended before ``before``, and return how many."""


def no_such_action(action_id: str) -> UsageError:
    return UsageError(f"there is no action {action_id!r}", next_step="flow actions list")
