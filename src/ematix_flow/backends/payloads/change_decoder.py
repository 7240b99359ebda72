"""Decodes change events into rows of the target's columns, with the operation and the position of each.

A change of the key becomes two rows: a delete of the old key and an upsert of the new one. `CHANGE_KEPT` has
one character for each column: the event does not tell the column's value (`UNTOLD`), or it has no such field
(`ABSENT`); it is null if the event has all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.messages.base import POSITION, VALUE
from ematix_flow.backends.payloads.base import META_COLUMNS, BadMessage, DecodedBatch, PayloadSpec
from ematix_flow.backends.payloads.change_blocks import BLOCK_ROWS, BlockReader, join_blocks
from ematix_flow.backends.payloads.change_events import (
    UNAVAILABLE,
    UNAVAILABLE_TEXTS,
    BadChange,
    ChangeEvent,
    change_time,
    read_change,
    value_at,
)
from ematix_flow.backends.payloads.codecs import registry_decoder
from ematix_flow.backends.payloads.debezium_values import CONVERTED_KINDS, column_type, debezium_value
from ematix_flow.backends.payloads.json_decoding import NotJsonObject, parse_fields
from ematix_flow.backends.payloads.json_inference import infer_json_columns
from ematix_flow.backends.payloads.json_values import json_bytes
from ematix_flow.backends.payloads.row_assembly import assemble_rows
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.generated_names import first_reserved_name
from ematix_flow.spec.tables import (
    ABSENT,
    BATCH_ID,
    CHANGE_AT,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_POSITION,
    DELETE_ROW,
    GIVEN,
    IS_CURRENT,
    LOADED_AT,
    ROW_HASH,
    TRUNCATE_ROWS,
    UNTOLD,
    UPSERT_ROW,
    VALID_FROM,
    VALID_TO,
    ColumnSpec,
)
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = DataType("text")
CHANGE_COLUMNS = (
    ColumnSpec(CHANGE_OP, _TEXT, nullable=True),
    ColumnSpec(CHANGE_POSITION, _TEXT, nullable=True),
    ColumnSpec(CHANGE_KEPT, _TEXT, nullable=True),
    ColumnSpec(CHANGE_AT, DataType("timestamp_tz"), nullable=True),
)
_log = logging.getLogger(__name__)
_UNTOLD_VALUES = (*UNAVAILABLE_TEXTS, UNAVAILABLE.encode())
_SCALARS = frozenset({int, float, bool, type(None)})
_NO_FIELD = object()
_TAKEN_NAMES = {*META_COLUMNS, LOADED_AT, BATCH_ID}
_VERSION_NAMES = {VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH}


@dataclass(frozen=True)
class ChangeDecoder:
    """Reads messages into ``columns`` and `CHANGE_COLUMNS`. With ``timed`` each change must have a time."""

    cdc: CDC
    payload: PayloadSpec
    columns: tuple[ColumnSpec, ...]
    keys: tuple[str, ...]
    timed: bool = False
    warned_fields: set[str] = field(default_factory=set, compare=False)

    @cached_property
    def _types(self) -> dict[str, DataType]:
        return {column.name: column.type for column in self.columns}

    @cached_property
    def _value_columns(self) -> tuple[tuple[int, str, bool], ...]:
        """Number and name of each column but the key, and whether Debezium's values of its type differ."""
        is_debezium = self.cdc.envelope == "debezium"
        return tuple(
            (number, column.name, is_debezium and column.type.kind in CONVERTED_KINDS)
            for number, column in enumerate(self.columns)
            if column.name not in self.keys
        )

    @cached_property
    def _key_paths_outside(self) -> dict[str, tuple[str, ...]]:
        """The paths of key columns that are not in the row."""
        after = self.cdc.paths.after
        return {path[-1]: path for path in self.cdc.key_paths if self.cdc.key_field and path[:-1] != after}

    def decode(self, messages: pa.RecordBatch) -> DecodedBatch:
        """Regular blocks are read column by column, other messages one by one."""
        blocks = BlockReader(self.cdc, self.columns, self._wanted, self.keys, self.timed, self._check_fields)
        if self.payload.format != "json" or not blocks.is_possible:
            return self._decode_each(messages)
        found = [
            blocks.read(block) or self._decode_each(block)
            for block in (
                messages.slice(start, BLOCK_ROWS) for start in range(0, messages.num_rows, BLOCK_ROWS)
            )
        ]
        return join_blocks(found) if found else self._decode_each(messages)

    @cached_property
    def _wanted(self) -> tuple[ColumnSpec, ...]:
        return (*(ColumnSpec(c.name, c.type, nullable=True) for c in self.columns), *CHANGE_COLUMNS)

    def _decode_each(self, messages: pa.RecordBatch) -> DecodedBatch:
        import pyarrow as pa

        fields, indexes, bad, empty = read_payload_fields(self.cdc, self.payload, messages.column(VALUE))
        arrivals = messages.column(POSITION).to_pylist()
        rows: list[Mapping[str, Any]] = []
        of_message: list[int] = []
        for message, index in zip(fields, indexes, strict=True):
            try:
                change = read_change(self.cdc, message, arrivals[index] or "")
                if change is None:
                    empty += 1
                    continue
                found = self._timed_rows(change)
            except BadChange as error:
                bad.append(BadMessage(index, str(error)))
                continue
            rows += found
            of_message += [index] * len(found)
        batch, of_message, unfit = assemble_rows(self._wanted, rows, of_message)
        refused = {each.index for each in unfit}
        if refused:  # a message with one bad row is bad as a whole
            good = [at for at, index in enumerate(of_message) if index not in refused]
            batch, of_message = batch.take(pa.array(good, pa.int64())), [of_message[at] for at in good]
        reasons = {each.index: each for each in reversed([*bad, *unfit])}
        ordered = tuple(reasons[index] for index in sorted(reasons))
        return DecodedBatch(batch, pa.array(of_message, pa.int64()), ordered, empty)

    def _timed_rows(self, change: ChangeEvent) -> list[Mapping[str, Any]]:
        rows = self._rows(change)
        if not self.timed:
            return list(rows)
        at = change_time(self.cdc, change.envelope)
        return [{**row, CHANGE_AT: at} for row in rows]

    def _rows(self, change: ChangeEvent) -> Iterable[Mapping[str, Any]]:
        if change.op == "truncate":
            yield {CHANGE_OP: TRUNCATE_ROWS, CHANGE_POSITION: change.position}
            return
        key = self._key_values(change, change.row)
        if change.op == "delete":
            yield {**key, CHANGE_OP: DELETE_ROW, CHANGE_POSITION: change.position}
            return
        self._check_fields(change.row)
        old = {name: change.before[name] for name in self.keys if name in change.before}
        if len(old) == len(self.keys) and None not in old.values():
            was = {name: self._value(change, name, value) for name, value in old.items()}
            if was != key:
                yield {**was, CHANGE_OP: DELETE_ROW, CHANGE_POSITION: change.position}
        row = {**key, CHANGE_OP: UPSERT_ROW, CHANGE_POSITION: change.position, CHANGE_KEPT: None}
        marks = self._read_values(change, row)
        if marks:
            row[CHANGE_KEPT] = "".join(marks.get(number, GIVEN) for number in range(len(self.columns)))
        yield row

    def _read_values(self, change: ChangeEvent, into: dict[str, Any]) -> dict[int, str]:
        """Read the values of all columns but the key. Returns the marks of those without one, by number."""
        marks: dict[int, str] = {}
        has_schemas, value_of = bool(change.schemas), change.row.get
        for number, name, is_converted in self._value_columns:
            value = value_of(name, _NO_FIELD)
            kind = type(value)
            if kind in _SCALARS or (kind is str and value not in UNAVAILABLE_TEXTS):
                into[name] = self._value(change, name, value) if is_converted or has_schemas else value
            elif value is _NO_FIELD:
                marks[number] = ABSENT
            elif _is_untold(value):
                marks[number] = UNTOLD
            else:
                into[name] = self._value(change, name, value)
        return marks

    def _key_values(self, change: ChangeEvent, row: Mapping[str, Any]) -> dict[str, Any]:
        """The key's values by column. Raises BadChange with the path of one that is missing."""
        found: dict[str, Any] = {}
        for name in self.keys:
            path = self._key_paths_outside.get(name)
            value = value_at(change.envelope, path) if path else row.get(name)
            if value is None:
                paths = self.cdc.paths
                is_after = change.op == "upsert" or self.cdc.envelope == "maxwell"
                of_row = paths.after if is_after else paths.before
                place = path or (*(of_row or paths.after), name)
                raise BadChange(
                    f"the message has no {'.'.join(place)!r}, which is the key of the row: "
                    "keys= or key_field= names the key"
                )
            found[name] = self._value(change, name, value)
        return found

    def _value(self, change: ChangeEvent, name: str, value: Any) -> Any:
        if self.cdc.envelope != "debezium":
            return value
        return debezium_value(value, self._types.get(name, _TEXT), change.schemas.get(name))

    def new_columns(self, messages: pa.RecordBatch) -> tuple[ColumnSpec, ...]:
        """Columns for the fields of these messages that have none. A field of which only nulls are known, and
        no schema, has no type yet; a name that SQL takes for that of a column is left out.
        """
        import pyarrow as pa

        values = messages.column(VALUE)
        fields, indexes, _, _ = read_payload_fields(self.cdc, self.payload, values)
        known = {column.name.casefold() for column in self.columns}
        typed: set[str] = set()
        having: list[int] = []
        for message, index in zip(fields, indexes, strict=True):
            try:
                change = read_change(self.cdc, message, "0")
            except BadChange:
                continue
            if change is None or change.op != "upsert":
                continue
            try:
                self._key_values(change, change.row)
            except BadChange:  # the message is bad, and brings nothing
                continue
            told = {name for name, value in change.row.items() if value is not None and not _is_untold(value)}
            new = {name for name in told | set(change.schemas) if name.casefold() not in known}
            if new:
                typed |= new
                having.append(index)
        if not having:
            return ()
        samples = values.take(pa.array(having, pa.int64())).to_pylist()
        found = infer_change_columns(self.cdc, self.payload, samples)
        return tuple(
            column
            for column in found
            if column.name in typed and not (self.timed and column.name.lower() in _VERSION_NAMES)
        )

    def _check_fields(self, row: Mapping[str, Any]) -> None:
        """Refuse or report fields that have no column, by ``schema_evolution=``."""
        known = self._types
        if row.keys() <= known.keys():
            return
        more = sorted(str(name) for name in row if name not in known)
        if self.cdc.schema_evolution == "fail":
            raise BadChange(
                f"the row has {', '.join(map(repr, more))}, for which the table has no column "
                "(schema_evolution='fail')"
            )
        unseen = [name for name in more if name not in self.warned_fields and row[name] is not None]
        if unseen:
            self.warned_fields.update(unseen)
            _log.warning(
                "changes have fields without a column in the table, which are left out: %s", ", ".join(unseen)
            )


def _is_untold(value: Any) -> bool:
    """Whether Debezium leaves the value out: a long value that did not change."""
    if isinstance(value, (list, dict)):
        return len(value) == 1 and _is_untold(next(iter(value)))
    return value in _UNTOLD_VALUES


def read_payload_fields(
    cdc: CDC, payload: PayloadSpec, values: pa.Array
) -> tuple[list[Mapping[str, Any]], list[int], list[BadMessage], int]:
    """The fields of each readable payload, their indexes, the bad messages, and how many are empty."""
    is_envelope = cdc.envelope == "debezium" and cdc.paths.op[0] not in ("schema", "payload")
    if payload.format == "avro" and payload.registry is not None and is_envelope:
        from ematix_flow.backends.payloads.avro_envelopes import AvroEnvelopeDecoder

        return AvroEnvelopeDecoder(payload, ()).read_fields(values)
    if payload.format != "json":
        return registry_decoder(payload, ()).read_fields(values)
    rows: list[Mapping[str, Any]] = []
    indexes: list[int] = []
    bad: list[BadMessage] = []
    empty = 0
    for index, value in enumerate(values.to_pylist()):
        if not value or value == b"null":
            empty += 1
            continue
        try:
            rows.append(parse_fields(value))
            indexes.append(index)
        except NotJsonObject as error:
            bad.append(BadMessage(index, str(error)))
    return rows, indexes, bad, empty


def is_taken_name(name: str) -> bool:
    """Whether loads use this name themselves, so that no field can have a column of this name."""
    return name.lower() in _TAKEN_NAMES or first_reserved_name((name,)) is not None


def infer_change_columns(cdc: CDC, payload: PayloadSpec, values: Sequence[bytes]) -> tuple[ColumnSpec, ...]:
    """The columns of the rows in these messages: by Debezium's schemas if they have them, else by values."""
    import pyarrow as pa

    samples: list[bytes] = []
    schemas: dict[str, DataType] = {}
    array = pa.array(list(values), pa.binary())
    messages = read_payload_fields(cdc, payload, array)[0]
    for message in messages:
        try:
            change = read_change(cdc, message, "0")
        except BadChange:
            continue
        if change is None or change.op != "upsert":
            continue
        for name, schema in change.schemas.items():
            schemas[name] = column_type(schema)
        told = {name: value for name, value in change.row.items() if not _is_untold(value)}
        samples.append(json_bytes({**dict.fromkeys(change.row), **told}))
    found = infer_json_columns(samples)
    return tuple(
        ColumnSpec(c.name, schemas[c.name], nullable=True) if c.name in schemas else c
        for c in found
        if not is_taken_name(c.name)
    )
