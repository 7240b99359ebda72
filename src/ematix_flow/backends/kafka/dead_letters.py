"""Dead letters in a Kafka topic.

The topic holds the letters as messages that any consumer can read. What became of them is told by further
messages of the same topic, so this store reads all of it when it is opened and from then on what is new.
The topic must keep its messages for as long as letters are wanted, and must not be compacted. Consumer
group ``ematix-flow.dlq.<pipeline>`` stands at the oldest letter that is pending, for lag tools.
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

from ematix_flow.backends.kafka.letter_records import Change, Entry
from ematix_flow.backends.kafka.letter_sizes import fitted
from ematix_flow.backends.kafka.letter_topic import GROUP, LetterTopic
from ematix_flow.spec.connections.brokers import KafkaConnection
from ematix_flow.state.dead_letters import (
    LEASE_SECONDS,
    DeadLetter,
    DeadLetterStore,
    Lease,
    LetterCount,
    LetterStatus,
    Selection,
    Stage,
    no_such_letter,
    several_letters,
    shown_reason,
    storable,
)
from ematix_flow.state.records import utc_now

MOST_LETTERS = 500
MOST_BYTES = 8 * 1024 * 1024


def open_store(connection: KafkaConnection, topic: str, max_attempts: int) -> KafkaDeadLetters:
    return KafkaDeadLetters(connection, topic, max_attempts)


class KafkaDeadLetters(DeadLetterStore):
    """Letters in one topic. Used by one thread at a time; others wait."""

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
        self._allowed = self._topic.allowed_message()
        self._clock = clock
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ adding

    def add(self, letters: Sequence[DeadLetter]) -> int:
        once = {letter.id: letter for letter in reversed(letters)}  # of equal ids the first stays
        if not once:
            return 0
        with self._lock:
            self._topic.advance()
            new, again = [], []
            for letter in reversed(once.values()):
                entry = self._topic.view.entries.get(letter.id)
                if entry is None or entry.letter is None:
                    new.append(fitted(letter, self._allowed, self.longest_payload))
                elif entry.status == "purged" or (
                    entry.status == "replayed" and entry.current().batch != letter.batch
                ):
                    again.append(fitted(letter, self._allowed, self.longest_payload))
            first, operation = time.time_ns(), uuid.uuid4().hex
            reopened = [
                Change(
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

    # ------------------------------------------------------------------ looking

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
            self._topic.advance()
            found = [
                entry.current()
                for entry in self._of(pipeline)
                if status in (None, entry.status) and stage in (None, _known(entry).stage)
            ]
        return found[max(offset, 0) :][: max(limit, 0)]

    def counts(self, pipeline: str | None = None) -> builtins.list[LetterCount]:
        with self._lock:
            self._topic.advance()
            groups: dict[tuple[str, Stage, LetterStatus], builtins.list[dt.datetime]] = {}
            for entry in self._of(pipeline):
                letter = entry.current()
                key = (letter.pipeline, letter.stage, letter.status)
                groups.setdefault(key, []).append(letter.failed_at)
        return [LetterCount(*key, len(when), min(when), max(when)) for key, when in sorted(groups.items())]

    def get(self, pipeline: str | None, id_or_prefix: str) -> DeadLetter:
        if not id_or_prefix.isalnum() or not id_or_prefix.isascii():
            raise no_such_letter(id_or_prefix)
        with self._lock:
            self._topic.advance()
            found = [entry for entry in self._of(pipeline) if _known(entry).id.startswith(id_or_prefix)]
            exact = [entry for entry in found if _known(entry).id == id_or_prefix]
            if len(found) > 1 and not exact:
                raise several_letters(id_or_prefix, sorted(_known(entry).id for entry in found[:4]))
            letters = self._with_payloads((exact or found)[:1])
        if not letters:
            raise no_such_letter(id_or_prefix)
        return letters[0]

    # ------------------------------------------------------------------ replaying

    def take(
        self,
        pipeline: str,
        selection: Selection,
        *,
        lease_seconds: float = LEASE_SECONDS,
        limit: int = MOST_LETTERS,
        before: dt.datetime | None = None,
    ) -> Lease:
        token, statuses = uuid.uuid4().hex, selection.takes()
        most = min(limit, MOST_LETTERS, selection.first or limit)
        with self._lock:
            self._topic.advance()
            now = self._clock()
            until = now + dt.timedelta(seconds=lease_seconds)
            chosen: builtins.list[Entry] = []
            total = 0
            for entry in self._chosen(pipeline, selection, statuses):
                letter = entry.current()
                if not letter.whole or (before is not None and letter.failed_at >= before):
                    continue
                total += letter.payload_size
                if len(chosen) >= most or (chosen and total > MOST_BYTES):
                    break
                chosen.append(entry)
            mine = self._write(
                token,
                [
                    Change(
                        _known(e).id, _known(e).pipeline, "leased", token, now, until=until, takes=statuses
                    )
                    for e in chosen
                ],
            )
            letters = self._with_payloads([e for e in chosen if _known(e).id in mine])
        return Lease(token, until, tuple(letters))

    def renew(self, lease: Lease, lease_seconds: float = LEASE_SECONDS) -> Lease:
        until = self._clock() + dt.timedelta(seconds=lease_seconds)
        ids = [letter.id for letter in lease.letters]
        still = self._settle(lease, ids, "renewed", until=until)
        return Lease(lease.token, until, tuple(letter for letter in lease.letters if letter.id in still))

    def done(self, lease: Lease, ids: Sequence[str]) -> int:
        settled = self._settle(lease, ids, "replayed")
        self._show_progress({letter.pipeline for letter in lease.letters})
        return len(settled)

    def failed(self, lease: Lease, id: str, reason: str) -> LetterStatus | None:
        with self._lock:
            entry = self._topic.view.entries.get(id)
            if entry is None or entry.letter is None:
                return None
            attempt = entry.current().attempt + 1
            status: LetterStatus = "parked" if attempt >= self.max_attempts else "pending"
            told = {"attempt": attempt, "reason": shown_reason(reason), "failed_at": self._clock()}
            return status if self._settle(lease, [id], status, **told) else None

    def release(self, lease: Lease, ids: Sequence[str] | None = None) -> int:
        return len(self._settle(lease, [e.id for e in lease.letters] if ids is None else ids, "released"))

    def _settle(self, lease: Lease, ids: Sequence[str], status: str, **told: Any) -> set[str]:
        operation = uuid.uuid4().hex
        with self._lock:
            entries = self._topic.view.entries
            known = [entries[id].letter for id in ids if id in entries]
            changes = [
                Change(each.id, each.pipeline, status, operation, self._clock(), lease=lease.token, **told)
                for each in known
                if each is not None
            ]
            return self._write(operation, changes)

    # ------------------------------------------------------------------ tidying

    def park(self, pipeline: str, selection: Selection) -> int:
        return self._tidy(pipeline, selection, "parked", ("pending",))

    def purge(self, pipeline: str, selection: Selection) -> int:
        """The messages stay in the topic until its retention ends; here they are forgotten."""
        purged = self._tidy(pipeline, selection, "purged", ("pending", "parked", "replayed"))
        self._show_progress({pipeline})
        return purged

    def _tidy(self, pipeline: str, selection: Selection, status: str, of: Sequence[str]) -> int:
        operation = uuid.uuid4().hex
        with self._lock:
            self._topic.advance()
            chosen = self._chosen(pipeline, selection, of)[: selection.first]
            now = self._clock()
            changes = [Change(_known(e).id, _known(e).pipeline, status, operation, now) for e in chosen]
            return len(self._write(operation, changes))

    def close(self) -> None:
        with self._lock:
            self._topic.close()

    # ------------------------------------------------------------------ choosing

    def _of(self, pipeline: str | None) -> Iterable[Entry]:
        wanted = None if pipeline is None else storable(pipeline)
        return (e for e in self._topic.view.visible() if wanted in (None, _known(e).pipeline))

    def _chosen(self, pipeline: str, selection: Selection, statuses: Sequence[str]) -> builtins.list[Entry]:
        now = self._clock()
        part = None if selection.reason is None else _folded(storable(selection.reason))
        ids = None if selection.ids is None else set(selection.ids)
        return [
            entry
            for entry in self._of(pipeline)
            if entry.status in statuses
            and selection.status in (None, entry.status)
            and entry.is_free(now)
            and selection.stage in (None, _known(entry).stage)
            and (ids is None or _known(entry).id in ids)
            and (part is None or part in _folded(entry.current().reason))
        ]

    # ------------------------------------------------------------------ writing

    def _write(
        self, operation: str, changes: Sequence[Change], *, letters: Sequence[DeadLetter] = (), first: int = 0
    ) -> set[str]:
        """Write letters and what becomes of letters; the ids for which it counted, as the log orders it."""
        if not letters and not changes:
            return set()
        view = self._topic.view
        counted = view.await_operation(operation)
        try:
            self._topic.send_letters(letters, operation, first)
            self._topic.send_changes(changes)
            self._topic.advance()
            return counted
        finally:
            view.forget_operation(operation)

    def _with_payloads(self, entries: Sequence[Entry]) -> builtins.list[DeadLetter]:
        """The letters with payload and key; those that retention has removed meanwhile are left out."""
        found = self._topic.payloads({entry.place for entry in entries if entry.place is not None})
        return [
            replace(entry.current(), payload=found[entry.place][0], key=found[entry.place][1])
            for entry in entries
            if entry.place in found
        ]

    def _show_progress(self, pipelines: Iterable[str]) -> None:
        """For lag tools: where the oldest pending letter of each pipeline is. Nothing relies on it."""
        for pipeline in pipelines:
            with self._lock:
                offsets = dict(self._topic.read_up_to)
                for entry in self._of(pipeline):
                    if entry.status == "pending" and entry.place is not None:
                        number, offset = entry.place
                        offsets[number] = min(offsets[number], offset)
                self._topic.commit(f"{GROUP}.{pipeline}", offsets)


def _known(entry: Entry) -> DeadLetter:
    assert entry.letter is not None
    return entry.letter


def _folded(text: str) -> str:
    """With ASCII letters in lower case, as databases do it at least."""
    return "".join(c.lower() if c.isascii() else c for c in text)
