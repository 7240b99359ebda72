"""The join of a running stream: takes the rows of each batch, returns the pairs that they complete."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow import fault_points
from ematix_flow.engine.streams.batch_frames import quote
from ematix_flow.engine.streams.joins.decoding import LETTERS, side_columns
from ematix_flow.engine.streams.joins.join_state import EVENT, JoinedRows, JoinState
from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.stateful_operator import (
    SOURCE,
    BatchCounts,
    StatefulOperator,
    state_version,
)
from ematix_flow.engine.streams.state.values import (
    event_micros,
    from_state,
    spark_state_type,
    state_type,
    to_state,
)
from ematix_flow.plan.join_columns import join_columns
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.state.private_files import make_private_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SIDE = "side"  # the folder of a batch's rows has a part for each side


class JoinOperator(StatefulOperator):
    """``sides`` are the columns of the left and of the right source."""

    late_reason = "the row is late: the rows that it could be joined with are already removed"

    def __init__(
        self,
        spec: StreamSpec,
        sides: Sequence[Sequence[ColumnSpec]],
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.join is not None
        self.join, self.sides = spec.join, tuple(tuple(columns) for columns in sides)
        self.late_data = self.join.late_data
        self._numbers = spec.joined_sources
        self.output = join_columns(self.join, self.sides, spec.where)
        super().__init__(spec, folder, self._definition(spec), self.join.reopens_for, clock)
        types = [[state_type(column.type) for column in columns] for columns in self.sides]
        places = [{column.name: n for n, column in enumerate(columns)} for columns in self.sides]
        keys = [[place[name] for name in names] for place, names in zip(places, self.join.keys, strict=True)]
        self.state = JoinState(self.file, self.join, (types[0], types[1]), (keys[0], keys[1]))
        self._joined = JoinedRows()
        self._spark: SparkSession | None = None  # of the last batch
        self.open = self.state.waiting_rows()

    def check_rows(self, rows: DataFrame) -> None:
        """Compute what the state would get. Raises what a row makes fail."""
        self._for_state(rows).write.format("noop").mode("overwrite").save()

    def load_batch(self, batch: int, rows: DataFrame) -> DataFrame:
        """Add a batch to the state and return the pairs that it completes, and rows without a partner."""
        version, self._spark = state_version(batch), rows.sparkSession
        before = self.file.progress_before(version)
        files, highest = self._write_batch(rows)
        self.counts = BatchCounts(0, highest)
        self._joined = self._advance(version, self.progress_after(version, before), files)
        self.counts = BatchCounts(self._joined.late, highest)
        return self._output_rows(rows.sparkSession, self._joined)

    def late_rows(self) -> Iterator[str]:
        """The late rows of the last batch as JSON, always in the same order."""
        from pyspark.sql import functions as F

        for place, file in enumerate(self._joined.late_files):
            if file is None or self._spark is None:
                continue
            columns = self.sides[place]
            rows = _read(self._spark, file, side_columns(LETTERS[place], columns), columns)
            texts = rows.select(F.to_json(F.struct("*")).alias("row"))
            for row in texts.orderBy("row").toLocalIterator():
                yield row["row"]

    def load_version(
        self, spark: SparkSession, version: int, progress: Progress, *, flush: bool
    ) -> DataFrame | None:
        """Load the rows that found no partner in time.

        The end of a run loads nothing: a row that waits can find its partner in the next run.
        """
        if flush:
            return None
        joined = self._advance(version, progress, ([], []))
        return None if joined.file is None else self._output_rows(spark, joined)

    # -------------------------------------------------------------- one batch

    def _for_state(self, rows: DataFrame) -> DataFrame:
        """The rows as the state keeps them, with their event time and the letter of their side."""
        from pyspark.sql import functions as F

        left, right = (
            event_micros(f"{letter}{n}", column.type, column.name)
            for letter, columns in zip(LETTERS, self.sides, strict=True)
            for n, column in enumerate(columns)
            if column.name == self.join.event_time_column
        )
        is_left = f"{SOURCE} = {self._numbers[0]}"
        kept = [
            F.expr(to_state(name, column.type)).alias(name)
            for letter, columns in zip(LETTERS, self.sides, strict=True)
            for name, column in zip(side_columns(letter, columns), columns, strict=True)
        ]
        return rows.select(
            F.expr(f"CASE WHEN {is_left} THEN {left} ELSE {right} END").alias(EVENT),
            F.expr(f"CASE WHEN {is_left} THEN 'l' ELSE 'r' END").alias(_SIDE),
            *kept,
        )

    def _write_batch(self, rows: DataFrame) -> tuple[tuple[list[str], list[str]], tuple[int | None, ...]]:
        """Write the rows of each side into files. Returns them, and the highest event time of each source."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observed, folder = Observation(), self.scratch / "batch"
        highest = [
            F.expr(f"max(CASE WHEN {_SIDE} = '{letter}' THEN {EVENT} END)").alias(letter)
            for letter in LETTERS
        ]
        shutil.rmtree(folder, ignore_errors=True)
        kept = self._for_state(rows).observe(observed, *highest)
        kept.write.partitionBy(_SIDE).parquet(str(folder), compression="none")
        found = observed.get
        by_number = dict(zip(self._numbers, (found[letter] for letter in LETTERS), strict=True))
        left, right = (
            sorted(str(path) for path in folder.glob(f"{_SIDE}={letter}/*.parquet")) for letter in LETTERS
        )
        return (left, right), tuple(by_number.get(number) for number in range(self.sources))

    def _advance(
        self, version: int, progress: Progress, files: tuple[Sequence[str], Sequence[str]]
    ) -> JoinedRows:
        make_private_folders(self.scratch)
        for loaded in self.scratch.glob("*.parquet"):  # every target has them
            loaded.unlink()
        joined = self.state.advance(
            version, progress, batch=files, output=self.scratch / f"{version}.parquet"
        )
        self.open = joined.waiting
        fault_points.point("stream.state_committed")
        return joined

    def _output_rows(self, spark: SparkSession, joined: JoinedRows) -> DataFrame:
        stored = [name for n, letter in enumerate(LETTERS) for name in side_columns(letter, self.sides[n])]
        return _read(spark, joined.file, stored, self.output)

    def _definition(self, spec: StreamSpec) -> dict[str, object]:
        join = self.join
        left, right = ([[each.name, str(each.type)] for each in columns] for columns in self.sides)
        return {
            "join": join.kind,
            "sources": [spec.sources[number].query for number in self._numbers],
            "keys": [list(names) for names in join.keys],
            "time bounds": [join.min_delta, join.max_delta],
            "event_time_column": join.event_time_column,
            "columns of the left source": left,
            "columns of the right source": right,
        }


def _read(
    spark: SparkSession, file: Path | None, stored: Sequence[str], columns: Sequence[ColumnSpec]
) -> DataFrame:
    """The rows of a file that the state has written; no rows without a file."""
    named = list(zip(stored, columns, strict=True))
    ddl = ", ".join(f"{name} {spark_state_type(column.type)}" for name, column in named)
    frame = spark.createDataFrame([], ddl) if file is None else spark.read.schema(ddl).parquet(str(file))
    return frame.selectExpr(
        *(f"{from_state(name, column.type)} AS {quote(column.name)}" for name, column in named)
    )
