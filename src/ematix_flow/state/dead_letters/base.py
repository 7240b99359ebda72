"""Dead letters: messages that a stream could not load, or that failed its rules, kept to look and to replay.

Owns the value, the selection of letters and the contract of a store. `dead_letters.sql` and the backends
store them; `streams.dead_letter_replay` replays them.
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
from ematix_flow.state.times import aware_utc, utc_now
from ematix_probe.redaction import mask

LetterStage = Literal["decode", "transform", "write", "expectation", "late_data"]
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
    """Return the id of a letter: the same for the same failure of the same message.

    So a batch that runs again adds no letters.
    ``ordinal`` distinguishes several rows of one position. Without a position the payload identifies it.
    """
    where: object = position
    if position is None:
        where = [hashlib.blake2b(payload, digest_size=16).hexdigest()]
    identity = json.dumps([pipeline, stage, source, partition, where, target, ordinal])
    return hashlib.blake2b(identity.encode("ascii"), digest_size=16).hexdigest()


def storable_text(text: str) -> str:
    """Return the text as every database accepts it: without NUL and without half surrogate pairs."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def bounded_reason(text: str) -> str:
    """Return a reason as it may be stored: without secrets, and of a bounded length."""
    masked = storable_text(mask(text))
    encoded = masked.encode("utf-8")
    if len(encoded) <= MAX_REASON_BYTES:
        return masked
    return encoded[: MAX_REASON_BYTES - 3].decode("utf-8", "ignore") + "…"


@dataclass(frozen=True)
class DeadLetter:
    """One message, or one row of it, that a pipeline could not load. Make it with `DeadLetter.create`.

    ``payload`` is the message as it came, or the row as JSON if there was none. ``target`` is set if one
    target refused the row and the others have it. ``batch`` is the batch in which it failed. If the payload
    was too long for the store, ``whole`` is false and the letter cannot be replayed. ``loading`` has the keys
    of the batches in which a replay loads the letter, divided by spaces: it may have died after a commit.
    ``loaded_in`` has the labels of the targets that replays have loaded it into, while others refuse it.
    """

    id: str
    pipeline: str
    stage: LetterStage
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
    payload_size: int = -1  # of the whole payload; computed if not given
    whole: bool = True
    key: bytes | None = None
    headers: str | None = None  # a JSON object of texts
    status: LetterStatus = "pending"
    loading: str | None = None
    loaded_in: str | None = None  # a JSON array of texts

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
        stage: LetterStage,
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
        """Return the letter of a first failure; the same failure always gets the same id."""
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

    @property
    def targets_with_it(self) -> tuple[str, ...]:
        """The labels in ``loaded_in``."""
        return tuple(json.loads(self.loaded_in)) if self.loaded_in is not None else ()

    def with_payload_cut_to(self, longest: int) -> DeadLetter:
        """Return the letter as it fits into a store; a letter whose payload is cut is parked."""
        if len(self.payload) <= longest:
            return self
        reason = f"{self.reason} (kept are {longest:,} of {len(self.payload):,} bytes: it cannot be replayed)"
        return replace(self, payload=self.payload[:longest], whole=False, status="parked", reason=reason)

    def to_json(self) -> dict[str, Any]:
        """Return the letter as JSON, without payload and key, which may be any bytes."""
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
            "loaded_in": list(self.targets_with_it),
        }


@dataclass(frozen=True)
class LetterSelection:
    """Selects letters of a pipeline that match all given conditions, oldest first.

    ``all`` must be set if nothing else is. ``reason`` is a part of the reason; the case of ASCII letters
    does not matter. ``first`` limits the result of the other conditions.
    """

    all: bool = False
    first: int | None = None
    ids: tuple[str, ...] | None = None
    stage: LetterStage | None = None
    reason: str | None = None
    status: LetterStatus | None = None

    def __post_init__(self) -> None:
        conditions = (self.first, self.ids, self.stage, self.reason, self.status)
        if not self.all and all(part is None for part in conditions):
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
        """Return the statuses that a replay of this selection takes: parked ones only if named."""
        if self.status is not None:
            return (self.status,) if self.status != "replayed" else ()
        return ("pending", "parked") if self.ids is not None else ("pending",)


@dataclass(frozen=True)
class LetterCount:
    """The number of letters of a pipeline by stage and status, and when the first and the last failed."""

    pipeline: str
    stage: LetterStage
    status: LetterStatus
    letters: int
    oldest: dt.datetime
    newest: dt.datetime


@dataclass(frozen=True)
class LetterLease:
    """Letters that only one replay may use until ``until``; ``token`` proves the ownership."""

    token: str
    until: dt.datetime
    letters: tuple[DeadLetter, ...] = ()


@dataclass(frozen=True)
class LetterPage:
    """Letters, oldest first, and the place where the next page begins; None if there is none."""

    letters: tuple[DeadLetter, ...]
    next: str | None


class DeadLetterStore(ABC):
    """Stores dead letters. Several processes and threads may use one store at the same time.

    Raises CannotConnect or TargetFailed if the store cannot be reached or refuses: no letter is lost in
    silence. Every call handles its letters in bounded portions; repeating a call completes what a crash
    interrupted.
    """

    location: str
    max_attempts: int
    longest_payload: int = MAX_PAYLOAD_BYTES

    @abstractmethod
    def add(self, letters: Sequence[DeadLetter]) -> int:
        """Store the letters and return how many were new. A letter whose id is known is not added.

        A letter that is known as replayed, but from another batch, is pending again: it was read again. Any
        other known letter gets the new batch.
        """

    @abstractmethod
    def select_new(self, letters: Sequence[DeadLetter]) -> builtins.list[DeadLetter]:
        """Return the letters that `add` would store now: unknown ones, and replayed ones of another batch."""

    @abstractmethod
    def list(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: LetterStage | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> builtins.list[DeadLetter]:
        """Return letters, oldest first, without their payloads and keys."""

    @abstractmethod
    def page(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: LetterStage | None = None,
        reason: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> LetterPage:
        """Return letters as `list` does, from the place ``after`` on, where a page before ended.

        ``reason`` is a part of the reason; the case of ASCII letters does not matter.
        """

    @abstractmethod
    def of_batch(self, pipeline: str, stage: LetterStage, batch: str) -> builtins.list[DeadLetter]:
        """Return all letters of a batch, of any status, without their payloads and keys."""

    @abstractmethod
    def counts(self, pipeline: str | None = None) -> builtins.list[LetterCount]:
        """Return the counts by pipeline, stage and status."""

    @abstractmethod
    def get(self, pipeline: str | None, id_or_prefix: str) -> DeadLetter:
        """Return the letter with this id or unique prefix.

        Raises NoSuchLetter, or another UsageError if several match.
        """

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
        """Lease letters for a replay, oldest first: at most ``limit``, fewer if they are large.

        Letters that another replay holds, that are cut, or that failed at ``before`` or later are left out;
        so are parked ones, unless the selection names them, and those that `lease_interrupted` returns. A
        lease ends by itself.
        """

    @abstractmethod
    def lease_interrupted(self, pipeline: str, *, lease_seconds: float = LEASE_SECONDS) -> LetterLease:
        """Lease the letters that one replay was loading when it ended; none if there is no such replay.

        They share the part of ``loading`` before its last colon, and may be in the targets.
        """

    @abstractmethod
    def loading_of_others(self, pipeline: str, lease: LetterLease) -> dt.datetime | None:
        """Return until when other replays lease letters of the pipeline that they may be loading.

        A time that is over if such a replay has ended; None if there are no such letters.
        """

    @abstractmethod
    def mark_loading(
        self, lease: LetterLease, ids: Sequence[str], loading: str | None, loaded_in: str | None = None
    ) -> int:
        """Record the batches in which these letters are loaded, before they are committed.

        ``loaded_in`` is left as it is if it is None. Returns how many letters the lease still held.
        """

    @abstractmethod
    def renew(self, lease: LetterLease, lease_seconds: float = LEASE_SECONDS) -> LetterLease:
        """Extend the lease. The result leaves out letters that the lease no longer holds."""

    @abstractmethod
    def mark_replayed(self, lease: LetterLease, ids: Sequence[str]) -> int:
        """Mark these letters as replayed. Returns how many the lease still held."""

    @abstractmethod
    def mark_failed(
        self, lease: LetterLease, id: str, reason: str, loaded_in: str | None = None
    ) -> LetterStatus | None:
        """Record another failure of a letter and return its status: parked after ``max_attempts``.

        ``loaded_in`` is left as it is if it is None. None if the lease no longer holds the letter.
        """

    @abstractmethod
    def release(self, lease: LetterLease, ids: Sequence[str] | None = None) -> int:
        """Release these letters, or all that the lease still holds, as if they had not been leased.

        What `mark_loading` recorded stays.
        """

    @abstractmethod
    def park(self, pipeline: str, selection: LetterSelection) -> int:
        """Exclude these letters from replays that do not name them. Leased letters are left as they are."""

    @abstractmethod
    def purge(self, pipeline: str, selection: LetterSelection) -> int:
        """Delete these letters. Leased letters are left as they are."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> DeadLetterStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DeadLetterPublisher(ABC):
    """Sends copies of dead letters to other consumers. The letters themselves are in a store."""

    @abstractmethod
    def publish(self, letters: Sequence[DeadLetter]) -> None:
        """Send the letters, and return when they are durable. Raises FlowError otherwise."""


def check_stage(stage: str) -> None:
    if stage not in get_args(LetterStage):
        raise ValueError(f"stage {stage!r} is not one of {', '.join(get_args(LetterStage))}")


def check_letter_status(status: str) -> None:
    if status not in get_args(LetterStatus):
        raise ValueError(f"status {status!r} is not one of {', '.join(get_args(LetterStatus))}")


class NoSuchLetter(UsageError):
    """No letter of a store has this id or prefix."""

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no dead letter {id!r}", next_step="flow dlq list")
