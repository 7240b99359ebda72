"""Decoders, encoders and columns for the payloads of a topic; the entry point of this package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.base import FORMATS, Decoder, Encoder, PayloadDecoder, PayloadSpec
from ematix_flow.backends.payloads.framing import SchemaId
from ematix_flow.backends.payloads.json_inference import infer_json_columns
from ematix_flow.backends.payloads.metadata import MessageDecoder, meta_columns, payload_columns
from ematix_flow.errors import ConfigError, SchemaMismatch, did_you_mean
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from ematix_flow.backends.payloads.registered_decoder import RegisteredDecoder
    from ematix_flow.backends.payloads.registry import RegisteredSchema

__all__ = [
    "columns_of_schemas",
    "decoder_for",
    "describe_subject",
    "encoder_for",
    "has_registered_schema",
    "infer_json_columns",
    "meta_columns",
    "registry_decoder",
]


def decoder_for(payload: PayloadSpec, columns: Sequence[ColumnSpec], *, numeric_positions: bool) -> Decoder:
    """A decoder of messages into these columns, including those of `META_COLUMNS`.

    ``numeric_positions`` says that partitions and positions of the source are numbers, as Kafka's are.
    """
    wanted = tuple(columns)
    if not wanted:
        raise SchemaMismatch("there is no column to read payloads into")
    return MessageDecoder(_payload_decoder(payload, wanted), wanted, numeric_positions)


def _payload_decoder(payload: PayloadSpec, columns: tuple[ColumnSpec, ...]) -> PayloadDecoder:
    if payload.format == "json":
        from ematix_flow.backends.payloads.json_decoding import JsonDecoder

        return JsonDecoder(payload_columns(columns))
    if payload.format == "raw_bytes":
        from ematix_flow.backends.payloads.raw import RawDecoder, raw_column

        return RawDecoder(raw_column(columns))
    return registry_decoder(payload, payload_columns(columns))


def registry_decoder(payload: PayloadSpec, columns: tuple[ColumnSpec, ...]) -> RegisteredDecoder:
    """A decoder of payloads whose schemas a registry has."""
    _require_registry(payload)
    if payload.format == "avro":
        from ematix_flow.backends.payloads.avro_decoding import AvroDecoder

        return AvroDecoder(payload, columns)
    from ematix_flow.backends.payloads.protobuf_decoding import ProtobufDecoder

    return ProtobufDecoder(payload, columns)


def encoder_for(payload: PayloadSpec, columns: Sequence[ColumnSpec]) -> Encoder:
    """An encoder for rows of these columns. Avro and Protobuf ask the registry now, and may register."""
    wanted = tuple(columns)
    if not wanted:
        raise SchemaMismatch("there is no column to write payloads from")
    if payload.format == "json":
        from ematix_flow.backends.payloads.json_encoding import JsonEncoder

        return JsonEncoder(wanted)
    if payload.format == "raw_bytes":
        from ematix_flow.backends.payloads.raw import RawEncoder, raw_column

        column = raw_column(wanted)
        if column is None:
            raise SchemaMismatch("a raw payload needs one column of Bytes or Text, and there is none")
        return RawEncoder(column)
    _require_registry(payload)
    if payload.format == "avro":
        from ematix_flow.backends.payloads.avro_encoding import avro_encoder

        return avro_encoder(payload, wanted)
    from ematix_flow.backends.payloads.protobuf_encoding import protobuf_encoder

    return protobuf_encoder(payload, wanted)


def describe_subject(payload: PayloadSpec) -> tuple[ColumnSpec, ...] | None:
    """The columns of the subject's latest schema; None without a registry, or for JSON and raw payloads.

    SchemaMismatch when the registry has no such subject.
    """
    if not has_registered_schema(payload):
        return None
    from ematix_flow.backends.payloads.registry import UnusableSchema
    from ematix_flow.backends.payloads.registry_clients import registry_of, subject_of

    subject = subject_of(payload, lambda: payload.message)
    latest = registry_of(payload).latest_schema(subject)
    if latest is None:
        raise SchemaMismatch(
            f"the schema registry has no subject {subject!r}",
            next_step="check the topic and the subject strategy, or declare the columns",
        )
    if latest.type.lower() != payload.format:
        raise SchemaMismatch(
            f"subject {subject!r} is {latest.type.title()} in the registry, but the payloads are declared as"
            f" {payload.format}",
            next_step=f'write  payload_format="{latest.type.lower()}"',
        )
    try:
        return _columns_of(payload, latest)
    except (UnusableSchema, ValueError) as error:
        raise SchemaMismatch(f"subject {subject!r}: {error}") from None


def has_registered_schema(payload: PayloadSpec) -> bool:
    """Whether a registry has the columns of the payloads."""
    return payload.registry is not None and payload.format in ("avro", "protobuf")


def columns_of_schemas(payload: PayloadSpec, ids: Iterable[SchemaId]) -> list[ColumnSpec]:
    """The columns of these schemas, one after another, without schemas that cannot be used.

    Decoding a message with such a schema gives the reason.
    """
    from ematix_flow.backends.payloads.registry import UnusableSchema
    from ematix_flow.backends.payloads.registry_clients import registry_of

    found: list[ColumnSpec] = []
    for schema_id in ids:
        schema = registry_of(payload).schema(schema_id)
        if schema is not None and schema.type.lower() == payload.format:
            with suppress(UnusableSchema, ValueError):
                found += _columns_of(payload, schema)
    return found


def _columns_of(payload: PayloadSpec, schema: RegisteredSchema) -> tuple[ColumnSpec, ...]:
    """The columns of a schema; raises UnusableSchema."""
    if payload.format == "avro":
        from ematix_flow.backends.payloads import avro_schema

        return avro_schema.columns_of(avro_schema.parse_avro_schema(schema))
    from ematix_flow.backends.payloads import protobuf_schema

    return protobuf_schema.columns_of(protobuf_schema.compile_schema(schema).find_message(payload.message))


def _require_registry(payload: PayloadSpec) -> None:
    if payload.format not in FORMATS:
        raise ConfigError(
            f"there is no payload format {payload.format!r}.{did_you_mean(payload.format, FORMATS)}"
        )
    if payload.registry is None:
        raise ConfigError(
            f"{payload.format} payloads need a schema registry, but none is given",
            next_step="give the connection  schema_registry=  or  schema_registry_url=",
        )
