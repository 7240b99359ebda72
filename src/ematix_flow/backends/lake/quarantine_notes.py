"""Notes in a lake table's journal: which quarantine tables a load is about to change.

A load writes a note before it touches a quarantine table, and removes it when everything that does not count
is gone from there. So a load that follows a crash knows where to look.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from ematix_flow.backends.lake.target_notes import NO_COLUMNS
from ematix_flow.backends.stores.base import Store
from ematix_flow.spec.tables import TableSpec

_SUFFIX = ".quarantine"


@dataclass(frozen=True)
class QuarantineNote:
    """The load of that number and token changes, or has changed, one quarantine table."""

    number: int
    token: str
    table_digest: str

    def __str__(self) -> str:
        return f"{self.number:012d}-{self.token}-{self.table_digest}{_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> QuarantineNote | None:
        if not name.endswith(_SUFFIX):
            return None
        parts = name.removesuffix(_SUFFIX).split("-")
        if len(parts) != 3 or not parts[0].isdigit():
            return None
        return cls(int(parts[0]), parts[1], parts[2])


def list_notes(names: Iterable[str]) -> tuple[QuarantineNote, ...]:
    """The notes among the files of a journal."""
    found = (QuarantineNote.parse(name) for name in names)
    return tuple(note for note in found if note is not None)


def write_note(store: Store, folder: str, number: int, token: str, table: TableSpec) -> QuarantineNote:
    note = QuarantineNote(number, token, table_digest(table))
    store.create(f"{folder}/{note}", _encode_name(table))
    return note


def table_digest(table: TableSpec) -> str:
    return hashlib.sha256(_encode_name(table).encode()).hexdigest()[:16]


def _encode_name(table: TableSpec) -> str:
    return json.dumps({"schema": table.schema, "name": table.name})


def noted_table(store: Store, folder: str, note: QuarantineNote) -> TableSpec:
    """The quarantine table of a note; only its name is known."""
    found = json.loads(store.read(f"{folder}/{note}"))
    return TableSpec(found["schema"], found["name"], NO_COLUMNS)
