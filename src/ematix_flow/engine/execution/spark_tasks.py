"""Tasks that run in Spark's Python workers: read a split, cast it to the table, write a part of staging.

Each task returns one row: the part that it wrote for each target, or its error. A part of a task attempt
whose row never arrived is never applied.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow import errors, fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import StagedPart, Staging
from ematix_flow.backends.split import Split
from ematix_flow.engine.execution.progress import count_batches
from ematix_flow.engine.execution.tee import BatchWriter, WriterStopped, tee
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ANSWER_DDL = "answer string"
_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

ArrowFunction = Callable[[Iterable["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


class TaskInput(ABC):
    """Rows that know how to reach the tasks themselves."""

    @abstractmethod
    def map(self, task: ArrowFunction, ddl: str) -> DataFrame:
        """The result of the task for the rows of each partition."""


@dataclass(frozen=True)
class TargetWriter:
    """Writes the rows of a task to the staging of one target, from the watermark ``low`` on."""

    staging: Staging
    table: TableSpec
    progress: str
    low: Watermark | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        part = uuid.uuid4().hex
        written = self.staging.write(part, count_batches(self._conform(batches), self.progress, part))
        fault_points.point("task.staged")
        return written

    def _conform(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            kept = batch if self.low is None else _filter_at_or_after(batch, self.low)
            if kept.num_rows:
                yield cast_batch(kept, self.table, seen)
            seen += kept.num_rows


def copy_splits(
    spark: SparkSession, splits: Sequence[Split], staging: Staging, table: TableSpec, progress: str
) -> tuple[StagedPart, ...]:
    """Copy with one task for each split. The rows go from source to staging without entering the JVM."""
    numbers = spark.range(0, len(splits), 1, len(splits))
    answers = numbers.mapInArrow(_copy_task(list(splits), staging, table, progress), ANSWER_DDL).collect()
    return _decode_parts(answers)


def copy_splits_to_all(
    spark: SparkSession, splits: Sequence[Split], outlets: Sequence[TargetWriter], go_on: bool
) -> list[tuple[StagedPart, ...] | errors.FlowError | None]:
    """Copy with one task for each split to every writer. Returns the parts or the error of each writer.

    Without ``go_on`` an error of one writer stops the others; their result is None. An error of the source is
    raised.
    """
    numbers = spark.range(0, len(splits), 1, len(splits))
    rows = numbers.mapInArrow(_copy_to_all_task(list(splits), list(outlets), go_on), ANSWER_DDL).collect()
    answers = _decode_answers(rows)
    return [_merge_outcomes([answer[index] for answer in answers]) for index in range(len(outlets))]


def stage_frame(
    frame: DataFrame, staging: Staging, table: TableSpec, progress: str
) -> tuple[StagedPart, ...]:
    """Stage a DataFrame with one task for each partition."""
    return _decode_parts(map_in_arrow(frame, _stage_task(staging, table, progress), ANSWER_DDL).collect())


def read_splits(
    spark: SparkSession, splits: Sequence[Split], schema_ddl: str, wanted: TableSpec
) -> DataFrame:
    """The splits of a database as a DataFrame, for Spark SQL."""
    numbers = spark.range(0, len(splits), 1, len(splits))
    return numbers.mapInArrow(_read_task(list(splits), wanted), schema_ddl)


def map_in_arrow(frame: DataFrame, task: ArrowFunction, ddl: str) -> DataFrame:
    """Run a task over a frame with any column names.

    PySpark selects each column by its bare name: a dot or a backtick in it fails, and ``*`` means all
    columns. The columns of such a frame are numbered on the way to the tasks.
    """
    names = frame.columns
    if all(_PLAIN_NAME.fullmatch(name) for name in names):
        return frame.mapInArrow(task, ddl)

    def named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(named, ddl)


def run_tasks(rows: DataFrame | TaskInput | Sequence[pa.RecordBatch], task: ArrowFunction) -> list[str]:
    """Run a task over each partition and return its answers. Rows of this process are one partition."""
    if isinstance(rows, Sequence):
        return [text for batch in task(rows) for text in batch.column(0).to_pylist()]
    mapped = (
        rows.map(task, ANSWER_DDL) if isinstance(rows, TaskInput) else map_in_arrow(rows, task, ANSWER_DDL)
    )
    return [row["answer"] for row in mapped.collect()]


def _copy_task(splits: list[Split], staging: Staging, table: TableSpec, progress: str) -> ArrowFunction:
    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield _write_and_answer(splits[number].read, staging, table, progress)

    return task


def _copy_to_all_task(splits: list[Split], outlets: list[TargetWriter], go_on: bool) -> ArrowFunction:
    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writers: list[BatchWriter] = [outlet.write for outlet in outlets]
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    outcomes = tee(splits[number].read(), writers, go_on=go_on)
                except errors.FlowError as error:
                    yield text_batch(json.dumps(encode_outcome(error)))
                else:
                    yield text_batch(json.dumps([encode_outcome(outcome) for outcome in outcomes]))

    return task


def _stage_task(staging: Staging, table: TableSpec, progress: str) -> ArrowFunction:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _write_and_answer(lambda: batches, staging, table, progress)

    return task


def _read_task(splits: list[Split], wanted: TableSpec) -> ArrowFunction:
    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in splits[number].read():
                    yield cast_batch(rows, wanted)

    return task


def _filter_at_or_after(batch: pa.RecordBatch, low: Watermark) -> pa.RecordBatch:
    """The rows from the watermark on. Nulls stay, so that the load refuses them with an error."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = TableSpec(None, "position", (ColumnSpec(low.column, low.type, nullable=True),))
    marks = cast_batch(batch.select([low.column]), wanted).column(0)
    reached = pc.greater_equal(marks, pa.scalar(low.value, low.type.arrow()))
    return batch.filter(pc.or_kleene(reached, pc.is_null(marks)))


def _write_and_answer(
    read: Callable[[], Iterable[pa.RecordBatch]], staging: Staging, table: TableSpec, progress: str
) -> pa.RecordBatch:
    try:
        answer = encode_outcome(TargetWriter(staging, table, progress).write(read()))
    except errors.FlowError as error:
        answer = encode_outcome(error)
    return text_batch(json.dumps(answer))


def encode_outcome(outcome: StagedPart | BaseException) -> dict[str, Any]:
    if isinstance(outcome, StagedPart):
        return asdict(outcome)
    if isinstance(outcome, WriterStopped):
        return {"stopped": str(outcome)}
    if isinstance(outcome, errors.FlowError):
        words = {"what": outcome.what, "state": outcome.state, "next_step": outcome.next_step}
        return {"error": type(outcome).__name__, **words}
    what = f"an unexpected {type(outcome).__name__}: {outcome}"
    return {"error": "LoadError", "what": what, "state": None, "next_step": None}


def text_batch(text: str) -> pa.RecordBatch:
    """A batch with one text, built from bytes: ``pa.array`` would import pandas, which takes seconds."""
    import pyarrow as pa

    data = text.encode()
    offsets = struct.pack("=ii", 0, len(data))
    column = pa.StringArray.from_buffers(1, pa.py_buffer(offsets), pa.py_buffer(data))
    return pa.RecordBatch.from_arrays([column], names=["answer"])


def _decode_parts(rows: Sequence[Any]) -> tuple[StagedPart, ...]:
    return tuple(StagedPart(**answer) for answer in _decode_answers(rows))


def raise_task_error(answer: str) -> None:
    """Raise the error in a task's answer, if it has one."""
    told_of = json.loads(answer)
    if "error" in told_of:
        raise decode_error(told_of)


def _decode_answers(rows: Sequence[Any]) -> list[Any]:
    """The decoded answers: one part, or a list for several targets. Raises the error of a whole task."""
    answers = [json.loads(row["answer"]) for row in rows]
    for answer in answers:
        if "error" in answer:
            raise decode_error(answer)
    return answers


def _merge_outcomes(
    answers: Sequence[dict[str, Any]],
) -> tuple[StagedPart, ...] | errors.FlowError | None:
    failed = next((answer for answer in answers if "error" in answer), None)
    if failed is not None:
        return decode_error(failed)
    if any("stopped" in answer for answer in answers):
        return None
    return tuple(StagedPart(**answer) for answer in answers)


def decode_error(answer: dict[str, Any]) -> errors.FlowError:
    kind = getattr(errors, answer["error"], errors.LoadError)
    found: errors.FlowError = kind(answer["what"], state=answer["state"], next_step=answer["next_step"])
    return found
