"""What runs inside Spark's Python workers: read a split, make it fit, write a staging part.

Each task answers with one row: the part it wrote, or the error it met. A part of an attempt whose
answer never arrived is never applied.
"""

from __future__ import annotations

import json
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

ANSWER = "part string, rows bigint, bytes bigint, error string"


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
    import pyarrow as pa

    try:
        part = _write(read(), staging, table, progress)
        row: list[Any] = [part.part, part.rows, part.bytes, None]
    except errors.FlowError as error:
        row = [None, 0, 0, json.dumps({"type": type(error).__name__, **_words(error)})]
    types = [pa.string(), pa.int64(), pa.int64(), pa.string()]
    arrays = [pa.array([value], type=kind) for value, kind in zip(row, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["part", "rows", "bytes", "error"])


def _words(error: errors.FlowError) -> dict[str, str | None]:
    return {"what": error.what, "state": error.state, "next_step": error.next_step}


def _parts(answers: Sequence[Any]) -> tuple[StagedPart, ...]:
    for answer in answers:
        if answer["error"]:
            raise revive(answer["error"])
    return tuple(StagedPart(a["part"], a["rows"], a["bytes"]) for a in answers)


def revive(text: str) -> errors.FlowError:
    """The error that a task met, as if it had been raised here."""
    told = json.loads(text)
    kind = getattr(errors, told.pop("type"), errors.LoadError)
    revived: errors.FlowError = kind(told["what"], state=told["state"], next_step=told["next_step"])
    return revived
