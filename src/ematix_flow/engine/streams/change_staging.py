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
from ematix_flow.spec.tables import CHANGE_OP, CHANGE_POSITION, TRUNCATE_ROWS, ColumnSpec

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
        truncates = [
            position
            for part in changes
            for position in part.filter(pc.equal(part[CHANGE_OP], TRUNCATE_ROWS))[CHANGE_POSITION].to_pylist()
        ]
        for sink in tables:
            sink.stage_batches(batch, _folder(spec, sink, columns, truncates).fold_batch(changes))
            if not truncates:
                sink.expect_no_truncates()
        return lambda: counts
    decoded_frame = decode_frame(
        incoming, decoders, (*columns, *CHANGE_COLUMNS), strict=spec.on_error == "fail"
    )
    decoded_frame, seen = count_rows(decoded_frame, REASON)
    rows, counted = decoded_frame.where(F.col(REASON).isNull()).drop(REASON), Observation()
    is_truncate = F.col(CHANGE_OP) == TRUNCATE_ROWS
    observed = rows.observe(counted, F.count(F.when(is_truncate, 1)).alias("count"))
    for sink in tables:
        sink.stage_rows(batch, _folder(spec, sink, columns).fold_frame(observed))
        if not counted.get["count"]:
            sink.expect_no_truncates()
        elif sink.table.keeps_versions:  # rare: staged once more, because versions depend on the truncates
            found = [row[0] for row in rows.where(is_truncate).select(CHANGE_POSITION).collect()]
            sink.stage_rows(batch, _folder(spec, sink, columns, found).fold_frame(rows))
    return seen


def _folder(
    spec: StreamSpec, sink: TableSink, columns: Sequence[ColumnSpec], truncates: Sequence[str] = ()
) -> ChangeFolder:
    """``truncates`` are the positions of the batch's truncates."""
    assert spec.cdc is not None
    names = tuple(column.name for column in columns)
    types = tuple(column.type for column in columns)
    keys, soft = sink.plan.target.keys, spec.cdc.delete_mode == "soft"
    if sink.table.keeps_versions:
        return ChangeLister(sink.table, keys, names, soft, types, tuple(sorted(truncates)))
    return ChangeFolder(sink.table, keys, names, soft, types)
