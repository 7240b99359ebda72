"""A source table whose changes become Debezium messages, and what a mirror of it must hold.

`deliver` brings messages to a target as a stream's batch does, in one process and without Spark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import BatchTarget, LoadResult, StagedRows
from ematix_flow.backends.messages.base import message_schema
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.change_decoder import ChangeDecoder
from ematix_flow.backends.payloads.change_events import UNAVAILABLE
from ematix_flow.engine.streams.change_folding import ChangeFolder
from ematix_flow.engine.streams.change_listing import ChangeLister
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.tables import (
    CHANGE_OP,
    CHANGE_POSITION,
    TRUNCATE_ROWS,
    ColumnSpec,
    TableContents,
    TableSpec,
)
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import ChangeOptions, Matching
from ematix_flow.testing.loads import new_load, prepare

KEYS = ("region", "id")
COLUMNS = (
    ColumnSpec("region", DataType("string", length=20), primary_key=True),
    ColumnSpec("id", DataType("big_int"), primary_key=True),
    ColumnSpec("note", DataType("text"), nullable=True),
    ColumnSpec("amount", DataType("big_int"), nullable=True),
)
SOFT = ColumnSpec("gone_at", DataType("timestamp_tz"), nullable=True)

Row = dict[str, Any]
Key = tuple[str, int]


def mirror_table(*, soft: bool, schema: str = "shop", history: bool = False) -> TableSpec:
    columns = (*COLUMNS, SOFT) if soft else COLUMNS
    keeps: TableContents = "change_versions" if history else "changes"
    return TableSpec(schema, "mirror", columns, merge_keys=KEYS, keeps=keeps)


@dataclass
class SourceTable:
    """Random changes of a table. ``states[n]`` is the mirror after the first n messages."""

    chance: random.Random
    soft: bool
    partial: bool  # whether messages leave out long values and fields, and tables are truncated
    rows: dict[Key, Row] = field(default_factory=dict)
    mirror: dict[Key, tuple[Any, Any, bool]] = field(default_factory=dict)  # values, and whether deleted
    messages: list[bytes] = field(default_factory=list)
    states: list[dict[Key, tuple[Any, Any, bool]]] = field(default_factory=lambda: [{}])
    made: list[tuple[int, dict[Key, Row | None]]] = field(default_factory=list)  # time and rows of each
    clock: int = 1_700_000_000_000  # milliseconds; it may stand still, and go back a little

    def make_changes(self, count: int) -> None:
        while len(self.messages) < count:
            self._change()

    def _change(self) -> None:
        chance = self.chance
        kind = chance.choice(
            ("insert", "insert", "update", "update", "update", "delete", "rekey", "truncate")
        )
        key = (chance.choice("ab"), chance.randrange(4))
        if kind == "truncate":
            if self.partial and chance.random() < 0.3:
                self.rows.clear()
                for each in list(self.mirror):
                    self._delete(each)
                self._send("t", None, None, dict.fromkeys(self.known))
        elif key not in self.rows:
            row = self._new_row(key)
            has_note = not self.partial or chance.random() < 0.7
            if not has_note:  # a row that is marked as deleted keeps what the new one does not have
                row["note"] = self.mirror[key][0] if self.soft and key in self.mirror else None
            self.rows[key] = row
            self._put(key, row)
            self._send(chance.choice("cr"), None, row if has_note else without_note(row), {key: row})
        elif kind == "delete":
            del self.rows[key]
            self._delete(key)
            self._send("d", {"region": key[0], "id": key[1]}, None, {key: None})
        elif kind == "rekey":
            new = (chance.choice("ab"), chance.randrange(4))
            if new not in self.rows:
                row = {**self.rows.pop(key), "region": new[0], "id": new[1]}
                self.rows[new] = row
                self._delete(key)
                self._put(new, row)
                self._send("u", {"region": key[0], "id": key[1]}, row, {key: None, new: row})
        else:
            old, row = self.rows[key], self._new_row(key)
            left_out = self.partial and chance.random() < 0.5
            if left_out:
                row["note"] = old["note"]
            self.rows[key] = row
            self._put(key, row)
            sent = row
            if left_out:
                sent = {**row, "note": UNAVAILABLE} if row["note"] is not None else without_note(row)
            self._send("u", None, sent, {key: row})

    def _new_row(self, key: Key) -> Row:
        note = self.chance.choice((None, "x", "long", f"n{len(self.messages)}"))
        return {"region": key[0], "id": key[1], "note": note, "amount": self.chance.randrange(100)}

    def _put(self, key: Key, row: Row) -> None:
        self.mirror[key] = (row["note"], row["amount"], False)

    def _delete(self, key: Key) -> None:
        if key not in self.mirror:
            return
        if self.soft:
            self.mirror[key] = (*self.mirror[key][:2], True)
        else:
            del self.mirror[key]

    @property
    def known(self) -> set[Key]:
        """The keys that any change had."""
        return {key for _, rows in self.made for key in rows}

    def _send(self, op: str, before: Row | None, after: Row | None, rows: Mapping[Key, Row | None]) -> None:
        self.clock += self.chance.choice((0, 0, 1, 5, 1000, -3))
        self.made.append((self.clock, dict(rows)))
        source = {"connector": "postgresql", "lsn": 1000 + 7 * len(self.messages), "ts_ms": self.clock}
        envelope = {"op": op, "before": before, "after": after, "source": source}
        if self.chance.random() < 0.2:
            envelope = {"schema": None, "payload": envelope}
        self.messages.append(json.dumps(envelope).encode())
        self.states.append(dict(self.mirror))


def without_note(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "note"}


def versions_of(made: Sequence[tuple[int, Mapping[Key, Row | None]]]) -> set[tuple[Any, ...]]:
    """The versions after these changes: key, values, and the milliseconds of start and end."""
    points: dict[Key, list[tuple[int, Row | None]]] = {}
    for moment, rows in made:
        for key, row in rows.items():
            known = points.setdefault(key, [])
            at = max(moment, known[-1][0]) if known else moment
            if known and known[-1][0] == at:
                known.pop()  # the last change at one time holds
            known.append((at, row))
    found = set()
    for key, changes in points.items():
        kept: list[tuple[int, tuple[Any, Any] | None]] = []
        for at, row in changes:
            values = (row["note"], row["amount"]) if row is not None else None
            if values != (kept[-1][1] if kept else None):
                kept.append((at, values))
        ends = [*(at for at, _ in kept[1:]), None][: len(kept)]
        found |= {(*key, *v, at, end) for (at, v), end in zip(kept, ends, strict=True) if v is not None}
    return found


def message_batch(values: Sequence[bytes | None], first_offset: int = 0) -> pa.RecordBatch:
    rows = [
        {"value": value, "topic": "changes", "partition": "0", "position": str(first_offset + number)}
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=message_schema())


@dataclass
class Mirror:
    """A target that changes are delivered to."""

    target: BatchTarget
    soft: bool
    cdc: CDC = field(default_factory=CDC)
    schema: str = "shop"
    offset: int = 0
    history: bool = False

    def __post_init__(self) -> None:
        self.table = mirror_table(soft=self.soft, schema=self.schema, history=self.history)
        self.matching = self._matching(truncates=True)
        prepare(self.target, self.table, self.matching)

    def _matching(self, *, truncates: bool) -> Matching:
        changes = ChangeOptions(SOFT.name if self.soft else None, truncates)
        return Matching(keys=KEYS, compare=("note", "amount") if self.history else (), changes=changes)

    def deliver(self, values: Sequence[bytes | None], sorted_parts: int = 0) -> LoadResult:
        """Load one batch. With ``sorted_parts`` the changes are folded as Spark's tasks do it."""
        decoder = ChangeDecoder(self.cdc, PayloadSpec(), self.table.columns, KEYS, self.history)
        decoded = decoder.decode(message_batch(values, self.offset))
        assert not decoded.bad, decoded.bad
        self.offset += len(values)
        names = self.table.column_names
        folder = ChangeFolder(self.table, KEYS, names, self.soft)
        if self.history:
            found = decoded.rows.filter(pc.equal(decoded.rows[CHANGE_OP], TRUNCATE_ROWS))
            cuts = tuple(sorted(found[CHANGE_POSITION].to_pylist()))
            folder = ChangeLister(self.table, KEYS, names, self.soft, truncates=cuts)
        if sorted_parts:
            rows = decoded.rows.to_pylist()
            rows.sort(key=lambda r: (r["region"] or "", r["id"] or 0, r["_ematix_change_position"]))
            parts = [
                pa.RecordBatch.from_pylist(rows[n : n + sorted_parts], schema=decoded.rows.schema)
                for n in range(0, len(rows), sorted_parts)
            ]
            folded = list(folder._fold_sorted(parts))
        else:
            folded = folder.fold_batch([decoded.rows])
        truncates = TRUNCATE_ROWS in decoded.rows.column(CHANGE_OP).to_pylist()
        mode: Any = "cdc_scd2" if self.history else "cdc"
        load = new_load(self.table, mode, matching=self._matching(truncates=truncates))
        staged = self.table.staged()
        staging = self.target.create_staging(load, staged.arrow_schema())
        try:
            part = staging.write("part", iter([cast_batch(batch, staged) for batch in folded]))
            return self.target.apply(load, StagedRows(staging, (part,)))
        finally:
            self.target.drop_staging(staging)
