"""Dead letters as messages of a topic, and the state of all letters in a topic.

A letter is a message with the original payload, key and headers, and our own headers in addition. A topic
cannot be updated, so further messages without a payload record each change of a letter. All messages of one
letter are in one partition, whose order decides. `LetterView` folds both kinds. Has no Kafka client.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ematix_flow.state.dead_letters.base import DeadLetter, LetterStatus

PREFIX = "ematix-dlq-"

# the statuses from which a letter can be parked or purged
_CHANGEABLE_FROM = {"parked": ("pending",), "purged": ("pending", "parked", "replayed")}

Headers = list[tuple[str, bytes | None]]
TopicOffset = tuple[int, int]  # partition and offset

_HEADER_FIELDS = {
    "id": "id",
    "pipeline": "pipeline",
    "stage": "stage",
    "reason": "reason",
    "source": "source",
    "partition": "partition",
    "position": "position",
    "target": "target",
    "batch": "batch",
    "format": "payload_format",
}


@dataclass(frozen=True)
class LetterChange:
    """A change of one letter. ``operation`` identifies the call that wrote it.

    With ``lease`` it takes effect only while that replay holds the letter. ``leased`` takes effect when no
    replay holds the letter at that time and its status is one of ``from_statuses``; ``parked`` and ``purged``
    when no replay holds it; ``pending`` without a lease when it was replayed or purged before.
    """

    id: str
    pipeline: str
    status: str  # leased, renewed, released, replayed, pending, parked, purged
    operation: str
    changed_at: dt.datetime
    lease: str | None = None
    until: dt.datetime | None = None
    from_statuses: tuple[str, ...] = ()
    attempt: int | None = None
    reason: str | None = None
    failed_at: dt.datetime | None = None
    batch: str | None = None
    seq: int | None = None


@dataclass
class LetterEntry:
    """The state of one letter; ``letter`` has neither payload nor key."""

    letter: DeadLetter | None = None
    topic_offset: TopicOffset | None = None
    seq: int = 0
    status: str = "pending"
    lease: str | None = None
    until: dt.datetime | None = None
    last_change: LetterChange | None = None  # the last change of reason and attempt

    def is_free(self, now: dt.datetime) -> bool:
        return self.lease is None or self.until is None or self.until <= now

    def current_letter(self) -> DeadLetter:
        assert self.letter is not None
        letter = replace(self.letter, status=cast(LetterStatus, self.status))
        if self.last_change is None:
            return letter
        change = self.last_change
        return replace(
            letter,
            reason=letter.reason if change.reason is None else change.reason,
            attempt=change.attempt or letter.attempt,
            failed_at=change.failed_at or letter.failed_at,
            batch=change.batch if change.lease is None else letter.batch,
        )


class LetterView:
    """The state of all letters of a topic, as far as it was read."""

    def __init__(self) -> None:
        self.entries: dict[str, LetterEntry] = {}
        self._reasons: dict[str, str] = {}
        self._awaited: dict[str, set[str]] = {}

    def read_message(self, topic_offset: TopicOffset, headers: Headers | None) -> None:
        """Apply the next message of a partition. Messages of other programs are ignored."""
        ours = own_headers(headers)
        if "id" not in ours:
            return
        try:
            if "stage" in ours:
                letter, seq = parse_letter(ours, headers or [])
                took_effect = self._add_letter(letter, seq, topic_offset)
            else:
                took_effect = self._apply_change(parse_change(ours))
            if took_effect and ours["operation"] in self._awaited:
                self._awaited[ours["operation"]].add(ours["id"])
        except (ValueError, KeyError, TypeError):
            return  # another program's headers with our prefix

    def visible_entries(self) -> Iterable[LetterEntry]:
        """The letters in the order of their arrival, without purged ones."""
        found = [e for e in self.entries.values() if e.letter is not None and e.status != "purged"]
        return sorted(found, key=lambda entry: (entry.seq, entry.topic_offset))

    def await_operation(self, operation: str) -> set[str]:
        """A set that reading the topic fills with the ids whose change by this operation took effect."""
        return self._awaited.setdefault(operation, set())

    def forget_operation(self, operation: str) -> None:
        self._awaited.pop(operation, None)

    def _add_letter(self, letter: DeadLetter, seq: int, topic_offset: TopicOffset) -> bool:
        entry = self.entries.setdefault(letter.id, LetterEntry())
        entry.topic_offset = topic_offset  # retention removes the newest copy last
        if entry.letter is not None:
            return False
        reason = self._reasons.setdefault(letter.reason, letter.reason)  # many have the same
        entry.letter, entry.seq = replace(letter, reason=reason), entry.seq or seq
        if not letter.whole and entry.status == "pending":
            entry.status = "parked"
        return True

    def _apply_change(self, change: LetterChange) -> bool:
        entry = self.entries.setdefault(change.id, LetterEntry())
        free = entry.is_free(change.changed_at)
        if change.status == "leased":
            if not free or entry.status not in change.from_statuses:
                return False
            entry.lease, entry.until = change.operation, change.until
            return True
        if change.lease is not None:
            if entry.lease != change.lease:
                return False
            if change.status == "renewed":
                entry.until = change.until
                return True
            entry.lease = entry.until = None
            if change.status != "released":
                entry.status = change.status
            if change.attempt is not None:
                entry.last_change = change
            return True
        if change.status == "pending":
            if entry.status not in ("replayed", "purged"):
                return False
            entry.status, entry.last_change, entry.seq = "pending", change, change.seq or entry.seq
        elif not free or entry.status not in _CHANGEABLE_FROM.get(change.status, ()):
            return False
        else:
            entry.status = change.status
        entry.lease = entry.until = None
        return True


# ------------------------------------------------------------------ headers


def own_headers(headers: Headers | None) -> dict[str, str]:
    """Our headers, without their prefix."""
    return {
        name.removeprefix(PREFIX): (value or b"").decode("utf-8", "replace")
        for name, value in headers or ()
        if name.startswith(PREFIX)
    }


def letter_headers(letter: DeadLetter, operation: str, seq: int) -> Headers:
    texts: dict[str, str | None] = {name: getattr(letter, field) for name, field in _HEADER_FIELDS.items()}
    texts |= {
        "attempt": str(letter.attempt),
        "failed-at": letter.failed_at.isoformat(),
        "event-ts": None if letter.event_ts is None else letter.event_ts.isoformat(),
        "payload-size": str(letter.payload_size),
        "whole": "true" if letter.whole else "false",
        "seq": str(seq),
        "operation": operation,
    }
    original = _original_headers(letter.headers)
    if letter.headers is not None and (not original or _as_json(original) != letter.headers):
        texts["headers"] = letter.headers  # message headers cannot hold it exactly
    return [*original, *_encode_headers(texts)]


def parse_letter(ours: Mapping[str, str], headers: Headers) -> tuple[DeadLetter, int]:
    """The letter without payload and key, and its sequence number."""
    values: dict[str, Any] = {field: ours.get(name) for name, field in _HEADER_FIELDS.items()}
    original = [(name, value) for name, value in headers if not name.startswith(PREFIX)]
    letter = DeadLetter(
        **values,
        attempt=int(ours["attempt"]),
        failed_at=dt.datetime.fromisoformat(ours["failed-at"]),
        event_ts=dt.datetime.fromisoformat(ours["event-ts"]) if "event-ts" in ours else None,
        payload_size=int(ours["payload-size"]),
        whole=ours["whole"] == "true",
        headers=ours.get("headers", _as_json(original) if original else None),
    )
    return letter, int(ours["seq"])


def change_headers(change: LetterChange) -> Headers:
    texts: dict[str, str | None] = {
        "id": change.id,
        "pipeline": change.pipeline,
        "status": change.status,
        "operation": change.operation,
        "at": change.changed_at.isoformat(),
        "lease": change.lease,
        "until": None if change.until is None else change.until.isoformat(),
        "takes": ",".join(change.from_statuses) or None,
        "attempt": None if change.attempt is None else str(change.attempt),
        "reason": change.reason,
        "failed-at": None if change.failed_at is None else change.failed_at.isoformat(),
        "batch": change.batch,
        "seq": None if change.seq is None else str(change.seq),
    }
    return _encode_headers(texts)


def parse_change(ours: Mapping[str, str]) -> LetterChange:
    def moment(name: str) -> dt.datetime | None:
        return dt.datetime.fromisoformat(ours[name]) if name in ours else None

    return LetterChange(
        ours["id"],
        ours["pipeline"],
        ours["status"],
        ours["operation"],
        dt.datetime.fromisoformat(ours["at"]),
        ours.get("lease"),
        moment("until"),
        tuple(filter(None, ours.get("takes", "").split(","))),
        int(ours["attempt"]) if "attempt" in ours else None,
        ours.get("reason"),
        moment("failed-at"),
        ours.get("batch"),
        int(ours["seq"]) if "seq" in ours else None,
    )


def _encode_headers(texts: Mapping[str, str | None]) -> Headers:
    return [(PREFIX + name, text.encode("utf-8")) for name, text in texts.items() if text is not None]


def _original_headers(text: str | None) -> Headers:
    """Headers from a JSON object of texts, without those that have our prefix."""
    try:
        read = json.loads(text) if text else {}
    except ValueError:
        return []
    pairs = read.items() if isinstance(read, dict) else ()
    return [
        (name, value.encode("utf-8", "backslashreplace"))
        for name, value in pairs
        if isinstance(value, str) and name and not name.startswith(PREFIX) and "\x00" not in name
    ]


def _as_json(headers: Sequence[tuple[str, bytes | None]]) -> str:
    texts = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
    return json.dumps(texts, ensure_ascii=False)
