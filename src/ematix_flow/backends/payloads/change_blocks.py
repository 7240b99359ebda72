"""Reads blocks of Debezium's change events column by column, several times as fast as one by one.

Only what is regular is read here: JSON without schemas, the envelope's own paths, inserts, updates without a
change of the key, deletes. Everything else, and every block with a message that is bad, is left to
`ChangeDecoder`, which reads one message after the other. Both give the same rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from ematix_flow.backends.messages.base import POSITION, VALUE
from ematix_flow.backends.payloads.base import BadMessage, DecodedBatch
from ematix_flow.backends.payloads.change_events import (
    UNAVAILABLE_TEXTS,
    BadChange,
    change_position,
    change_time,
)
from ematix_flow.backends.payloads.debezium_values import CONVERTED_KINDS, debezium_value, moment_of_number
from ematix_flow.backends.payloads.json_decoding import has_inexact_number, has_negative_zero
from ematix_flow.backends.payloads.row_assembly import array_of_values, build_batch
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.tables import (
    ABSENT,
    CHANGE_AT,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_POSITION,
    DELETE_ROW,
    GIVEN,
    UNTOLD,
    UPSERT_ROW,
    ColumnSpec,
)

if TYPE_CHECKING:
    import pyarrow as pa

Row = Mapping[str, Any]

BLOCK_ROWS = 2_000
_OPERATIONS = frozenset({"c", "u", "r", "d"})
_PLAIN = frozenset({int, float, bool, str, type(None)})
_ROWS = frozenset({dict, type(None)})
_NO_FIELD = object()


@dataclass(frozen=True)
class BlockReader:
    """Reads blocks into ``wanted``: these columns, and those of a change.

    ``check_fields`` judges the fields of a row that have no column.
    """

    cdc: CDC
    columns: tuple[ColumnSpec, ...]
    wanted: tuple[ColumnSpec, ...]
    keys: tuple[str, ...]
    timed: bool
    check_fields: Callable[[Row], None]

    @property
    def is_possible(self) -> bool:
        """Whether the declaration allows blocks at all."""
        cdc = self.cdc
        is_plain = cdc.envelope == "debezium" and not cdc.op_map and cdc.ts_field is None
        has_paths = cdc.op_field is None and cdc.before_field is None and cdc.after_field is None
        return is_plain and has_paths and all(path[:-1] == cdc.paths.after for path in cdc.key_paths)

    def read(self, block: pa.RecordBatch) -> DecodedBatch | None:
        """The rows of the block's messages; None if the block is not regular."""
        import pyarrow as pa

        values, arrivals = block.column(VALUE).to_pylist(), block.column(POSITION).to_pylist()
        indexes = [at for at, value in enumerate(values) if value and value != b"null"]
        payloads = [values[at] for at in indexes]
        text = b"\n".join(payloads)
        if has_negative_zero(text):
            return None
        try:
            messages = [orjson.loads(payload) for payload in payloads]
            rows = self._read_messages(messages, [arrivals[at] or "" for at in indexes], text)
        except (_Irregular, BadChange, ValueError, OverflowError):
            return None
        return DecodedBatch(rows, pa.array(indexes, pa.int64()), (), len(values) - len(indexes))

    def _read_messages(self, messages: Sequence[Any], arrivals: Sequence[str], text: bytes) -> pa.RecordBatch:
        _require(set(map(type, messages)) <= {dict})
        ops = [message.get("op") for message in messages]
        _require(set(map(type, ops)) <= {str} and set(ops) <= _OPERATIONS)
        afters = [message.get("after") for message in messages]
        befores = [message.get("before") for message in messages]
        _require(_ROWS.issuperset(map(type, afters)) and _ROWS.issuperset(map(type, befores)))
        gone = [op == "d" for op in ops]
        rows = [
            before or after if is_gone else after
            for after, before, is_gone in zip(afters, befores, gone, strict=True)
        ]
        _require(set(map(type, rows)) <= {dict})
        self._check_rows(rows, befores, gone)
        marks: list[list[str] | None] = [None] * len(rows)
        found: dict[str, list[Any]] = {
            column.name: self._values(number, column, rows, gone, marks)
            for number, column in enumerate(self.columns)
        }
        if any(float in map(type, values) for values in found.values()):  # also a number of too many digits
            _require(not has_inexact_number(text))
        found[CHANGE_OP] = [DELETE_ROW if is_gone else UPSERT_ROW for is_gone in gone]
        found[CHANGE_POSITION] = [
            change_position(self.cdc, message, arrival)
            for message, arrival in zip(messages, arrivals, strict=True)
        ]
        found[CHANGE_KEPT] = ["".join(each) if each else None for each in marks]
        times = [change_time(self.cdc, message) for message in messages] if self.timed else [None] * len(rows)
        found[CHANGE_AT] = times
        arrays = []
        for column in self.wanted:
            bad: dict[int, str] = {}
            arrays.append(array_of_values(column, found[column.name], bad))
            _require(not bad)
        return build_batch(self.wanted, arrays, len(rows))

    def _check_rows(
        self, rows: Sequence[dict[str, Any]], befores: Sequence[dict[str, Any] | None], gone: Sequence[bool]
    ) -> None:
        """Require that no key changes; judge fields without a column."""
        known = {column.name for column in self.columns}
        for row, before, is_gone in zip(rows, befores, gone, strict=True):
            if is_gone:
                continue
            if before and any(name in before and before[name] != row.get(name) for name in self.keys):
                raise _Irregular
            if not row.keys() <= known:
                self.check_fields(row)

    def _values(
        self,
        number: int,
        column: ColumnSpec,
        rows: Sequence[dict[str, Any]],
        gone: Sequence[bool],
        marks: list[list[str] | None],
    ) -> list[Any]:
        """The values of a column. Values that are left out get their mark."""
        name = column.name
        if name in self.keys:
            values = [row.get(name) for row in rows]
            _require(None not in values)
        else:
            values = [
                None if is_gone else row.get(name, _NO_FIELD) for row, is_gone in zip(rows, gone, strict=True)
            ]
        kinds = set(map(type, values))
        if object in kinds or (str in kinds and any(text in values for text in UNAVAILABLE_TEXTS)):
            _require(name not in self.keys)
            for at, value in enumerate(values):
                if value is _NO_FIELD or value in UNAVAILABLE_TEXTS:
                    own = marks[at] = marks[at] or [GIVEN] * len(self.columns)
                    own[number] = ABSENT if value is _NO_FIELD else UNTOLD
                    values[at] = None
            kinds = set(map(type, values))
        _require(kinds <= _PLAIN)
        kind = column.type.kind
        if kind in ("timestamp", "timestamp_tz") and kinds <= {int, type(None)}:
            zone = dt.timezone.utc if kind == "timestamp_tz" else None
            return [None if value is None else moment_of_number(value, zone) for value in values]
        if kind in CONVERTED_KINDS and kinds != {type(None)}:
            return [debezium_value(value, column.type, None) for value in values]
        return values


def join_blocks(blocks: Sequence[DecodedBatch]) -> DecodedBatch:
    """The rows of consecutive blocks of messages; each but the last has `BLOCK_ROWS` messages."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(blocks) == 1:
        return blocks[0]
    starts = range(0, len(blocks) * BLOCK_ROWS, BLOCK_ROWS)
    return DecodedBatch(
        pa.concat_batches([block.rows for block in blocks]),
        pa.concat_arrays([pc.add(each.indexes, start) for each, start in zip(blocks, starts, strict=True)]),
        tuple(
            BadMessage(each.index + start, each.reason)
            for block, start in zip(blocks, starts, strict=True)
            for each in block.bad
        ),
        sum(block.empty_count for block in blocks),
    )


class _Irregular(Exception):
    """The block must be read message by message."""


def _require(holds: bool) -> None:
    if not holds:
        raise _Irregular
