"""Stages a batch of change events: decodes them, folds the changes of each key, and stages the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.change_decoder import CHANGE_COLUMNS, ChangeDecoder
from ematix_flow.engine.streams.batch_frames import CountMessages, count_rows
from ematix_flow.engine.streams.change_folding import ChangeFolder
from ematix_flow.engine.streams.change_listing import ChangeLister
from ematix_flow.engine.streams.decoding import (
    REASON,
    MessageCounts,
    SourceDecoders,
    count_messages,
    decode_frame,
)
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.sinks import BatchName, StreamSink, TableSink
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import CHANGE_OP, TRUNCATE_ROWS, ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa


def change_decoders(
    spec: StreamSpec, payloads: Sequence[PayloadSpec | None], columns: Sequence[ColumnSpec]
) -> SourceDecoders:
    """A decoder of change events for each source."""
    assert spec.cdc is not None
    keys = spec.targets[0].keys
    timed = any(target.mode == "scd2" for target in spec.targets)
    return SourceDecoders(
        tuple(
            ChangeDecoder(spec.cdc, payload, tuple(columns), keys, timed)
            for payload in payloads
            if payload is not None
        )
    )


def stage_changes(
    spec: StreamSpec,
    batch: BatchName,
    incoming: IncomingBatch,
    decoders: SourceDecoders,
    columns: Sequence[ColumnSpec],
    sinks: Sequence[StreamSink],
) -> CountMessages:
    """Stage the batch in every sink; a small batch in this process, others in Spark's tasks."""
    import pyarrow.compute as pc
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    tables = [sink for sink in sinks if isinstance(sink, TableSink)]
    messages = incoming.small_batch()
    if messages is not None:
        counts, changes = MessageCounts(), list["pa.RecordBatch"]()
        for part in messages:
            for own, decoded in decoders.decode(part):
                counts += count_messages(own, decoded)
                changes.append(decoded.rows)
        truncates = sum(pc.sum(pc.equal(part[CHANGE_OP], TRUNCATE_ROWS)).as_py() or 0 for part in changes)
        for sink in tables:
            sink.stage_batches(batch, _folder(spec, sink, columns).fold_batch(changes))
            if not truncates:
                sink.expect_no_truncates()
        return lambda: counts
    decoded_frame = decode_frame(
        incoming, decoders, (*columns, *CHANGE_COLUMNS), strict=spec.on_error == "fail"
    )
    decoded_frame, seen = count_rows(decoded_frame, REASON)
    rows, truncates = decoded_frame.where(F.col(REASON).isNull()).drop(REASON), Observation()
    is_truncate = F.when(F.col(CHANGE_OP) == TRUNCATE_ROWS, 1)
    rows = rows.observe(truncates, F.count(is_truncate).alias("count"))
    for sink in tables:
        sink.stage_rows(batch, _folder(spec, sink, columns).fold_frame(rows))
        if not truncates.get["count"]:
            sink.expect_no_truncates()
    return seen


def _folder(spec: StreamSpec, sink: TableSink, columns: Sequence[ColumnSpec]) -> ChangeFolder:
    assert spec.cdc is not None
    names = tuple(column.name for column in columns)
    types = tuple(column.type for column in columns)
    folder = ChangeLister if sink.table.keeps_versions else ChangeFolder
    return folder(sink.table, sink.plan.target.keys, names, spec.cdc.delete_mode == "soft", types)
