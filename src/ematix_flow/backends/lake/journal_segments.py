"""Segments of a journal: many old entries in one file, so that listing the journal stays cheap.

A segment holds the entries of a range of numbers in two files: the entries, and the digests of their batches,
which every load needs. The digests are written last, and from then on the segment counts: other files with a
number in its range are leftovers. So a fold may crash at any point.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import TargetFailed

FOLDED = "folded"
FULL_SEGMENT_ENTRIES = 10_000  # entries; a smaller segment is rewritten together with the next entries
_ENTRIES, _BATCHES = ".entries", ".batches"
_FORMAT = 1
_TRIES = 5  # a segment may be replaced by a larger one between its listing and its reading


@dataclass(frozen=True)
class FoldedEntry:
    """An entry in a segment: the parts of its name, and its ledger entry."""

    number: int
    owner_digest: str
    batch_digest: str
    token: str
    ledger: dict[str, Any]

    def to_json(self) -> list[Any]:
        return [self.number, self.owner_digest, self.batch_digest, self.token, self.ledger]


@dataclass(frozen=True)
class JournalSegment:
    """The entries ``first`` to ``last``, both included."""

    first: int
    last: int
    token: str

    def __str__(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.token}"

    @classmethod
    def parse(cls, name: str) -> JournalSegment | None:
        parts = name.split("-")
        if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        return cls(int(parts[0]), int(parts[1]), parts[2])

    def covers(self, other: JournalSegment) -> bool:
        return self.first <= other.first and other.last <= self.last

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class JournalSegments:
    """The segments of one journal in the store."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, f"{folder}/{FOLDED}"

    def segments(self) -> list[JournalSegment]:
        """The segments that count, in order. List the journal's own files first: a fold moves entries only
        from there to here, so none is missed."""
        found = self._segments_named(_BATCHES)
        return [one for one in found if not any(_supersedes(other, one) for other in found)]

    def has_batch(self, whose: str, batch: str) -> bool:
        for _ in range(_TRIES):
            try:
                return any(
                    batch in _batches(self._store, self._folder, segment, whose)
                    for segment in self.segments()
                )
            except FileNotFoundError:
                continue
        raise self._damaged_error("its files are replaced faster than they can be read")

    def entries_below(self, number: int) -> Iterator[FoldedEntry]:
        """The entries with lower numbers, newest first."""
        tries = 0
        while True:
            segments = [segment for segment in self.segments() if segment.first < number]
            if not segments:
                return
            try:
                entries = self.entries(segments[-1])
            except FileNotFoundError as error:
                tries += 1
                if tries == _TRIES:
                    raise self._damaged_error(f"{segments[-1]}{_ENTRIES} is missing") from error
                continue
            yield from (entry for entry in reversed(entries) if entry.number < number)
            number = segments[-1].first

    def entries(self, segment: JournalSegment) -> list[FoldedEntry]:
        value = self.read(f"{segment}{_ENTRIES}")
        return [FoldedEntry(*entry) for entry in value["entries"]]

    def write_entries(self, entries: Sequence[FoldedEntry]) -> JournalSegment:
        """Write the entries. The segment does not count before `activate_segment`."""
        segment = JournalSegment(entries[0].number, entries[-1].number, uuid.uuid4().hex)
        value = {"format": _FORMAT, "entries": [entry.to_json() for entry in entries]}
        self._store.create(f"{self._folder}/{segment}{_ENTRIES}", json.dumps(value))
        return segment

    def activate_segment(self, segment: JournalSegment, entries: Sequence[FoldedEntry]) -> None:
        batches: dict[str, list[str]] = {}
        for entry in entries:
            batches.setdefault(entry.owner_digest, []).append(entry.batch_digest)
        value = {"format": _FORMAT, "batches": batches}
        self._store.create(f"{self._folder}/{segment}{_BATCHES}", json.dumps(value))

    def leftover_files(self) -> list[str]:
        """Files without meaning, in the order in which they can be removed."""
        counting = self.segments()
        hidden = [segment for segment in self._segments_named(_BATCHES) if segment not in counting]
        unfinished = [segment for segment in self._segments_named(_ENTRIES) if segment not in counting]
        names = [f"{one}{_BATCHES}" for one in hidden] + [f"{one}{_ENTRIES}" for one in unfinished]
        return [f"{self._folder}/{name}" for name in names]

    # ------------------------------------------------------------------ files

    def _segments_named(self, suffix: str) -> list[JournalSegment]:
        names = [name[: -len(suffix)] for name in self._store.names(self._folder) if name.endswith(suffix)]
        found = [segment for segment in map(JournalSegment.parse, names) if segment is not None]
        return sorted(found, key=lambda segment: (segment.last, segment.first, segment.token))

    def read(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(self._store.read(f"{self._folder}/{name}"))
            if value["format"] == _FORMAT:
                return value
            why = f"{name} is of format {value['format']!r}, and this release supports {_FORMAT}"
        except (ValueError, KeyError, TypeError) as error:
            why = f"{name} is damaged ({type(error).__name__}: {error})"
        raise self._damaged_error(why)

    def _damaged_error(self, why: str) -> TargetFailed:
        return TargetFailed(
            f"cannot read the old entries of the table's journal in {self._store.uri(self._folder)}: {why}",
            state="the table is unchanged and readable, but it is not known which batches it holds",
            next_step="restore the file from a backup, or move the table away and load it again",
        )


def last_folded_number(store: Store, folder: str) -> int:
    """The highest number in a segment; 0 if there is none."""
    segments = JournalSegments(store, folder).segments()
    return segments[-1].last if segments else 0


@lru_cache(maxsize=128)  # every load needs all of them, and the files of a segment never change
def _batches(store: Store, folder: str, segment: JournalSegment, whose: str) -> str:
    """The digests of the batches of a pipeline and target, as one text."""
    batches = JournalSegments(store, folder.removesuffix(f"/{FOLDED}")).read(f"{segment}{_BATCHES}")[
        "batches"
    ]
    return " ".join(batches.get(whose, ()))


def _supersedes(one: JournalSegment, other: JournalSegment) -> bool:
    """Whether a segment replaces another. Of two with the same range, after a lost lock, the first one
    counts."""
    if one == other or not one.covers(other):
        return False
    return not other.covers(one) or one.token < other.token
