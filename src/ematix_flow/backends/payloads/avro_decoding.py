"""Decodes Avro payloads that name their schema in a registry.

A message is read with its writer's schema, and its fields are matched to columns by name. A column that the
writer's schema lacks gets the default of the subject's latest schema, else null. A batch may have several
schemas. Enums and times of day become text; records, lists and maps become JSON. `value_conversion` has the
rules for all other values.
"""

from __future__ import annotations

import datetime as dt
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.payloads.avro_schema import (
    default_value,
    fields_of,
    has_zero_byte_items,
    parse_avro_schema,
    record_name,
)
from ematix_flow.backends.payloads.framing import FramedPayload, SchemaId
from ematix_flow.backends.payloads.registered_decoder import (
    PayloadReader,
    RegisteredDecoder,
    UnreadablePayload,
)
from ematix_flow.backends.payloads.registry import (
    AVRO,
    LruCache,
    RegisteredSchema,
    SchemaRegistry,
    UnusableSchema,
)
from ematix_flow.backends.payloads.registry_clients import subject_of

_CACHE_SIZE = 500
_EPOCH = dt.datetime(1970, 1, 1)
# by process, registry and id
_parsed_schemas: LruCache[tuple[int, int, SchemaId], Any] = LruCache(_CACHE_SIZE)


@dataclass(frozen=True)
class AvroDecoder(RegisteredDecoder):
    """Decodes Avro payloads."""

    schema_type = AVRO

    def _open_reader(self, registry: SchemaRegistry, schema: RegisteredSchema) -> PayloadReader:
        writer = load_schema(registry, schema)
        names = {field["name"] for field in fields_of(writer)}
        if not names and not (isinstance(writer, dict) and writer.get("type") == "record"):
            raise UnusableSchema(f"schema id {schema.id} is not a record, and has no fields")
        missing = [c.name for c in self.columns if c.name not in names]
        return _AvroReader(writer, self._defaults(registry, writer, missing))

    def _defaults(self, registry: SchemaRegistry, writer: Any, missing: list[str]) -> dict[str, Any]:
        """Defaults of the latest schema for fields that the writer's schema lacks."""
        if not missing or not (self.payload.topic or self.payload.subject_strategy == "record_name"):
            return {}
        subject = subject_of(self.payload, lambda: record_name(writer))
        latest = registry.latest_schema(subject)
        if latest is None or latest.type != AVRO:
            return {}
        try:
            fields = fields_of(load_schema(registry, latest))
        except UnusableSchema:
            return {}
        return {f["name"]: default_value(f) for f in fields if f["name"] in missing and "default" in f}


@dataclass(frozen=True)
class _AvroReader:
    writer: Any
    defaults: Mapping[str, Any]

    def read_row(self, payload: FramedPayload) -> Mapping[str, Any]:
        from fastavro import schemaless_reader

        stream = io.BytesIO(payload.data)
        stream.seek(payload.start)
        try:
            found = schemaless_reader(stream, self.writer, None)
        except Exception as error:  # any kind of error: it depends on the bytes
            words = str(error) or type(error).__name__
            raise UnreadablePayload(f"the payload does not match its schema: {words[:200]}") from None
        left = len(payload.data) - stream.tell()
        if left:
            raise UnreadablePayload(f"the payload has {left} bytes more than its schema describes")
        if not isinstance(found, dict):
            raise UnreadablePayload("the payload is not a record")
        return {**self.defaults, **found} if self.defaults else found


def load_schema(registry: SchemaRegistry, schema: RegisteredSchema) -> Any:
    """The parsed schema, cached in this process; raises UnusableSchema."""
    key = (os.getpid(), id(registry), schema.id)
    known = _parsed_schemas.get(key)
    if known is None:
        _register_nanosecond_types()
        known = parse_avro_schema(schema)
        if has_zero_byte_items(known):
            raise UnusableSchema(
                f"schema id {schema.id} has a list of zero-byte values, which could grow without limit"
            )
        _parsed_schemas.put(key, known)
    return known


def _register_nanosecond_types() -> None:
    """Make fastavro read nanosecond timestamps; as numbers, columns would read them as milliseconds."""
    from fastavro.read import LOGICAL_READERS

    LOGICAL_READERS.setdefault("long-timestamp-nanos", _utc_timestamp)
    LOGICAL_READERS.setdefault("long-local-timestamp-nanos", _local_timestamp)


def _local_timestamp(data: Any, *_: Any) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=int(data) // 1000)


def _utc_timestamp(data: Any, *_: Any) -> dt.datetime:
    return _local_timestamp(data).replace(tzinfo=dt.timezone.utc)
