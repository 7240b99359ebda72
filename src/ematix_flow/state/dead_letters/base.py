"""Dead letters: what a stream could not decode, transform or write, kept to be looked at and replayed.

Owns the value, the choice of letters and the contract of a store. How letters are stored is the subject
of `dead_letters_sql` and of the backends; replaying them is `schedule.dead_letters`'.
"""

from __future__ import annotations

import builtins
import datetime as dt
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ematix_flow.errors import UsageError
from ematix_flow.spec.redaction import mask
from ematix_flow.state.run_records import aware_utc, utc_now

Stage = Literal["decode", "transform", "write", "late_data"]
LetterStatus = Literal["pending", "parked", "replayed"]

MAX_REASON_BYTES = 8 * 1024  # bytes of UTF-8
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
MAX_ATTEMPTS = 3
LEASE_SECONDS = 300.0


def letter_id(
    pipeline: str,
    stage: str,
    *,
    source: str | None,
    partition: str | None,
    position: str | None,
    target: str | None = None,
    ordinal: int = 0,
    payload: bytes = b"",
) -> str:
    """The same for the same failure of the same message, so that a batch that runs again adds nothing.

    ``ordinal`` tells apart several rows of one position. Without a position the payload stands in.
    """
    where: object = position
    if position is None:
        where = [hashlib.blake2b(payload, digest_size=16).hexdigest()]
    named = json.dumps([pipeline, stage, source, partition, where, target, ordinal])
    return hashlib.blake2b(named.encode("ascii"), digest_size=16).hexdigest()


def storable_text(text: str) -> str:
    """The text as every database takes it: without NUL and without half surrogate pairs."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def bounded_reason(text: str) -> str:
    """A reason as it may be stored: without secrets, and of a bounded length."""
    masked = storable_text(mask(text))
    encoded = masked.encode("utf-8")
    if len(encoded) <= MAX_REASON_BYTES:
        return masked
    return encoded[: MAX_REASON_BYTES - 3].decode("utf-8", "ignore") + "…"


@dataclass(frozen=True)
class DeadLetter:
    """One message, or one row of it, that a pipeline could not take. Make it with `DeadLetter.of`.

    ``payload`` is the message as it came, or the row as JSON where there was none. ``target`` is set when
    one target refused the row and the others have it. ``batch`` is the batch in which it failed. When the
    payload was too long for the store, ``whole`` is false, and the letter cannot be replayed.
    """

    id: str
    pipeline: str
    stage: Stage
    reason: str
    source: str | None = None
    partition: str | None = None
    position: str | None = None
    target: str | None = None
    batch: str | None = None
    event_ts: dt.datetime | None = None
    failed_at: dt.datetime = field(default_factory=utc_now)
    attempt: int = 1
    payload: bytes = b""
    payload_format: str = "json"
    payload_size: int = -1  # of the whole; found out when not given
    whole: bool = True
    key: bytes | None = None
    headers: str | None = None  # a JSON object of texts
    status: LetterStatus = "pending"

    def __post_init__(self) -> None:
        for name in ("id", "pipeline"):
            if not getattr(self, name):
                raise ValueError(f"a dead letter needs a {name}")
        check_stage(self.stage)
        check_letter_status(self.status)
        if self.attempt < 1:
            raise ValueError(f"attempt is {self.attempt}; the first is 1")
        for name in ("event_ts", "failed_at"):
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, aware_utc(name, moment))
        for name in ("pipeline", "source", "partition", "position", "target", "batch", "headers"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, storable_text(text))
        object.__setattr__(self, "reason", bounded_reason(self.reason))
        if self.payload_size < 0:
            object.__setattr__(self, "payload_size", len(self.payload))

    @classmethod
    def create(
        cls,
        pipeline: str,
        stage: Stage,
        reason: str | BaseException,
        *,
        payload: bytes,
        payload_format: str = "json",
        source: str | None = None,
        partition: str | None = None,
        position: str | None = None,
        target: str | None = None,
        batch: str | None = None,
        ordinal: int = 0,
        event_ts: dt.datetime | None = None,
        key: bytes | None = None,
        headers: str | None = None,
        failed_at: dt.datetime | None = None,
    ) -> DeadLetter:
        """A letter of a first failure, with the id that the same failure always gets."""
        return cls(
            letter_id(
                pipeline,
                stage,
                source=source,
                partition=partition,
                position=position,
                target=target,
                ordinal=ordinal,
                payload=payload,
            ),
            pipeline,
            stage,
            reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}",
            source=source,
            partition=partition,
            position=position,
            target=target,
            batch=batch,
            event_ts=event_ts,
            failed_at=failed_at or utc_now(),
            payload=payload,
            payload_format=payload_format,
            key=key,
            headers=headers,
        )

    def with_payload_cut_to(self, longest: int) -> DeadLetter:
        """The letter as it fits into a store; a payload that had to be cut parks it."""
        if len(self.payload) <= longest:
            return self
        said = f"{self.reason} (kept are {longest:,} of {len(self.payload):,} bytes: it cannot be replayed)"
        return replace(self, payload=self.payload[:longest], whole=False, status="parked", reason=said)

    def to_json(self) -> dict[str, Any]:
        """Without payload and key, which may be anything."""
        return {
            "id": self.id,
            "pipeline": self.pipeline,
            "stage": self.stage,
            "status": self.status,
            "reason": self.reason,
            "source": self.source,
            "partition": self.partition,
            "position": self.position,
            "target": self.target,
            "batch": self.batch,
            "event_ts": None if self.event_ts is None else self.event_ts.isoformat(),
            "failed_at": self.failed_at.isoformat(),
            "attempt": self.attempt,
            "payload_format": self.payload_format,
            "payload_size": self.payload_size,
            "whole": self.whole,
            "headers": self.headers,
        }


@dataclass(frozen=True)
class LetterSelection:
    """Which letters of a pipeline are meant: those that fulfil all that is given, oldest first.

    ``all`` must be said when nothing else is. ``reason`` is part of the reason; the case of ASCII letters
    does not matter. ``first`` counts after the rest has chosen.
    """

    all: bool = False
    first: int | None = None
    ids: tuple[str, ...] | None = None
    stage: Stage | None = None
    reason: str | None = None
    status: LetterStatus | None = None

    def __post_init__(self) -> None:
        given = (self.first, self.ids, self.stage, self.reason, self.status)
        if not self.all and all(part is None for part in given):
            raise UsageError("no dead letters are chosen", next_step="give --all, --first N or their ids")
        if self.first is not None and self.first < 1:
            raise UsageError(f"--first {self.first} chooses no dead letter", next_step="give 1 or more")
        if self.stage is not None:
            check_stage(self.stage)
        if self.status is not None:
            check_letter_status(self.status)
        if self.ids is not None:
            object.__setattr__(self, "ids", tuple(dict.fromkeys(self.ids)))

    def replayable_statuses(self) -> tuple[LetterStatus, ...]:
        """The statuses that a replay of this selection takes: parked ones only when they are named."""
        if self.status is not None:
            return (self.status,) if self.status != "replayed" else ()
        return ("pending", "parked") if self.ids is not None else ("pending",)


@dataclass(frozen=True)
class LetterCount:
    """How many letters a pipeline has of one stage and status, and when the first and last failed."""

    pipeline: str
    stage: Stage
    status: LetterStatus
    letters: int
    oldest: dt.datetime
    newest: dt.datetime


@dataclass(frozen=True)
class LetterLease:
    """Letters that are one replay's alone until a moment; ``token`` proves whose they are."""

    token: str
    until: dt.datetime
    letters: tuple[DeadLetter, ...] = ()


class DeadLetterStore(ABC):
    """Where dead letters are kept. Several processes and threads may use one at the same time.

    A store that cannot be reached or refuses is CannotConnect or TargetFailed: letters are never lost in
    silence. Every call handles its letters in bounded portions; what a crash leaves half done is done by
    the same call again.
    """

    location: str
    max_attempts: int
    longest_payload: int = MAX_PAYLOAD_BYTES

    @abstractmethod
    def add(self, letters: Sequence[DeadLetter]) -> int:
        """Keep these for good; how many were new. One whose id is there already is not added.

        One that is there as replayed, but from another batch, is pending again: it was read anew.
        """

    @abstractmethod
    def list(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: Stage | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> builtins.list[DeadLetter]:
        """The oldest first, without their payloads and keys."""

    @abstractmethod
    def counts(self, pipeline: str | None = None) -> builtins.list[LetterCount]:
        """By pipeline, stage and status."""

    @abstractmethod
    def get(self, pipeline: str | None, id_or_prefix: str) -> DeadLetter:
        """The letter with this id, or whose id alone begins so. UsageError when none or several do."""

    @abstractmethod
    def lease(
        self,
        pipeline: str,
        selection: LetterSelection,
        *,
        lease_seconds: float = LEASE_SECONDS,
        limit: int = 500,
        before: dt.datetime | None = None,
    ) -> LetterLease:
        """Lease letters for a replay, oldest first: at most ``limit``, fewer when they are large.

        Those that another replay holds, that are cut, or that failed at ``before`` or later are left out;
        parked ones too, unless the selection names them. A lease ends by itself.
        """

    @abstractmethod
    def renew(self, lease: LetterLease, lease_seconds: float = LEASE_SECONDS) -> LetterLease:
        """The same letters for longer; those that are no longer the lease's are not in it."""

    @abstractmethod
    def mark_replayed(self, lease: LetterLease, ids: Sequence[str]) -> int:
        """These are replayed. How many were still the lease's."""

    @abstractmethod
    def mark_failed(self, lease: LetterLease, id: str, reason: str) -> LetterStatus | None:
        """This failed again: what it is now, parked after ``max_attempts``. None: not the lease's."""

    @abstractmethod
    def release(self, lease: LetterLease, ids: Sequence[str] | None = None) -> int:
        """Let others have these, or all that are left, as if they had not been taken."""

    @abstractmethod
    def park(self, pipeline: str, selection: LetterSelection) -> int:
        """Leave these out of further replays, unless one names them. Leased ones are skipped."""

    @abstractmethod
    def purge(self, pipeline: str, selection: LetterSelection) -> int:
        """Forget these for good. Leased ones are skipped."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> DeadLetterStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_stage(stage: str) -> None:
    if stage not in get_args(Stage):
        raise ValueError(f"stage {stage!r} is not one of {', '.join(get_args(Stage))}")


def check_letter_status(status: str) -> None:
    if status not in get_args(LetterStatus):
        raise ValueError(f"status {status!r} is not one of {', '.join(get_args(LetterStatus))}")


def no_such_letter(id: str) -> UsageError:
    return UsageError(f"there is no dead letter {id!r}", next_step="flow dlq list")


def ambiguous_letter_id(id: str, found: Sequence[str]) -> UsageError:
    return UsageError(
        f"several dead letters begin with {id!r}: {', '.join(found)}", next_step="give more of the id"
    )
