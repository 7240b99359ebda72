"""Finds the columns of a join's sources in their first messages.

A source may have no message yet when the other one has. Its columns are needed before the first batch is
loaded, so that the stream waits for its first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import SparkStreamSource
from ematix_flow.engine.streams.column_inference import infer_columns, sample_values
from ematix_flow.engine.streams.message_names import ORIGIN
from ematix_flow.engine.streams.open_stream import OpenStream, StreamStopping
from ematix_flow.errors import SourceFailed
from ematix_flow.plan.stream_definition import StreamPlan
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAUSE_SECONDS = 1.0


def infer_source_columns(stream: OpenStream, plan: StreamPlan, incoming: DataFrame) -> StreamPlan:
    """The plan with the columns of all sources. ``incoming`` is the first batch."""
    found = [
        known or stream.folder.pinned_columns(number) or _from_messages(stream, plan, number, incoming)
        for number, known in enumerate(plan.source_columns)
    ]
    planned = stream.with_source_columns(plan, found)
    stream.note(str(planned))
    return planned


def keep_source_columns(stream: OpenStream, plan: StreamPlan) -> None:
    """Keep columns that are not declared for the next start: the state has them."""
    for number, source in enumerate(stream.spec.sources):
        columns = plan.source_columns[number]
        if source.columns is None and columns is not None and stream.folder.pinned_columns(number) is None:
            stream.folder.pin_columns(columns, number)


def _from_messages(
    stream: OpenStream, plan: StreamPlan, number: int, incoming: DataFrame
) -> tuple[ColumnSpec, ...]:
    """The columns of the source's messages in the batch, or else of those that the topic has."""
    payload, declared, source = plan.payloads[number], stream.spec.sources[number], stream.sources[number]
    assert payload is not None and isinstance(source, SparkStreamSource)
    found = infer_columns(payload, sample_values(incoming.where(f"{ORIGIN} = {number}"), payload))
    is_noted = False
    while found is None:
        stored = source.stored_messages(incoming.sparkSession, stream.reading_of(declared))
        found = infer_columns(payload, sample_values(stored, payload))
        if found is not None:
            break
        if stream.once:
            raise SourceFailed(
                f"{declared.label} has no message that can be read, so that its columns are not known",
                state="nothing was loaded",
                next_step="declare them:  Source(…, columns=…)",
            )
        if not is_noted:
            stream.note(f"the join waits for the first message of {declared.label}, which tells its columns")
        is_noted = True
        if stream.stop.wait(_PAUSE_SECONDS):
            raise StreamStopping
    return found
