"""Notes of which table each target of a pipeline is, so that its journal is found by the target's name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ematix_flow.backends.base import Load
from ematix_flow.backends.stores.base import Store
from ematix_flow.spec.generated_names import distinct_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

# for a table of which only the name is known
NO_COLUMNS = (ColumnSpec("_", DataType("text")),)
_TARGETS = ".ematix_flow/targets"


def remember_table(store: Store, load: Load) -> None:
    note = _note_path(load.pipeline, load.target)
    text = json.dumps({"schema": load.table.schema, "name": load.table.name})
    names = _names(store, note)
    newest = names[-1] if names else "0"
    if names and store.read(f"{note}/{newest}") == text:
        return
    store.create(f"{note}/{int(newest) + 1:06d}", text)


def remembered_table(store: Store, pipeline: str, target: str) -> TableSpec | None:
    note = _note_path(pipeline, target)
    names = _names(store, note)
    if not names:  # the table may have been moved here with its journal: the target's label names it
        schema, _, name = target.partition(":")[2].rpartition(".")
        return TableSpec(schema, name, NO_COLUMNS) if name else None
    return _read_note(store, note, names)


def remembered_tables(store: Store) -> list[TableSpec]:
    """The table of every target that has been loaded."""
    notes = [f"{_TARGETS}/{name}" for name in store.folders(_TARGETS)]
    found = ((note, _names(store, note)) for note in notes)
    return [_read_note(store, note, names) for note, names in found if names]


def _read_note(store: Store, note: str, names: Sequence[str]) -> TableSpec:
    found = json.loads(store.read(f"{note}/{names[-1]}"))
    return TableSpec(found["schema"], found["name"], NO_COLUMNS)


def _names(store: Store, note: str) -> list[str]:
    return [name for name in store.names(note) if name.isdigit()]  # a crash may leave other names


def _note_path(pipeline: str, target: str) -> str:
    return f"{_TARGETS}/{distinct_name(pipeline, target)}"
