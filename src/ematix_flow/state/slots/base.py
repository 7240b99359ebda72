"""Slots: the fires of pipelines, which process runs each, its attempts, and when the next one may start.

A slot is a pipeline and a fire time. It is opened once, claimed by one holder at a time, and ended once.
Each claim has a growing number, the fence: a request of a holder counts only while its fence is the newest.
Times come from the store's own clock, so that the clocks of holders do not matter.
"""

from __future__ import annotations

import datetime as dt
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ematix_flow.state.slots.scheduler_lease import SchedulerLease

SlotStatus = Literal["waiting", "claimed", "succeeded", "gave_up", "skipped"]
UNFINISHED: tuple[SlotStatus, ...] = ("waiting", "claimed")
UNSUCCESSFUL: tuple[SlotStatus, ...] = ("gave_up", "skipped")
ENDED: tuple[SlotStatus, ...] = ("succeeded", *UNSUCCESSFUL)
UNCLAIMED: tuple[SlotStatus, ...] = ("waiting", *UNSUCCESSFUL)  # may be ended without a claim
CLOCK_STEP = dt.timedelta(minutes=1)  # clocks are adjusted by up to this; a later slot: a clock was ahead
ENDING_CLAIM_SECONDS = 60.0  # how long a claim lasts that only ends or reschedules a slot
MAX_CLAIM = dt.timedelta(hours=1)  # limit for a run without heartbeat, even if its claim lasts longer


@dataclass(frozen=True)
class Slot:
    """One fire of a pipeline's schedule."""

    pipeline: str
    fire_time: dt.datetime


@dataclass(frozen=True)
class SlotRecord:
    """A slot as the store knows it."""

    slot: Slot
    status: SlotStatus
    fence: int  # number of claims so far
    failures: int  # attempts that recorded a failure
    not_before: dt.datetime
    holder: str | None = None
    expires_at: dt.datetime | None = None  # of the claim
    reason: str | None = None
    deaths: int = 0  # claims taken over from a run that had begun and stopped its heartbeat
    begun: bool = (
        False  # whether a run has begun under the claim, perhaps in another process than the claimer
    )

    def is_due(self, now: dt.datetime) -> bool:
        """Whether it may be claimed: its wait is over, or its claim has expired."""
        if self.status == "waiting":
            return self.not_before <= now
        return self.status == "claimed" and self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True)
class Claim:
    """The right to run a slot, until it expires or a newer one is given."""

    slot: Slot
    holder: str
    fence: int
    failures: int  # before this attempt
    deaths: int = 0  # before this attempt


class SlotStore(ABC):
    """Stores slots.

    Each call is one transaction. A failed call may have taken effect: the next poll shows it.
    """

    def close(self) -> None:
        """Close the store. It can be opened again."""
        return

    def __enter__(self) -> SlotStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def now(self) -> dt.datetime:
        """Return the time of the store's clock."""

    @abstractmethod
    def open(
        self,
        wanted: Iterable[Slot],
        status: SlotStatus = "waiting",
        reason: str | None = None,
        *,
        holder: str | None = None,
    ) -> int:
        """Open the slots that are not known yet, waiting or already ended, and return how many are new.

        ``holder`` is stored with the new ones, so that the caller can recognise them.
        """

    @abstractmethod
    def get(self, slot: Slot) -> SlotRecord | None: ...

    @abstractmethod
    def unfinished(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        """Return every slot that waits or is claimed, oldest first."""

    @abstractmethod
    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        """Return the newest slot of each pipeline, with any status."""

    def last_fires(self, pipelines: Sequence[str]) -> dict[str, dt.datetime]:
        """Return the fire time of the newest slot of each pipeline."""
        return {name: record.slot.fire_time for name, record in self.newest(pipelines).items()}

    @abstractmethod
    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        """Return the newest slot of a pipeline with a fire time up to ``until``."""

    def get_many(self, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
        """Return the slots that are known."""
        found = ((slot, self.get(slot)) for slot in wanted)
        return {slot: record for slot, record in found if record is not None}

    @abstractmethod
    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        """Return every slot that fired at ``since`` or later and was given up or skipped, oldest first."""

    @abstractmethod
    def between(self, since: dt.datetime, until: dt.datetime, limit: int) -> list[SlotRecord]:
        """Return the slots that fired from ``since`` on and before ``until``: the newest ``limit``, newest
        first."""

    @abstractmethod
    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        """Claim a due slot that is still as it was ``seen``; None if it is not due or another was faster."""

    def claim_all(self, seen: Sequence[SlotRecord], holder: str, seconds: float) -> list[Claim]:
        """Claim all at once; slots that are not due, or that another process claimed first, are left out."""
        found = (self.claim(record, holder, seconds) for record in seen)
        return [claim for claim in found if claim is not None]

    @abstractmethod
    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        """Begin a run, which holds the claim for ``seconds`` from now.

        False if the claim is lost or already begun: if two runs are started for one claim, only one runs.
        ``holder`` is the name of the run, if it did not make the claim itself. A claim that expires before
        its run begins does not count as a death.
        """

    @abstractmethod
    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        """Extend the claim to ``seconds`` from now, and store the reason. False if the claim is lost."""

    @abstractmethod
    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        """End the slot. False if the claim is not the newest."""

    def end_all(self, reasons: Mapping[Claim, str | None], status: SlotStatus) -> set[Slot]:
        """End all slots at once, each with its reason. Returns the slots whose claim was the newest."""
        return {claim.slot for claim, reason in reasons.items() if self.end(claim, status, reason)}

    @abstractmethod
    def retry_later(
        self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> bool:
        """Let the next attempt start in ``seconds``; ``failed`` counts this one as a failure.

        False if too late.
        """

    @abstractmethod
    def end_wait(self, seen: SlotRecord) -> bool:
        """End the wait of a slot that is still as it was ``seen``: a wrong clock had set it."""

    @abstractmethod
    def reopen(self, slot: Slot) -> bool:
        """Reopen a slot that was given up or skipped: it waits again, without earlier attempts."""

    @abstractmethod
    def end_unclaimed(self, seen: SlotRecord, status: SlotStatus, reason: str | None = None) -> bool:
        """End a slot that no run holds: it waits, was given up or was skipped.

        False if it has changed since it was ``seen``, is claimed, or has succeeded.
        """

    @abstractmethod
    def lease(self, name: str, holder: str, seconds: float) -> SchedulerLease | None:
        """Take or renew a lease; None while another holder has it.

        A lease that ends later than ``MAX_LEASE`` from now counts as ended: it was taken while a clock was
        ahead.
        """

    @abstractmethod
    def release(self, lease: SchedulerLease) -> None: ...

    def require_writable(self) -> None:
        """Raise the error of a failed write now, before anything depends on a write."""
        lease = self.lease("write check", str(uuid.uuid4()), 1)
        if lease is not None:
            self.release(lease)

    @abstractmethod
    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        """Delete ended slots that fired before ``before``, but never the newest of a pipeline; how many.

        A slot stays if another one with the same fire time has not ended: it may be a job of its workflow.
        """
