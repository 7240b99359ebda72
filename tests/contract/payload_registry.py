"""What tests of registered payloads share: schemas put there by the library's own client, as others would."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from ematix_flow.backends.payloads.base import DecodedBatch, PayloadSpec
from ematix_flow.backends.payloads.codecs import decoder_for
from ematix_flow.spec.connections import SchemaRegistryConnection
from ematix_flow.spec.tables import ColumnSpec
from tests.unit.backends.payload_messages import covers, messages


def payload(url: str, form: str, topic: str, **more: Any) -> PayloadSpec:
    return PayloadSpec(form, SchemaRegistryConnection(name="reg", url=url), topic, **more)


def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url, "timeout": 30})


def register(url: str, subject: str, text: Any, kind: str = "AVRO", references: Any = ()) -> int:
    """The id of a schema that another client registers."""
    text = text if isinstance(text, str) else json.dumps(text)
    known = [SchemaReference(*reference) for reference in references]
    return int(client(url).register_schema(subject, Schema(text, kind, known)))


def record(*fields: tuple[Any, ...], name: str = "shop.Order") -> dict[str, Any]:
    """An Avro record; a field is a name, a type and perhaps a default."""
    made = [{"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields]
    return {"type": "record", "name": name, "fields": made}


def avro(schema_id: int, schema: Any, value: dict[str, Any]) -> bytes:
    from fastavro import parse_schema, schemaless_writer

    out = io.BytesIO()
    out.write(struct.pack(">BI", 0, schema_id))
    schemaless_writer(out, parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def read(source: PayloadSpec, columns: tuple[ColumnSpec, ...], values: list[bytes | None]) -> DecodedBatch:
    decoded = decoder_for(source, columns, numeric_positions=True).decode(messages(values))
    covers(decoded, len(values))
    return decoded


def batch(columns: tuple[ColumnSpec, ...], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([(c.name, c.type.arrow()) for c in columns]))
