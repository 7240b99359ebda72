"""The messages or rows of one batch, in each way to have them: as a frame, in tasks, in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ematix_flow.backends.base import Split
from ematix_flow.backends.streams import MESSAGE_DDL
from ematix_flow.engine.streams.few import BYTES, ROWS, Messages, few
from ematix_flow.engine.tasks import ArrowFunction, Mapped, map_in_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TASKS_A_CORE = 2
_UNKNOWN_CORES = 4

Take = Callable[[int], "Messages | None"]


@dataclass(frozen=True)
class Incoming(Mapped):
    """A batch. ``expected`` is how many messages it holds at most, where that is known."""

    frame: DataFrame
    expected: int | None = None
    _taken: list[Messages | None] = field(default_factory=list, init=False, repr=False, compare=False)

    def map(self, task: ArrowFunction, ddl: str) -> DataFrame:
        return map_in_arrow(self.frame, task, ddl)

    def few(self) -> Messages | None:
        """The messages, in this process; None when they are too many or too large. Read once."""
        if not self._taken:
            self._taken.append(self._read_few())
        return self._taken[0]

    def _read_few(self) -> Messages | None:
        return few(self.frame, self.expected)


@dataclass(frozen=True)
class ReadByUs(Incoming):
    """Messages that our tasks read from the source itself: what is made of them is made in the same task.

    ``frame`` is for Spark SQL, which then gets them from such tasks.
    """

    splits: Sequence[Split] = ()
    take: Take | None = field(default=None, repr=False)

    def map(self, task: ArrowFunction, ddl: str) -> DataFrame:
        return numbers(self.frame.sparkSession, self.splits).mapInArrow(_then(self.splits, task), ddl)

    def _read_few(self) -> Messages | None:
        if self.expected is None or self.expected > ROWS or self.take is None:
            return None
        return self.take(BYTES)


def read_by_us(
    spark: SparkSession,
    splits: Sequence[Split],
    expected: int | None,
    take: Take,
    ddl: str = MESSAGE_DDL,
) -> ReadByUs:
    frame = numbers(spark, splits).mapInArrow(_then(splits, None), ddl)
    return ReadByUs(frame, expected, splits, take)


def most_tasks(spark: SparkSession) -> int:
    """Into how many tasks a batch is cut at most."""
    from pyspark.errors import PySparkException

    try:
        cores = spark.sparkContext.defaultParallelism
    except (PySparkException, AttributeError):  # Spark Connect does not tell
        cores = _UNKNOWN_CORES
    return _TASKS_A_CORE * max(1, cores)


def numbers(spark: SparkSession, splits: Sequence[Split]) -> DataFrame:
    """A row and a partition for each split."""
    return spark.range(0, len(splits), 1, max(1, len(splits)))


def _then(splits: Sequence[Split], task: ArrowFunction | None) -> ArrowFunction:
    def read(wanted: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in wanted:
            for number in batch.column(0).to_pylist():
                yield from splits[number].read()

    def fused(wanted: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return read(wanted) if task is None else task(read(wanted))

    return fused


@dataclass(frozen=True)
class _Held(Incoming):
    """Messages that are in this process already."""

    messages: Messages = ()

    def _read_few(self) -> Messages | None:
        return self.messages


def held(spark: SparkSession, messages: Messages, schema: pa.Schema | None = None) -> Incoming:
    """Messages of this process as a batch; with a schema there may be none."""
    import pyarrow as pa

    table = pa.Table.from_batches(messages, schema)
    return _Held(spark.createDataFrame(table), table.num_rows, messages=messages)
