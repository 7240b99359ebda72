"""The messages or rows of one batch: as a frame, inside tasks, or in the driver if it is small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import MESSAGE_DDL
from ematix_flow.backends.split import Split
from ematix_flow.engine.execution.spark_tasks import ArrowFunction, TaskInput, map_in_arrow
from ematix_flow.engine.streams.small_batches import MAX_BYTES, MAX_ROWS, Messages, take_small_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TASKS_A_CORE = 2
_UNKNOWN_CORES = 4

TakeMessages = Callable[[int], "Messages | None"]


class IncomingBatch(TaskInput):
    """A batch of a stream. ``expected`` is the most messages that it can hold, if known.

    ``frame`` may be a function, which is called when the frame is needed.
    """

    def __init__(self, frame: DataFrame | Callable[[], DataFrame], expected: int | None = None) -> None:
        self._frame, self.expected = frame, expected
        self._small_batch: list[Messages | None] = []

    @property
    def has_frame(self) -> bool:
        """Whether the frame has been built."""
        return not callable(self._frame)

    @property
    def frame(self) -> DataFrame:
        if callable(self._frame):
            self._frame = self._frame()
        return self._frame

    def map(self, task: ArrowFunction, ddl: str) -> DataFrame:
        return map_in_arrow(self.frame, task, ddl)

    def small_batch(self) -> Messages | None:
        """The messages in this process; None if they are too many or too large. Read once."""
        if not self._small_batch:
            self._small_batch.append(self._read_small_batch())
        return self._small_batch[0]

    def _read_small_batch(self) -> Messages | None:
        return take_small_batch(self.frame, self.expected)


class TaskReadBatch(IncomingBatch):
    """A batch that our tasks read from the source and process in the same task.

    Spark SQL reads the messages in such tasks too, by `frame`. A small batch does not build it: that would
    take longer than the load.
    """

    def __init__(
        self,
        spark: SparkSession,
        splits: Sequence[Split],
        expected: int | None,
        take: TakeMessages,
        ddl: str = MESSAGE_DDL,
    ) -> None:
        numbers = partial(split_numbers, spark, splits)
        super().__init__(lambda: numbers().mapInArrow(_read_then(splits, None), ddl), expected)
        self._numbers, self._splits, self._take = numbers, splits, take

    def map(self, task: ArrowFunction, ddl: str) -> DataFrame:
        return self._numbers().mapInArrow(_read_then(self._splits, task), ddl)

    def _read_small_batch(self) -> Messages | None:
        if self.expected is None or self.expected > MAX_ROWS:
            return None
        return self._take(MAX_BYTES)


def max_tasks(spark: SparkSession) -> int:
    """The most tasks that a batch is split into."""
    from pyspark.errors import PySparkException

    try:
        cores = spark.sparkContext.defaultParallelism
    except (PySparkException, AttributeError):  # Spark Connect does not tell
        cores = _UNKNOWN_CORES
    return _TASKS_A_CORE * max(1, cores)


def split_numbers(spark: SparkSession, splits: Sequence[Split]) -> DataFrame:
    """A row and a partition for each split."""
    return spark.range(0, len(splits), 1, max(1, len(splits)))


def _read_then(splits: Sequence[Split], task: ArrowFunction | None) -> ArrowFunction:
    def read(wanted: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in wanted:
            for number in batch.column(0).to_pylist():
                yield from splits[number].read()

    def read_and_run(wanted: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return read(wanted) if task is None else task(read(wanted))

    return read_and_run


class _DriverBatch(IncomingBatch):
    """A batch whose messages are already in this process."""

    def __init__(self, frame: DataFrame, messages: Messages) -> None:
        super().__init__(frame, sum(batch.num_rows for batch in messages))
        self._messages = messages

    def _read_small_batch(self) -> Messages | None:
        return self._messages


def driver_batch(spark: SparkSession, messages: Messages, schema: pa.Schema | None = None) -> IncomingBatch:
    """A batch of messages of this process. Without messages it needs a schema."""
    import pyarrow as pa

    table = pa.Table.from_batches(messages, schema)
    return _DriverBatch(spark.createDataFrame(table), messages)
