"""Encodes rows with a registered schema: the part that Avro and Protobuf share.

The schema is chosen on the driver (`writer_schema`), so that a worker needs no registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.payloads.framing import SchemaId
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

RowWriter = Callable[[int, Sequence[Any]], bytes]  # the number of a row in its batch, and its values


class RegisteredEncoder(ABC):
    """Writes rows of ``columns``, one payload per row."""

    columns: tuple[ColumnSpec, ...]

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa

        write = self._row_writer()
        arrays = [rows.column(c.name).cast(c.type.arrow()).to_pylist() for c in self.columns]
        payloads = [write(row, values) for row, values in enumerate(zip(*arrays, strict=True))]
        return pa.array(payloads, pa.binary())

    @abstractmethod
    def _row_writer(self) -> RowWriter:
        """A function that writes a row, made once per batch; it raises RowRejected."""


def cannot_write(row: int, schema_id: SchemaId, error: Exception, column: str | None = None) -> RowRejected:
    """The error for a row, or one column of it, that the schema cannot hold."""
    where = f"row {row + 1}" if column is None else f"row {row + 1}, column {column!r}"
    return RowRejected(
        f"{where} cannot be written with schema id {schema_id}: {error}",
        state="nothing of this batch was sent",
        next_step="make the values fit the schema, or register one that holds them",
    )
