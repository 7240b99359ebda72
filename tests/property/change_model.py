"""A source table whose changes become Debezium messages, and what a mirror of it must hold.

`deliver` brings messages to a target as a stream's batch does, in one process and without Spark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import BatchTarget, LoadResult, StagedRows
from ematix_flow.backends.messages.base import message_schema
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.change_decoder import ChangeDecoder
from ematix_flow.backends.payloads.change_events import UNAVAILABLE
from ematix_flow.engine.streams.change_folding import ChangeFolder
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.tables import CHANGE_OP, TRUNCATE_ROWS, ColumnSpec, TableSpec
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


def mirror_table(*, soft: bool, schema: str = "shop") -> TableSpec:
    columns = (*COLUMNS, SOFT) if soft else COLUMNS
    return TableSpec(schema, "mirror", columns, merge_keys=KEYS, keeps="changes")


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
                self._send("t", None, None)
        elif key not in self.rows:
            row = self._new_row(key)
            self.rows[key] = row
            self._put(key, row)
            self._send(chance.choice("cr"), None, row)
        elif kind == "delete":
            del self.rows[key]
            self._delete(key)
            self._send("d", {"region": key[0], "id": key[1]}, None)
        elif kind == "rekey":
            new = (chance.choice("ab"), chance.randrange(4))
            if new not in self.rows:
                row = {**self.rows.pop(key), "region": new[0], "id": new[1]}
                self.rows[new] = row
                self._delete(key)
                self._put(new, row)
                self._send("u", {"region": key[0], "id": key[1]}, row)
        else:
            old, row = self.rows[key], self._new_row(key)
            left_out = self.partial and chance.random() < 0.5
            if left_out:
                row["note"] = old["note"]
            self.rows[key] = row
            self._put(key, row)
            sent = {**row, "note": UNAVAILABLE} if left_out and row["note"] is not None else row
            self._send("u", None, sent)

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

    def _send(self, op: str, before: Row | None, after: Row | None) -> None:
        source = {"connector": "postgresql", "lsn": 1000 + 7 * len(self.messages)}
        envelope = {"op": op, "before": before, "after": after, "source": source}
        if self.chance.random() < 0.2:
            envelope = {"schema": None, "payload": envelope}
        self.messages.append(json.dumps(envelope).encode())
        self.states.append(dict(self.mirror))


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

    def __post_init__(self) -> None:
        self.table = mirror_table(soft=self.soft, schema=self.schema)
        self.matching = Matching(keys=KEYS, changes=ChangeOptions(SOFT.name if self.soft else None))
        prepare(self.target, self.table, self.matching)

    def deliver(self, values: Sequence[bytes | None], sorted_parts: int = 0) -> LoadResult:
        """Load one batch. With ``sorted_parts`` the changes are folded as Spark's tasks do it."""
        decoder = ChangeDecoder(self.cdc, PayloadSpec(), self.table.columns, KEYS)
        decoded = decoder.decode(message_batch(values, self.offset))
        assert not decoded.bad, decoded.bad
        self.offset += len(values)
        folder = ChangeFolder(self.table, KEYS, self.table.column_names, self.soft)
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
        changes = ChangeOptions(SOFT.name if self.soft else None, truncates)
        matching = Matching(keys=KEYS, changes=changes)
        load = new_load(self.table, "cdc", matching=matching)  # type: ignore[arg-type]
        staged = self.table.staged()
        staging = self.target.create_staging(load, staged.arrow_schema())
        try:
            part = staging.write("part", iter([cast_batch(batch, staged) for batch in folded]))
            return self.target.apply(load, StagedRows(staging, (part,)))
        finally:
            self.target.drop_staging(staging)
