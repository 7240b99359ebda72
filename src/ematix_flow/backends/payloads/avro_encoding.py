"""Encodes rows as Avro payloads, with a registered schema."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.payloads.avro_schema import (
    columns_of,
    fields_of,
    is_millisecond_type,
    parse_avro_schema,
    schema_for_columns,
)
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.framing import frame_prefix
from ematix_flow.backends.payloads.registered_encoder import RegisteredEncoder, RowWriter, cannot_write
from ematix_flow.backends.payloads.registry import AVRO, RegisteredSchema, UnusableSchema
from ematix_flow.backends.payloads.writer_schema import choose_schema, fits_without_loss, target_record_name
from ematix_flow.errors import RowRejected, SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec


@dataclass(frozen=True)
class AvroEncoder(RegisteredEncoder):
    """Encodes rows as Avro payloads."""

    schema: RegisteredSchema
    columns: tuple[ColumnSpec, ...]

    def _row_writer(self) -> RowWriter:
        from fastavro import schemaless_writer

        schema = parse_avro_schema(self.schema)
        nested = {c.name for c in columns_of(schema) if c.type.kind == "json"}
        coarse = {field["name"] for field in fields_of(schema) if is_millisecond_type(field["type"])}
        prefix = frame_prefix(self.schema.id)

        def write(row: int, values: Sequence[Any]) -> bytes:
            payload = io.BytesIO()
            payload.write(prefix)
            self._refuse_lost_microseconds(row, values, coarse)
            try:
                schemaless_writer(payload, schema, self._record(values, nested))
            except (ValueError, TypeError, KeyError, OverflowError, AttributeError, IndexError) as error:
                raise cannot_write(row, self.schema.id, error) from None
            return payload.getvalue()

        return write

    def _refuse_lost_microseconds(self, row: int, values: Sequence[Any], coarse: set[str]) -> None:
        for column, value in zip(self.columns, values, strict=True):
            if column.name in coarse and isinstance(value, dt.datetime) and value.microsecond % 1000:
                raise RowRejected(
                    f"row {row + 1}, column {column.name!r}: {value.isoformat()} has microseconds, and schema"
                    f" id {self.schema.id} has milliseconds",
                    state="nothing of this batch was sent",
                    next_step="round the values to milliseconds, or send to a topic whose schema has"
                    " timestamp-micros",
                )

    def _record(self, values: Sequence[Any], nested: set[str]) -> dict[str, Any]:
        """The record of a row; JSON text becomes the value that it describes."""
        record: dict[str, Any] = {}
        for column, value in zip(self.columns, values, strict=True):
            if value is not None and column.name in nested and column.type.kind in ("json", "jsonb"):
                value = json.loads(value)
            record[column.name] = value
        return record


def avro_encoder(payload: PayloadSpec, columns: tuple[ColumnSpec, ...]) -> AvroEncoder:
    """An encoder with the schema from the registry; registers a new schema if needed and allowed."""

    def why_not(latest: RegisteredSchema) -> str:
        try:
            schema = parse_avro_schema(latest)
            fields = {c.name: c for c in columns_of(schema)}
        except UnusableSchema as error:
            return str(error)
        for column in columns:
            field = fields.pop(column.name, None)
            if field is None:
                return f"it has no field {column.name!r}"
            fits = fits_without_loss(column.type.kind, field.type.kind) and column.nullable <= field.nullable
            if not fits or (column.type.kind == "numeric" and not _numeric_fits(field, column)):
                null = "nullable " if column.nullable and not field.nullable else ""
                return f"its field {column.name!r} is {field.type}, and the column is {null}{column.type}"
        for other in fields_of(schema):
            if other["name"] in fields and "default" not in other:
                return f"it requires a field {other['name']!r}, and there is no such column"
        return ""

    def derived(_: RegisteredSchema | None) -> str:
        return json.dumps(schema_for_columns(columns, target_record_name(payload)))

    schema = choose_schema(payload, AVRO, why_not, derived)
    try:
        parse_avro_schema(schema)
    except UnusableSchema as error:
        raise SchemaMismatch(str(error)) from None
    return AvroEncoder(schema, columns)


def _numeric_fits(field: ColumnSpec, column: ColumnSpec) -> bool:
    whole = (field.type.precision or 0) - (field.type.scale or 0)
    wanted = (column.type.precision or 0) - (column.type.scale or 0)
    return whole >= wanted and (field.type.scale or 0) >= (column.type.scale or 0)
