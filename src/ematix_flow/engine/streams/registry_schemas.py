"""Finds schemas that appear in a registry while a stream runs, and checks whether they have new fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import VALUE
from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.framing import SchemaId
from ematix_flow.engine.planning.stream_drift import new_or_wider_columns
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.backends.payloads.registry import RegisteredSchema


class KnownSchemas:
    """The schemas that a plan was made with. Used by one thread at a time."""

    def __init__(
        self, payload: PayloadSpec, columns: Sequence[ColumnSpec], judged: KnownSchemas | None = None
    ) -> None:
        """``judged`` are those of the plan before this one."""
        self.payload, self.columns = payload, tuple(columns)
        self._judged: set[SchemaId] = set() if judged is None else set(judged._judged)

    def has_new_fields(self, incoming: IncomingBatch) -> bool:
        """Whether a message of the batch has a field, or a wider type, that the plan does not know.

        A batch whose schemas are all known asks no registry. A schema that the registry does not have yet
        is asked for again with the next batch.
        """
        from ematix_flow.backends.payloads.codecs import columns_of_schemas
        from ematix_flow.backends.payloads.framing import CONFLUENT_BYTES, GLUE_BYTES, read_schema_id
        from ematix_flow.backends.payloads.registry_clients import registry_of

        registry = registry_of(self.payload)
        beginnings = _payload_prefixes(incoming, GLUE_BYTES if registry.is_glue else CONFLUENT_BYTES)
        named = {
            found
            for value in beginnings
            if (found := read_schema_id(value, glue=registry.is_glue)) is not None
        }
        ids = {found for found in named - self._judged if _is_usable(registry.schema(found))}
        more = new_or_wider_columns(self.columns, columns_of_schemas(self.payload, ids))
        self._judged |= ids
        if more:
            registry.forget_latest()  # a cached answer may be older than these messages
        return bool(more)


def _is_usable(schema: RegisteredSchema | None) -> bool:
    return schema is not None and not schema.flaw


def _payload_prefixes(incoming: IncomingBatch, size: int) -> set[bytes]:
    """The first bytes of the payloads, which name a schema."""
    small_batch = incoming.small_batch()
    if small_batch is not None:
        return {value for batch in small_batch for value in _prefixes(batch, size)}
    found = incoming.frame.selectExpr(f"substring({VALUE}, 1, {size}) AS {VALUE}").distinct().collect()
    return {bytes(row[VALUE]) for row in found if row[VALUE]}


def _prefixes(batch: pa.RecordBatch, size: int) -> list[bytes]:
    import pyarrow.compute as pc

    return [value for value in pc.unique(pc.binary_slice(batch.column(VALUE), 0, size)).to_pylist() if value]
