"""Decodes payloads that name their schema in a registry: the part that Avro and Protobuf share.

A decoder opens a reader for each schema of a batch, once. A payload whose schema or bytes cannot be used is
returned with the reason. What a reader makes of the bytes is the subject of its format's module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ematix_flow.backends.payloads.base import BadMessage, DecodedBatch, PayloadSpec
from ematix_flow.backends.payloads.framing import FramedPayload, FrameError, SchemaId, parse_frame
from ematix_flow.backends.payloads.registry import RegisteredSchema, SchemaRegistry, UnusableSchema
from ematix_flow.backends.payloads.registry_clients import registry_of
from ematix_flow.backends.payloads.row_assembly import assemble_rows
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa


class UnreadablePayload(Exception):
    """A payload whose bytes do not match its schema."""


class PayloadReader(Protocol):
    """Reads the payloads of one schema."""

    def read_row(self, payload: FramedPayload) -> Mapping[str, Any]:
        """The fields of a payload by name; raises UnreadablePayload or FrameError."""
        ...


@dataclass(frozen=True)
class RegisteredDecoder(ABC):
    """Reads payloads into these columns. ``payload`` contains the registry's secrets."""

    schema_type: ClassVar[str]

    payload: PayloadSpec
    columns: tuple[ColumnSpec, ...]

    def read(self, values: pa.Array) -> DecodedBatch:
        import pyarrow as pa

        rows, indexes, bad, empty = self.read_fields(values)
        batch, indexes, unfit = assemble_rows(self.columns, rows, indexes)
        bad = sorted([*bad, *unfit], key=lambda each: each.index)
        return DecodedBatch(batch, pa.array(indexes, pa.int64()), tuple(bad), empty)

    def read_fields(
        self, values: pa.Array
    ) -> tuple[list[Mapping[str, Any]], list[int], list[BadMessage], int]:
        """The fields of each readable payload, their indexes, the bad messages, and how many are empty."""
        registry = registry_of(self.payload)
        readers: dict[SchemaId, PayloadReader | str] = {}  # of this batch: one registry look-up per schema
        rows: list[Mapping[str, Any]] = []
        indexes: list[int] = []
        bad: list[BadMessage] = []
        empty = 0
        for index, value in enumerate(values.to_pylist()):
            if not value:
                empty += 1
                continue
            try:
                frame = parse_frame(value, glue=registry.is_glue)
                reader = readers.get(frame.schema)
                if reader is None:
                    reader = readers[frame.schema] = self._reader_for(registry, frame.schema)
                if isinstance(reader, str):
                    bad.append(BadMessage(index, reader))
                    continue
                rows.append(reader.read_row(frame))
                indexes.append(index)
            except (FrameError, UnreadablePayload) as error:
                bad.append(BadMessage(index, str(error)))
        return rows, indexes, bad, empty

    def _reader_for(self, registry: SchemaRegistry, schema_id: SchemaId) -> PayloadReader | str:
        """The reader for payloads of a schema, or the reason why they cannot be read."""
        schema = registry.schema(schema_id)
        if schema is None:
            return f"schema id {schema_id} is not in the registry"
        if schema.type != self.schema_type:
            return f"schema id {schema_id} is {schema.type.title()}, not {self.schema_type.title()}"
        try:
            return self._open_reader(registry, schema)
        except UnusableSchema as error:
            return str(error)

    @abstractmethod
    def _open_reader(self, registry: SchemaRegistry, schema: RegisteredSchema) -> PayloadReader:
        """A reader for payloads of a schema of this type; raises UnusableSchema."""
