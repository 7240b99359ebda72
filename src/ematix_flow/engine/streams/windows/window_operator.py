"""The window of a running stream: takes the rows of each batch, returns the windows that it closes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow import fault_points
from ematix_flow.engine.streams.batch_frames import quote
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
    required,
    spark_state_type,
    state_type,
    to_state,
)
from ematix_flow.engine.streams.windows.accumulators import EVENT, build_accumulators
from ematix_flow.engine.streams.windows.session_state import LATE_AT, ROWS, LateRows, SessionState
from ematix_flow.engine.streams.windows.window_state import START, ClosedWindows, WindowState, expired_sql
from ematix_flow.plan.window_columns import window_columns
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.state.private_files import make_private_folders

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class WindowOperator(StatefulOperator):
    """``columns`` are those that the window reads: of the messages, or of ``transform_sql``."""

    late_reason = "the row is late: its window or session takes no more rows"

    def __init__(
        self,
        spec: StreamSpec,
        columns: tuple[ColumnSpec, ...],
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.window is not None
        self.window, self.late_data = spec.window, spec.window.late_data
        self._types: dict[str, DataType] = {column.name: column.type for column in columns}
        self.output = window_columns(self.window, columns, spec.where)
        super().__init__(spec, folder, self._definition(spec), self.window.reopens_for, clock)
        self._accumulators = build_accumulators(self.window.aggregations, self._types)
        group_types = [state_type(self._types[name]) for name in self.window.group_by]
        state = SessionState if self.window.is_session else WindowState
        self.state = state(self.file, self.window, group_types, self._accumulators)
        self._late = None
        self.open = self.state.open_windows()

    state: WindowState | SessionState
    _late: DataFrame | None

    def check_rows(self, rows: DataFrame) -> None:
        """Compute the aggregates of these rows and forget them. Raises what a row makes fail."""
        self._aggregate(self._with_event_time(rows), None, "rehearsal")

    def load_batch(self, batch: int, rows: DataFrame) -> DataFrame:
        """Add a batch to the state and return the rows of the windows that it closes."""
        version = state_version(batch)
        before = self.file.progress_before(version)
        timed = self._with_event_time(rows)
        files, self.counts = self._aggregate(timed, before.border, "batch")
        closed = self._advance(version, self.progress_after(version, before), files)
        if isinstance(self.state, SessionState):
            self.counts = replace(self.counts, late=self.state.late.rows)
            self._late = self._rows_of_ended_sessions(timed, self.state.late)
        else:
            self._late = timed.where(self._is_late(before.border)) if self.counts.late else None
        return self._output_rows(rows.sparkSession, closed)

    def late_rows(self) -> Iterator[str]:
        """The late rows of the last batch as JSON, always in the same order."""
        if self._late is None:
            return
        from pyspark.sql import functions as F

        columns = [F.col(quote(name)) for name in self._late.columns if name not in (EVENT, SOURCE)]
        texts = self._late.select(F.to_json(F.struct(*columns)).alias("row"))
        for row in texts.orderBy("row").toLocalIterator():
            yield row["row"]

    def load_version(
        self, spark: SparkSession, version: int, progress: Progress, *, flush: bool
    ) -> DataFrame | None:
        closed = self._advance(version, progress, [], flush=flush)
        return None if closed.file is None else self._output_rows(spark, closed)

    # -------------------------------------------------------------- one batch

    def _with_event_time(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        name = self.window.event_time_column
        keys = {key for target in self.spec.targets if target.mode == "merge" for key in target.keys}
        columns = [
            F.expr(required(column)).alias(column)
            if column in keys and column in self.window.group_by
            else F.col(quote(column))
            for column in rows.columns
        ]
        return rows.select(F.expr(event_micros(name, self._types[name])).alias(EVENT), *columns)

    @property
    def _newest_start(self) -> str:
        """Spark SQL: the start of the last window that holds a row."""
        return f"({EVENT} - pmod({EVENT}, {self.window.hop * 1000}))"

    def _is_late(self, border: int | None) -> str:
        """Spark SQL: whether every window of a row takes no more rows."""
        if self.window.is_session:  # the state decides
            return "false"
        return expired_sql(self.window, self._newest_start, border)

    def _aggregate(self, rows: DataFrame, border: int | None, name: str) -> tuple[list[str], BatchCounts]:
        """Write the batch's aggregates of each window and group into files."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observed, groups = Observation(), self.window.group_by
        rows = rows.observe(
            observed,
            F.expr(f"count_if({self._is_late(border)})").alias("late"),
            *self._highest_by_source(),
        )
        keys = [F.col(START)] + [
            F.expr(to_state(column, self._types[column])).alias(f"g{n}") for n, column in enumerate(groups)
        ]
        aggregates = [
            F.expr(field.batch).alias(field.name) for each in self._accumulators for field in each.fields
        ]
        if self.window.is_session:
            aggregates.append(F.count(F.lit(1)).alias(ROWS))
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        grouped = self._in_windows(rows).groupBy(*keys).agg(*aggregates)
        grouped.write.parquet(str(folder), compression="none")
        found = observed.get
        files = sorted(str(path) for path in folder.glob("*.parquet"))
        highest = tuple(found[f"highest{number}"] for number in range(self.sources))
        return files, BatchCounts(int(found["late"]), highest)

    def _highest_by_source(self) -> list[Column]:
        """The highest event time of each source."""
        from pyspark.sql import functions as F

        return [
            F.expr(
                f"max({EVENT})"
                if self.sources == 1
                else f"max(CASE WHEN {SOURCE} = {number} THEN {EVENT} END)"  # observed metrics take no FILTER
            ).alias(f"highest{number}")
            for number in range(self.sources)
        ]

    def _in_windows(self, rows: DataFrame) -> DataFrame:
        """The rows with the start of their window, once for each window that holds the row."""
        from pyspark.sql import functions as F

        if self.window.is_session:  # each time alone: the state knows which of them follow each other
            return rows.withColumn(START, F.col(EVENT))
        duration, hop = self.window.duration_ms * 1000, self.window.hop * 1000
        if hop == duration:
            return rows.withColumn(START, F.expr(self._newest_start))
        first = f"{self._newest_start} - {hop * (-(-duration // hop) - 1)}"
        starts = f"explode(sequence({first}, {self._newest_start}, {hop}L))"
        return rows.withColumn(START, F.expr(starts)).where(f"{START} + {duration} > {EVENT}")

    def _rows_of_ended_sessions(self, rows: DataFrame, late: LateRows) -> DataFrame | None:
        """The rows of the batch that came too late for their sessions."""
        if late.file is None:
            return None
        from pyspark.sql import functions as F

        groups = self.window.group_by
        names = [internal_name(f"g{n}") for n in range(len(groups))]
        kinds = [spark_state_type(self._types[name]) for name in groups]
        fields = zip((LATE_AT, *names), ("bigint", *kinds), strict=True)
        ddl = ", ".join(f"{name} {kind}" for name, kind in fields)
        found = rows.sparkSession.read.schema(ddl).parquet(str(late.file)).alias("late")
        matches = F.col(EVENT) == F.col(f"late.{LATE_AT}")
        for name, other in zip(groups, names, strict=True):
            own = F.expr(to_state(name, self._types[name]))
            matches = matches & own.eqNullSafe(F.col(f"late.{other}"))
        return rows.join(found, matches, "left_semi")

    def _advance(
        self, version: int, progress: Progress, files: list[str], *, flush: bool = False
    ) -> ClosedWindows:
        make_private_folders(self.scratch)
        for loaded in self.scratch.glob("*.parquet"):  # every target has them
            loaded.unlink()
        closed = self.state.advance(
            version, progress, batch=files, output=self.scratch / f"{version}.parquet", flush=flush
        )
        self.open = self.state.open_windows()
        fault_points.point("stream.state_committed")
        return closed

    def _output_rows(self, spark: SparkSession, closed: ClosedWindows) -> DataFrame:
        groups = [f"g{n}" for n in range(len(self.window.group_by))]
        results = [f"r{n}" for n in range(len(self._accumulators))]
        stored = [START, "window_end", *groups, *results, "revision"]
        if self.window.is_session:
            stored = ["first_at", "window_end", "id", *groups, *results, "revision", "merged_into"]
        columns = list(zip(stored, self.output, strict=True))
        ddl = ", ".join(f"{name} {spark_state_type(column.type)}" for name, column in columns)
        frame = (
            spark.createDataFrame([], ddl)
            if closed.file is None
            else spark.read.schema(ddl).parquet(str(closed.file))
        )
        return frame.selectExpr(
            *(f"{from_state(name, column.type)} AS {quote(column.name)}" for name, column in columns)
        )

    def _definition(self, spec: StreamSpec) -> dict[str, object]:
        window = self.window
        several = {"sources": len(spec.sources)} if len(spec.sources) > 1 else {}
        session = {"gap_ms": window.gap_ms} if window.is_session else {}
        return {
            **several,
            "kind": window.kind,
            **session,
            "duration_ms": window.duration_ms,
            "hop_ms": window.hop_ms,
            "group_by": [[name, str(self._types[name])] for name in window.group_by],
            "aggregations": [
                [each.agg, each.column, str(self._types[each.column]) if each.column else None]
                for each in window.aggregations
            ],
        }
