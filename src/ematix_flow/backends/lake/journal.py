"""The journal next to a lake table: its ledger and watermarks, one small file per load.

A load writes its entry first and then commits to the table with the entry's token. So an entry counts when
the table has its commit. After the commit the load writes a mark, which spares later readers the check; for
an entry without a mark, the table's log is read. The loads of all pipelines into a table are numbered
consecutively.

The name of an entry holds its number, a digest of its pipeline and target, and a digest of the batch. Old
entries are folded into segments (`journal_segments`) and then exist only there.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry
from ematix_flow.backends.lake import journal_segments
from ematix_flow.backends.lake.journal_segments import FoldedEntry, JournalSegments, last_folded_number
from ematix_flow.backends.lake.quarantine_notes import QuarantineNote, list_notes, noted_table, write_note
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.ledger_records import (
    StoredWatermark,
    entry_from_json,
    entry_to_json,
    find_watermark,
    with_watermark,
)
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark

FOLDER = "_ematix_flow"
KEPT_ENTRIES = 200  # entries that keep their own files, however old
FOLD_ABOVE = 1_000  # with more entries, a load folds first
_ENTRY, _DONE = ".json", ".done"
_FORMAT = 1

_READ_AT_ONCE, _REMOVED_AT_ONCE = 8, 100


@dataclass(frozen=True)
class LakeCommit:
    """What a commit of a table carries: the number of the load, and the token of its journal entry."""

    number: int
    token: str


@dataclass(frozen=True)
class _EntryName:
    """The parts of an entry's file name."""

    number: int
    owner_digest: str
    batch_digest: str
    token: str

    def __str__(self) -> str:
        return f"{self.number:012d}-{self.owner_digest}-{self.batch_digest}-{self.token}"

    @classmethod
    def parse(cls, name: str) -> _EntryName | None:
        parts = name.split("-")
        if len(parts) != 4 or not parts[0].isdigit():
            return None
        return cls(int(parts[0]), *parts[1:])


@dataclass(frozen=True)
class Journal:
    """The entries of one table's journal when it was opened.

    ``committed`` is in order, the newest last, without the entries up to ``last_folded_number``, which are in
    segments. ``uncommitted`` are entries of loads that never committed. ``notes`` are of loads that may have
    left rows in a quarantine table that do not count.
    """

    store: Store
    folder: str
    committed: tuple[_EntryName, ...] = ()
    uncommitted: tuple[_EntryName, ...] = ()
    watermarks: tuple[StoredWatermark, ...] = field(default=())
    last_folded_number: int = 0
    notes: tuple[QuarantineNote, ...] = ()

    @property
    def last_number(self) -> int:
        """The number of the newest committed load; 0 if there is none."""
        return self.committed[-1].number if self.committed else self.last_folded_number

    @property
    def _segments(self) -> JournalSegments:
        return JournalSegments(self.store, self.folder)

    def next_commit(self) -> LakeCommit:
        return LakeCommit(self.last_number + 1, uuid.uuid4().hex)

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        return find_watermark(self.watermarks, pipeline, target, column)

    def has_batch(self, pipeline: str, target: str, batch_key: str) -> bool:
        whose, batch = _owner_digest(pipeline, target), _digest(batch_key, 32)
        if any((name.owner_digest, name.batch_digest) == (whose, batch) for name in self.committed):
            return True
        return bool(self.last_folded_number) and self._segments.has_batch(whose, batch)

    def entries(self, pipeline: str, target: str) -> Iterator[LedgerEntry]:
        """The ledger entries of a pipeline and target, newest first."""
        whose = _owner_digest(pipeline, target)
        below = self.last_number + 1
        for name in reversed(self.committed):
            if name.owner_digest == whose:
                try:
                    value = _read_entry(self.store, self.folder, name)
                except FileNotFoundError as error:
                    if name.number > last_folded_number(self.store, self.folder):
                        raise _unreadable_error(self.store, self.folder, name, "it is missing") from error
                    break  # folded after this journal was opened, together with all older entries
                yield entry_from_json(value["ledger"])
            below = name.number
        for old in self._segments.entries_below(below):
            if old.owner_digest == whose:
                yield entry_from_json(old.ledger)

    def write_entry(self, commit: LakeCommit, entry: LedgerEntry, mark: Watermark | None) -> None:
        """Write the entry of a load that is about to commit."""
        watermarks = self.watermarks
        if mark is not None:
            watermarks = with_watermark(watermarks, entry.pipeline, entry.target, mark)
        value = {
            "format": _FORMAT,
            "ledger": entry_to_json(entry),
            "positions": [stored.to_json() for stored in watermarks],
        }
        self.store.create(self._entry_path(commit, entry), json.dumps(value))

    def _entry_path(self, commit: LakeCommit, entry: LedgerEntry) -> str:
        name = _EntryName(
            commit.number,
            _owner_digest(entry.pipeline, entry.target),
            _digest(entry.batch_key, 32),
            commit.token,
        )
        return f"{self.folder}/{name}{_ENTRY}"

    def mark_committed(self, commit: LakeCommit, entry: LedgerEntry, mark: Watermark | None) -> None:
        """Mark the load as committed. Write its entry again if another process took over our lock and removed
        it."""
        if not self.store.has_file(self._entry_path(commit, entry)):
            with suppress(FileExistsError):
                self.write_entry(commit, entry, mark)
        _write_mark(self.store, self.folder, commit.number, commit.token)

    def remove_uncommitted(self) -> list[str]:
        """Remove the entries of loads that never committed."""
        for name in self.uncommitted:
            self.store.remove(f"{self.folder}/{name}{_ENTRY}")
        return [str(name) for name in self.uncommitted]

    # ------------------------------------------------------------------ notes of quarantine tables

    def has_commit(self, note: QuarantineNote) -> bool:
        """Whether the load of the note has committed."""
        if note.number > self.last_folded_number:
            return any(name.token == note.token for name in self.committed)
        older = self._segments.entries_below(note.number + 1)
        return next((entry.token == note.token for entry in older if entry.number == note.number), False)

    def write_note(self, commit: LakeCommit, table: TableSpec) -> QuarantineNote:
        """Note that the load of this commit is about to change a quarantine table."""
        return write_note(self.store, self.folder, commit.number, commit.token, table)

    def noted_table(self, note: QuarantineNote) -> TableSpec:
        return noted_table(self.store, self.folder, note)

    def remove_note(self, note: QuarantineNote) -> None:
        self.store.remove(f"{self.folder}/{note}")

    # ------------------------------------------------------------------ folding

    def fold(self, keep: int | None = None) -> int:
        """Move all but the newest ``keep`` entries into a segment, and return how many were moved.

        Needs the table's lock. The newest entry always stays: it has the watermarks.
        """
        old = self.committed[: -max(KEPT_ENTRIES if keep is None else keep, 1)]
        entries = self._fold_entries(old)
        if entries:
            segment = self._segments.write_entries(entries)
            fault_points.point("fold.entries_written")
            self.store.require_locks_held()
            self._segments.activate_segment(segment, entries)
            fault_points.point("fold.counts")
        left = self._leftover_files()
        for start in range(0, len(left), _REMOVED_AT_ONCE):
            self.store.remove_all(left[start : start + _REMOVED_AT_ONCE])
            fault_points.point("fold.files_removed")
        return len(old)

    def _fold_entries(self, old: tuple[_EntryName, ...]) -> list[FoldedEntry]:
        """The entries of the next segment: these, after the entries of the newest segment if that is not
        full."""
        if not old:
            return []
        with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
            values = list(readers.map(lambda name: _read_entry(self.store, self.folder, name), old))
        entries = [
            FoldedEntry(name.number, name.owner_digest, name.batch_digest, name.token, value["ledger"])
            for name, value in zip(old, values, strict=True)
        ]
        segments = self._segments.segments()
        if segments and segments[-1].count < journal_segments.FULL_SEGMENT_ENTRIES:
            entries = self._segments.entries(segments[-1]) + entries
        return entries

    def _leftover_files(self) -> list[str]:
        """Files of folded entries, and leftovers of a fold that crashed or was overtaken."""
        last = last_folded_number(self.store, self.folder)
        gone = [name for name in self.store.names(self.folder) if 0 < _number_of(name) <= last]
        gone.sort(key=lambda name: name.endswith(_DONE))  # an entry never outlives its mark
        return [f"{self.folder}/{name}" for name in gone] + self._segments.leftover_files()


def open_journal(store: Store, table_folder: str, has_commit: Callable[[str], bool]) -> Journal:
    """Open a journal: list its entries, and ask the table about those without a mark."""
    folder = f"{table_folder}/{FOLDER}"
    names = store.names(folder)
    folded_to = last_folded_number(store, folder)
    done = {name[: -len(_DONE)] for name in names if name.endswith(_DONE)}
    found = [_EntryName.parse(name[: -len(_ENTRY)]) for name in names if name.endswith(_ENTRY)]
    entries = sorted(
        (name for name in found if name is not None and name.number > folded_to), key=lambda name: name.number
    )
    committed = [name for name in entries if _done_name(name.number, name.token) in done]
    highest = committed[-1].number if committed else folded_to
    left = []
    for name in entries:
        if _done_name(name.number, name.token) in done:
            continue
        if name.number > highest and has_commit(name.token):
            _write_mark(store, folder, name.number, name.token)
            committed.append(name)
        else:
            left.append(name)
    committed.sort(key=lambda name: name.number)
    watermarks: tuple[StoredWatermark, ...] = ()
    if committed:
        try:
            value = _read_entry(store, folder, committed[-1])
        except FileNotFoundError as error:
            raise _unreadable_error(store, folder, committed[-1], "it is missing") from error
        watermarks = tuple(StoredWatermark.from_json(stored) for stored in value["positions"])
    return Journal(store, folder, tuple(committed), tuple(left), watermarks, folded_to, list_notes(names))


# ------------------------------------------------------------------ files


def _done_name(number: int, token: str) -> str:
    return f"{number:012d}-{token}"


def _write_mark(store: Store, folder: str, number: int, token: str) -> None:
    try:
        # not durable: the log has the commit, and the next entry makes its folder durable, with this mark
        store.create(f"{folder}/{_done_name(number, token)}{_DONE}", "", durable=False)
    except FileExistsError:
        return  # another reader has already written it


def _number_of(name: str) -> int:
    """The number in the name of an entry or its mark; 0 for any other file."""
    number, _, rest = name.partition("-")
    return int(number) if number.isdigit() and rest.endswith((_ENTRY, _DONE)) else 0


def _read_entry(store: Store, folder: str, name: _EntryName) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(store.read(f"{folder}/{name}{_ENTRY}"))
        if value["format"] == _FORMAT:
            return value
        why = f"it is of format {value['format']!r}, and this release supports {_FORMAT}"
    except (ValueError, KeyError, TypeError) as error:
        why = f"it is damaged ({type(error).__name__}: {error})"
    raise _unreadable_error(store, folder, name, why)


def _unreadable_error(store: Store, folder: str, name: _EntryName, why: str) -> TargetFailed:
    return TargetFailed(
        f"cannot read the table's journal {store.uri(f'{folder}/{name}{_ENTRY}')}: {why}",
        state="the table is unchanged and readable, but it is not known which batches it holds",
        next_step="restore the file from a backup, or move the table away and load it again",
    )


def _owner_digest(pipeline: str, target: str) -> str:
    return _digest(json.dumps([pipeline, target]), 16)


def _digest(text: str, size: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:size]
