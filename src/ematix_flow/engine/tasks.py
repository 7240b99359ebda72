"""What runs inside Spark's Python workers: read a split, make it fit, write a staging part.

Each task answers with one row: the part it wrote, or the error it met. A part of an attempt whose
answer never arrived is never applied.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow import errors
from ematix_flow.backends.base import Split, StagedPart, Staging
from ematix_flow.backends.conform import conform
from ematix_flow.engine.progress import counted
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ANSWER = "answer string"


ArrowFunction = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


def copy_splits(
    spark: SparkSession, splits: Sequence[Split], staging: Staging, table: TableSpec, progress: str
) -> tuple[StagedPart, ...]:
    """One task a split: the rows go from source to staging without entering the JVM."""
    numbers = spark.range(0, len(splits), 1, len(splits))
    answers = numbers.mapInArrow(_copy_task(list(splits), staging, table, progress), ANSWER).collect()
    return _parts(answers)


def stage_frame(
    frame: DataFrame, staging: Staging, table: TableSpec, progress: str
) -> tuple[StagedPart, ...]:
    """One task a partition of a DataFrame."""
    return _parts(frame.mapInArrow(_stage_task(staging, table, progress), ANSWER).collect())


def read_splits(
    spark: SparkSession, splits: Sequence[Split], schema_ddl: str, wanted: TableSpec
) -> DataFrame:
    """A database's splits as a DataFrame, for Spark SQL to compute on."""
    numbers = spark.range(0, len(splits), 1, len(splits))
    return numbers.mapInArrow(_read_task(list(splits), wanted), schema_ddl)


def _copy_task(splits: list[Split], staging: Staging, table: TableSpec, progress: str) -> ArrowFunction:
    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield _answer(splits[number].read, staging, table, progress)

    return task


def _stage_task(staging: Staging, table: TableSpec, progress: str) -> ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _answer(lambda: batches, staging, table, progress)

    return task


def _read_task(splits: list[Split], wanted: TableSpec) -> ArrowFunction:
    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in splits[number].read():
                    yield conform(rows, wanted)

    return task


def _write(
    batches: Iterable[pa.RecordBatch], staging: Staging, table: TableSpec, progress: str
) -> StagedPart:
    part = uuid.uuid4().hex

    def fitting() -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            yield conform(batch, table, seen)
            seen += batch.num_rows

    return staging.write(part, counted(fitting(), progress, part))


def _answer(
    read: Callable[[], Iterable[pa.RecordBatch]], staging: Staging, table: TableSpec, progress: str
) -> pa.RecordBatch:
    try:
        part = _write(read(), staging, table, progress)
        told: dict[str, Any] = {"part": part.part, "rows": part.rows, "bytes": part.bytes}
    except errors.FlowError as error:
        words = {"what": error.what, "state": error.state, "next_step": error.next_step}
        told = {"error": type(error).__name__, **words}
    return _one_text(json.dumps(told))


def _one_text(text: str) -> pa.RecordBatch:
    """One row of one column, from its bytes: ``pa.array`` would first import pandas, for seconds."""
    import pyarrow as pa

    data = text.encode()
    offsets = struct.pack("=ii", 0, len(data))
    column = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.RecordBatch.from_arrays([column], names=["answer"])


def _parts(rows: Sequence[Any]) -> tuple[StagedPart, ...]:
    answers = [json.loads(row["answer"]) for row in rows]
    for answer in answers:
        if "error" in answer:
            kind = getattr(errors, answer["error"], errors.LoadError)
            raise kind(answer["what"], state=answer["state"], next_step=answer["next_step"])
    return tuple(StagedPart(**answer) for answer in answers)
