"""Dead letters in a Kafka topic.

The topic holds the letters as messages that any consumer can read. Further messages in the same topic record
how the status of a letter changes, so this store reads the whole topic when it is opened, and then only new
messages. The topic must keep its messages for as long as the letters are needed, and must not be compacted.
Consumer group ``ematix-flow.dlq.<pipeline>`` points at the oldest pending letter, for lag tools.
"""

from __future__ import annotations

import builtins
import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.backends.kafka.dead_letter_records import LetterChange, LetterEntry
from ematix_flow.backends.kafka.dead_letter_sizes import fit_letter
from ematix_flow.backends.kafka.dead_letter_topic import GROUP, LetterTopic
from ematix_flow.spec.connections.brokers import KafkaConnection
from ematix_flow.state.dead_letters.base import (
    LEASE_SECONDS,
    DeadLetter,
    DeadLetterStore,
    LetterCount,
    LetterLease,
    LetterSelection,
    LetterStatus,
    Stage,
    bounded_reason,
    no_such_letter,
    storable_text,
)
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.times import utc_now

MAX_LEASED_LETTERS = 500
MAX_LEASED_BYTES = 8 * 1024 * 1024


def open_store(connection: KafkaConnection, topic: str, max_attempts: int) -> KafkaDeadLetters:
    return KafkaDeadLetters(connection, topic, max_attempts)


class KafkaDeadLetters(DeadLetterStore):
    """The letters in one topic. A lock admits one thread at a time."""

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        max_attempts: int,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._topic = LetterTopic(connection, topic)
        self.location = self._topic.label
        self.max_attempts = max_attempts
        self._max_message_bytes = self._topic.max_message_bytes()
        self._clock = clock
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ adding

    def add(self, letters: Sequence[DeadLetter]) -> int:
        once = {letter.id: letter for letter in reversed(letters)}  # of equal ids keep the first
        if not once:
            return 0
        with self._lock:
            self._topic.read_new_messages()
            new, again = [], []
            for letter in reversed(once.values()):
                entry = self._topic.view.entries.get(letter.id)
                if entry is None or entry.letter is None:
                    new.append(fit_letter(letter, self._max_message_bytes, self.longest_payload))
                elif entry.status == "purged" or (
                    entry.status == "replayed" and entry.current_letter().batch != letter.batch
                ):
                    again.append(fit_letter(letter, self._max_message_bytes, self.longest_payload))
            first, operation = time.time_ns(), uuid.uuid4().hex
            reopened = [
                LetterChange(
                    letter.id,
                    letter.pipeline,
                    "pending",
                    operation,
                    self._clock(),
                    attempt=letter.attempt,
                    reason=letter.reason,
                    failed_at=letter.failed_at,
                    batch=letter.batch,
                    seq=first + number,
                )
                for number, letter in enumerate(again, start=len(new))
            ]
            return len(self._write(operation, reopened, letters=[*new, *again], first=first))

    # ------------------------------------------------------------------ reading

    def list(
        self,
        pipeline: str | None = None,
        *,
        status: LetterStatus | None = None,
        stage: Stage | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> builtins.list[DeadLetter]:
        with self._lock:
            self._topic.read_new_messages()
            found = [
                entry.current_letter()
                for entry in self._entries_of(pipeline)
                if status in (None, entry.status) and stage in (None, _letter_of(entry).stage)
            ]
        return found[max(offset, 0) :][: max(limit, 0)]

    def counts(self, pipeline: str | None = None) -> builtins.list[LetterCount]:
        with self._lock:
            self._topic.read_new_messages()
            groups: dict[tuple[str, Stage, LetterStatus], builtins.list[dt.datetime]] = {}
            for entry in self._entries_of(pipeline):
                letter = entry.current_letter()
                key = (letter.pipeline, letter.stage, letter.status)
                groups.setdefault(key, []).append(letter.failed_at)
        return [LetterCount(*key, len(when), min(when), max(when)) for key, when in sorted(groups.items())]

    def get(self, pipeline: str | None, id_or_prefix: str) -> DeadLetter:
        if not id_or_prefix.isalnum() or not id_or_prefix.isascii():
            raise no_such_letter(id_or_prefix)
        with self._lock:
            self._topic.read_new_messages()
            entries = {_letter_of(entry).id: entry for entry in self._entries_of(pipeline)}
            begins = {id: entries[id] for id in sorted(id for id in entries if id.startswith(id_or_prefix))}
            found = find_by_prefix("dead letters", id_or_prefix, begins)
            letters = self._with_payloads([] if found is None else [found])
        if not letters:
            raise no_such_letter(id_or_prefix)
        return letters[0]

    # ------------------------------------------------------------------ replaying

    def lease(
        self,
        pipeline: str,
        selection: LetterSelection,
        *,
        lease_seconds: float = LEASE_SECONDS,
        limit: int = MAX_LEASED_LETTERS,
        before: dt.datetime | None = None,
    ) -> LetterLease:
        token, statuses = uuid.uuid4().hex, selection.replayable_statuses()
        most = min(limit, MAX_LEASED_LETTERS, selection.first or limit)
        with self._lock:
            self._topic.read_new_messages()
            now = self._clock()
            until = now + dt.timedelta(seconds=lease_seconds)
            chosen: builtins.list[LetterEntry] = []
            total = 0
            for entry in self._select(pipeline, selection, statuses):
                letter = entry.current_letter()
                if not letter.whole or (before is not None and letter.failed_at >= before):
                    continue
                total += letter.payload_size
                if len(chosen) >= most or (chosen and total > MAX_LEASED_BYTES):
                    break
                chosen.append(entry)
            mine = self._write(
                token,
                [
                    LetterChange(
                        _letter_of(e).id,
                        _letter_of(e).pipeline,
                        "leased",
                        token,
                        now,
                        until=until,
                        from_statuses=statuses,
                    )
                    for e in chosen
                ],
            )
            letters = self._with_payloads([e for e in chosen if _letter_of(e).id in mine])
        return LetterLease(token, until, tuple(letters))

    def renew(self, lease: LetterLease, lease_seconds: float = LEASE_SECONDS) -> LetterLease:
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        ids = [letter.id for letter in lease.letters]
        still = self._write_outcome(lease, ids, "renewed", until=until)
        return LetterLease(
            lease.token, until, tuple(letter for letter in lease.letters if letter.id in still)
        )

    def mark_replayed(self, lease: LetterLease, ids: Sequence[str]) -> int:
        settled = self._write_outcome(lease, ids, "replayed")
        self._commit_progress({letter.pipeline for letter in lease.letters})
        return len(settled)

    def mark_failed(self, lease: LetterLease, id: str, reason: str) -> LetterStatus | None:
        with self._lock:
            entry = self._topic.view.entries.get(id)
            if entry is None or entry.letter is None:
                return None
            attempt = entry.current_letter().attempt + 1
            status: LetterStatus = "parked" if attempt >= self.max_attempts else "pending"
            outcome = {"attempt": attempt, "reason": bounded_reason(reason), "failed_at": self._clock()}
            return status if self._write_outcome(lease, [id], status, **outcome) else None

    def release(self, lease: LetterLease, ids: Sequence[str] | None = None) -> int:
        return len(
            self._write_outcome(lease, [e.id for e in lease.letters] if ids is None else ids, "released")
        )

    def _write_outcome(self, lease: LetterLease, ids: Sequence[str], status: str, **told: Any) -> set[str]:
        operation = uuid.uuid4().hex
        with self._lock:
            entries = self._topic.view.entries
            known = [entries[id].letter for id in ids if id in entries]
            changes = [
                LetterChange(
                    each.id, each.pipeline, status, operation, self._clock(), lease=lease.token, **told
                )
                for each in known
                if each is not None
            ]
            return self._write(operation, changes)

    # ------------------------------------------------------------------ parking and purging

    def park(self, pipeline: str, selection: LetterSelection) -> int:
        return self._change_status(pipeline, selection, "parked", ("pending",))

    def purge(self, pipeline: str, selection: LetterSelection) -> int:
        """Hide the letters. Their messages stay in the topic until its retention ends."""
        purged = self._change_status(pipeline, selection, "purged", ("pending", "parked", "replayed"))
        self._commit_progress({pipeline})
        return purged

    def _change_status(
        self, pipeline: str, selection: LetterSelection, status: str, of: Sequence[str]
    ) -> int:
        operation = uuid.uuid4().hex
        with self._lock:
            self._topic.read_new_messages()
            chosen = self._select(pipeline, selection, of)[: selection.first]
            now = self._clock()
            changes = [
                LetterChange(_letter_of(e).id, _letter_of(e).pipeline, status, operation, now) for e in chosen
            ]
            return len(self._write(operation, changes))

    def close(self) -> None:
        with self._lock:
            self._topic.close()

    # ------------------------------------------------------------------ selecting

    def _entries_of(self, pipeline: str | None) -> Iterable[LetterEntry]:
        wanted = None if pipeline is None else storable_text(pipeline)
        return (e for e in self._topic.view.visible_entries() if wanted in (None, _letter_of(e).pipeline))

    def _select(
        self, pipeline: str, selection: LetterSelection, statuses: Sequence[str]
    ) -> builtins.list[LetterEntry]:
        now = self._clock()
        part = None if selection.reason is None else _fold_ascii(storable_text(selection.reason))
        ids = None if selection.ids is None else set(selection.ids)
        return [
            entry
            for entry in self._entries_of(pipeline)
            if entry.status in statuses
            and selection.status in (None, entry.status)
            and entry.is_free(now)
            and selection.stage in (None, _letter_of(entry).stage)
            and (ids is None or _letter_of(entry).id in ids)
            and (part is None or part in _fold_ascii(entry.current_letter().reason))
        ]

    # ------------------------------------------------------------------ writing

    def _write(
        self,
        operation: str,
        changes: Sequence[LetterChange],
        *,
        letters: Sequence[DeadLetter] = (),
        first: int = 0,
    ) -> set[str]:
        """Write letters and changes, and return the ids whose change took effect."""
        if not letters and not changes:
            return set()
        view = self._topic.view
        counted = view.await_operation(operation)
        try:
            self._topic.send_letters(letters, operation, first)
            self._topic.send_changes(changes)
            self._topic.read_new_messages()
            return counted
        finally:
            view.forget_operation(operation)

    def _with_payloads(self, entries: Sequence[LetterEntry]) -> builtins.list[DeadLetter]:
        """The letters with payload and key, without those that retention has removed."""
        found = self._topic.fetch_payloads(
            {entry.topic_offset for entry in entries if entry.topic_offset is not None}
        )
        return [
            replace(
                entry.current_letter(), payload=found[entry.topic_offset][0], key=found[entry.topic_offset][1]
            )
            for entry in entries
            if entry.topic_offset in found
        ]

    def _commit_progress(self, pipelines: Iterable[str]) -> None:
        """Commit the offset of each pipeline's oldest pending letter, for lag tools. Nothing relies on it."""
        for pipeline in pipelines:
            with self._lock:
                offsets = dict(self._topic.read_up_to)
                for entry in self._entries_of(pipeline):
                    if entry.status == "pending" and entry.topic_offset is not None:
                        number, offset = entry.topic_offset
                        offsets[number] = min(offsets[number], offset)
                self._topic.commit(f"{GROUP}.{pipeline}", offsets)


def _letter_of(entry: LetterEntry) -> DeadLetter:
    assert entry.letter is not None
    return entry.letter


def _fold_ascii(text: str) -> str:
    """The text with ASCII letters in lower case, which all databases do."""
    return "".join(c.lower() if c.isascii() else c for c in text)
