"""Infers the columns of a stream from its first messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.engine.streams.decoding import readable_payloads
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.cdc import CDC
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_SIZE = 1_000


def sample_values(frame: DataFrame, payload: PayloadSpec) -> list[bytes]:
    """Payloads of the first messages, to infer columns from. Unreadable JSON is left out."""
    found = (
        readable_payloads(frame)
        if payload.format == "json"
        else frame.where("value IS NOT NULL").select("value")
    )
    return [bytes(row["value"]) for row in found.limit(SAMPLE_SIZE).collect()]


def infer_columns(
    payload: PayloadSpec, values: Sequence[bytes], cdc: CDC | None = None
) -> tuple[ColumnSpec, ...] | None:
    """The columns of these payloads, or of the rows in these change events; None if there are none."""
    if cdc is not None:
        from ematix_flow.backends.payloads.change_decoder import infer_change_columns

        return infer_change_columns(cdc, payload, values) or None
    from ematix_flow.backends.payloads.codecs import infer_json_columns
    from ematix_flow.spec.types import DataType

    if payload.format == "raw_bytes":
        return (ColumnSpec("value", DataType("bytes"), nullable=True),)
    if payload.format != "json":
        raise SourceFailed(
            f"payload_format {payload.format!r} needs a schema registry that knows its columns",
            next_step="set schema_registry= on the connection, or declare source_columns=",
        )
    return tuple(infer_json_columns(values)) or None
