"""Slots: which fire of which pipeline is whose, how often it was tried, and when it may be tried again.

A slot is a pipeline and a fire time. It is opened once, claimed by one holder at a time, and ended once.
Each claim has a number that only grows, the fence: what a holder says later counts while its number is the
newest. Moments are those of the store's own clock, so that no holder's clock matters.
"""

from __future__ import annotations

import datetime as dt
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

SlotStatus = Literal["waiting", "claimed", "succeeded", "gave_up", "skipped"]
UNENDED: tuple[SlotStatus, ...] = ("waiting", "claimed")
UNSUCCESSFUL: tuple[SlotStatus, ...] = ("gave_up", "skipped")
ENDED: tuple[SlotStatus, ...] = ("succeeded", *UNSUCCESSFUL)
MAX_LEASE = dt.timedelta(minutes=10)  # schedulers take theirs for one minute
MAX_CLAIM = dt.timedelta(hours=1)  # of a run that nobody hears of any more, whatever its claim says


@dataclass(frozen=True)
class Slot:
    """One fire of a pipeline's schedule."""

    pipeline: str
    fire_time: dt.datetime


@dataclass(frozen=True)
class SlotRecord:
    """What the store knows of a slot."""

    slot: Slot
    status: SlotStatus
    fence: int  # claims so far, whatever became of them
    failures: int  # of them those that said that they failed
    not_before: dt.datetime
    holder: str | None = None
    expires_at: dt.datetime | None = None  # of the claim
    reason: str | None = None
    deaths: int = 0  # claims that were taken over from a run that had begun and was not heard of again
    begun: bool = False  # whether a run uses the claim; who made it may have handed it to one elsewhere

    def is_due(self, now: dt.datetime) -> bool:
        """Whether it may be claimed: it waits no longer, or its holder was not heard of in time."""
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
    deaths: int = 0  # likewise


@dataclass(frozen=True)
class SchedulerLease:
    """The right to look for work, so that not everyone does. Nothing depends on it alone."""

    name: str
    holder: str
    fence: int


class SlotStore(ABC):
    """Each call is one transaction. A call that fails may have happened or not: the next look tells."""

    def close(self) -> None:
        """Let go of the store. It can be opened again."""
        return

    def __enter__(self) -> SlotStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def now(self) -> dt.datetime:
        """The store's clock."""

    @abstractmethod
    def open(
        self,
        wanted: Iterable[Slot],
        status: SlotStatus = "waiting",
        reason: str | None = None,
        *,
        holder: str | None = None,
    ) -> int:
        """Those that are not known yet begin to wait, or are ended at once; how many are new.

        ``holder`` is kept with the new ones, so that who opens many can tell which they were.
        """

    @abstractmethod
    def get(self, slot: Slot) -> SlotRecord | None: ...

    @abstractmethod
    def unended(self, pipelines: Sequence[str] | None = None) -> list[SlotRecord]:
        """Every slot that waits or is claimed, the oldest first."""

    @abstractmethod
    def newest(self, pipelines: Sequence[str]) -> dict[str, SlotRecord]:
        """The newest slot that was ever opened of each pipeline."""

    def last_fires(self, pipelines: Sequence[str]) -> dict[str, dt.datetime]:
        """When the newest slot of each fired."""
        return {name: record.slot.fire_time for name, record in self.newest(pipelines).items()}

    @abstractmethod
    def latest(self, pipeline: str, until: dt.datetime) -> SlotRecord | None:
        """The newest slot of a pipeline that fires then or before."""

    def get_many(self, wanted: Sequence[Slot]) -> dict[Slot, SlotRecord]:
        """Those of them that are known."""
        found = ((slot, self.get(slot)) for slot in wanted)
        return {slot: record for slot, record in found if record is not None}

    @abstractmethod
    def unsuccessful(self, pipelines: Sequence[str], since: dt.datetime) -> list[SlotRecord]:
        """Every slot of theirs that fires then or later and was given up or skipped, the oldest first."""

    @abstractmethod
    def claim(self, seen: SlotRecord, holder: str, seconds: float) -> Claim | None:
        """Claim a slot that is due as it was ``seen``; None when it is not due or another was faster."""

    def claim_all(self, seen: Sequence[SlotRecord], holder: str, seconds: float) -> list[Claim]:
        """Claim all at once; those that are not due, or that another was faster with, are left out."""
        found = (self.claim(record, holder, seconds) for record in seen)
        return [claim for claim in found if claim is not None]

    @abstractmethod
    def begin(self, claim: Claim, seconds: float, holder: str | None = None) -> bool:
        """A run begins, and holds the claim for so long from now. False when it is lost, or another has.

        ``holder`` is its name, where it is not who made the claim. So of two that were started for one claim
        one runs. A claim that expires before its run begins is no death.
        """

    @abstractmethod
    def renew(self, claim: Claim, seconds: float, reason: str | None = None) -> bool:
        """Hold it for so long from now, and note why. False when it is lost: whoever hears that stops."""

    @abstractmethod
    def end(self, claim: Claim, status: SlotStatus, reason: str | None = None) -> bool:
        """The slot has ended. False when the claim is not the newest."""

    def end_all(self, reasons: Mapping[Claim, str | None], status: SlotStatus) -> set[Slot]:
        """End all of them at once, each with its reason; those whose claim was the newest."""
        return {claim.slot for claim, reason in reasons.items() if self.end(claim, status, reason)}

    @abstractmethod
    def retry_later(
        self, claim: Claim, seconds: float, reason: str | None = None, *, failed: bool = True
    ) -> bool:
        """The next attempt may come in so long; one that ``failed`` counts. False when it is too late."""

    @abstractmethod
    def end_wait(self, seen: SlotRecord) -> bool:
        """A slot that waits as it was ``seen`` waits no longer: a clock ahead of time had set how long."""

    @abstractmethod
    def reopen(self, slot: Slot) -> bool:
        """By hand: a slot that was given up or skipped waits again, as if it had never been tried."""

    @abstractmethod
    def lease(self, name: str, holder: str, seconds: float) -> SchedulerLease | None:
        """Take or prolong a lease; None while another holds it.

        A lease that ends later than ``LONGEST_LEASE`` from now counts as ended: it was taken while a clock
        was ahead.
        """

    @abstractmethod
    def release(self, lease: SchedulerLease) -> None: ...

    def require_writable(self) -> None:
        """Raise what a write raises, before anything depends on one."""
        lease = self.lease("write check", str(uuid.uuid4()), 1)
        if lease is not None:
            self.release(lease)

    @abstractmethod
    def purge(self, before: dt.datetime, pipeline: str | None = None) -> int:
        """Forget ended slots that fired earlier, of one pipeline or all, but never its newest; how many.

        One of a moment at which another has not ended stays: it may be a job that its workflow asks for.
        """
