"""The window of a running stream: takes the rows of each batch, returns the windows that it closes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow import fault_points
from ematix_flow.engine.streams.batch_frames import quote
from ematix_flow.engine.streams.windows.accumulators import EVENT, build_accumulators
from ematix_flow.engine.streams.windows.state_file import Progress, StateFile
from ematix_flow.engine.streams.windows.values import (
    event_micros,
    from_state,
    required,
    spark_state_type,
    state_type,
    to_state,
)
from ematix_flow.engine.streams.windows.window_state import (
    START,
    ClosedWindows,
    OpenWindows,
    WindowState,
    expired_sql,
)
from ematix_flow.plan.window_columns import window_columns
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.windows import Watermark
from ematix_flow.state.private_files import make_private_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TICK = "tick"  # the fact that describes the last tick
_FINISHED = "finished tick"
_TICKS = 1_000_000  # versions between two batches


def state_version(batch: int, tick: int = 0) -> int:
    """The version of the state after a batch, or after a tick: a load that follows it without new rows."""
    return batch * _TICKS + tick


@dataclass(frozen=True)
class BatchCounts:
    """What was seen in the rows of a batch."""

    late: int = 0
    highest: int | None = None  # event time in microseconds


@dataclass(frozen=True)
class StateReport:
    """The state after a batch, for metrics."""

    rows: int
    bytes: int
    watermark: float | None  # seconds since 1970


class WindowOperator:
    """``columns`` are those that the window reads: of the messages, or of ``transform_sql``."""

    def __init__(
        self,
        spec: StreamSpec,
        columns: tuple[ColumnSpec, ...],
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert spec.window is not None
        self.spec, self.window, self._folder, self._clock = spec, spec.window, folder, clock
        self.watermark = spec.watermark or Watermark()
        self._types: dict[str, DataType] = {column.name: column.type for column in columns}
        self.output = window_columns(self.window, columns, spec.where)
        self._accumulators = build_accumulators(self.window.aggregations, self._types)
        in_memory = spec.state_store is not None and spec.state_store.kind == "in_memory"
        self.file = StateFile(None if in_memory else folder)
        self.file.require_definition(self._definition())
        group_types = [state_type(self._types[name]) for name in self.window.group_by]
        self.state = WindowState(self.file, self.window, group_types, self._accumulators)
        self.counts, self._late = BatchCounts(), None
        self._last_rows = clock()  # when the last rows came
        self._open: OpenWindows = self.state.open_windows()

    _late: DataFrame | None

    def close(self) -> None:
        self.file.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def check_rows(self, rows: DataFrame) -> None:
        """Compute the aggregates of these rows and forget them. Raises what a row makes fail."""
        self._aggregate(self._with_event_time(rows), None, "rehearsal")

    def load_batch(self, batch: int, rows: DataFrame) -> DataFrame:
        """Add a batch to the state and return the rows of the windows that it closes."""
        version = state_version(batch)
        before = self.file.progress_before(version)
        timed = self._with_event_time(rows)
        files, self.counts = self._aggregate(timed, before.border, "batch")
        self._late = timed.where(self._is_late(before.border)) if self.counts.late else None
        closed = self._advance(version, self._progress_after(before), files)
        return self._output_rows(rows.sparkSession, closed)

    def late_rows(self) -> Iterator[str]:
        """The late rows of the last batch as JSON, always in the same order."""
        if self._late is None:
            return
        from pyspark.sql import functions as F

        columns = [F.col(quote(name)) for name in self._late.columns if name != EVENT]
        texts = self._late.select(F.to_json(F.struct(*columns)).alias("row"))
        for row in texts.orderBy("row").toLocalIterator():
            yield row["row"]

    def report(self) -> StateReport:
        progress = self.file.progress()
        watermark = None if progress.watermark is None else progress.watermark / 1e6
        return StateReport(self._open.rows, self.file.size_bytes(), watermark)

    # -------------------------------------------------------------- loads without new rows

    def is_tick_due(self) -> bool:
        """Whether the clock closes a window, because no rows have come for ``source_idleness_ms``."""
        return self._open.next_end is not None and self._clock_watermark() >= self._open.next_end

    def begin_tick(self, batch: int, *, flush: bool) -> int:
        """Describe the next tick after this batch and return its number.

        ``flush`` loads all open windows as they are. They stay open.
        """
        last = self.file.last_version() or 0
        tick = max(0, last - state_version(batch)) + 1
        described = {
            "version": state_version(batch, tick),
            "flush": flush,
            "watermark": None if flush else self._clock_watermark(),
        }
        self.file.store_fact(_TICK, json.dumps(described))
        return tick

    def unfinished_tick(self) -> tuple[int, int] | None:
        """The batch and number of a tick that the state may have and the targets may lack."""
        described = self.file.fact(_TICK)
        version = json.loads(described)["version"] if described is not None else None
        if version is None or self.file.fact(_FINISHED) == str(version):
            return None
        last = self.file.last_version() or 0
        return divmod(version, _TICKS) if last <= version else None

    def load_tick(self, spark: SparkSession, batch: int, tick: int) -> DataFrame | None:
        """The rows of the windows that the described tick loads; None if there are none."""
        version = state_version(batch, tick)
        described = json.loads(self.file.fact(_TICK) or "{}")
        assert described["version"] == version
        before = self.file.progress_before(version)
        progress = before
        if described["watermark"] is not None:
            progress = before.advance(before.highest, described["watermark"], self._retained)
        closed = self._advance(version, progress, [], flush=described["flush"])
        return None if closed.file is None else self._output_rows(spark, closed)

    def mark_active(self) -> None:
        """Count the time without rows from now on: a batch is loaded."""
        self._last_rows = self._clock()

    def finish_tick(self, batch: int, tick: int) -> None:
        """Record that every target has the rows of the tick."""
        self.file.store_fact(_FINISHED, str(state_version(batch, tick)))

    def _clock_watermark(self) -> int:
        """The watermark as the clock moves it while no rows come; the lowest number if it does not."""
        idle_ms = self.watermark.source_idleness_ms
        highest = self.file.progress().highest
        quiet = self._clock() - self._last_rows
        if idle_ms is None or highest is None or quiet * 1000 < idle_ms:
            return -(2**62)
        return highest + int(quiet * 1e6) - self._lateness

    # -------------------------------------------------------------- one batch

    @property
    def _retained(self) -> int:
        return self.window.reopens_for * 1000

    @property
    def _lateness(self) -> int:
        return (self.watermark.lateness_ms or 0) * 1000

    def _progress_after(self, before: Progress) -> Progress:
        seen = [highest for highest in (before.highest, self.counts.highest) if highest is not None]
        if not seen:
            return before
        return before.advance(max(seen), max(seen) - self._lateness, self._retained)

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
        return expired_sql(self.window, self._newest_start, border)

    def _aggregate(self, rows: DataFrame, border: int | None, name: str) -> tuple[list[str], BatchCounts]:
        """Write the batch's aggregates of each window and group into files."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observed, groups = Observation(), self.window.group_by
        rows = rows.observe(
            observed,
            F.expr(f"count_if({self._is_late(border)})").alias("late"),
            F.expr(f"max({EVENT})").alias("highest"),
        )
        keys = [F.col(START)] + [
            F.expr(to_state(column, self._types[column])).alias(f"g{n}") for n, column in enumerate(groups)
        ]
        aggregates = [
            F.expr(field.batch).alias(field.name) for each in self._accumulators for field in each.fields
        ]
        folder = self._scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        grouped = self._in_windows(rows).groupBy(*keys).agg(*aggregates)
        grouped.write.parquet(str(folder), compression="none")
        found = observed.get
        files = sorted(str(path) for path in folder.glob("*.parquet"))
        return files, BatchCounts(int(found["late"]), found["highest"])

    def _in_windows(self, rows: DataFrame) -> DataFrame:
        """The rows with the start of their window, once for each window that holds the row."""
        from pyspark.sql import functions as F

        duration, hop = self.window.duration_ms * 1000, self.window.hop * 1000
        if hop == duration:
            return rows.withColumn(START, F.expr(self._newest_start))
        first = f"{self._newest_start} - {hop * (-(-duration // hop) - 1)}"
        starts = f"explode(sequence({first}, {self._newest_start}, {hop}L))"
        return rows.withColumn(START, F.expr(starts)).where(f"{START} + {duration} > {EVENT}")

    def _advance(
        self, version: int, progress: Progress, files: list[str], *, flush: bool = False
    ) -> ClosedWindows:
        make_private_folders(self._scratch)
        for loaded in self._scratch.glob("*.parquet"):  # every target has them
            loaded.unlink()
        closed = self.state.advance(
            version, progress, batch=files, output=self._scratch / f"{version}.parquet", flush=flush
        )
        self._open = self.state.open_windows()
        fault_points.point("stream.state_committed")
        return closed

    def _output_rows(self, spark: SparkSession, closed: ClosedWindows) -> DataFrame:
        stored = [START, "window_end", *(f"g{n}" for n in range(len(self.window.group_by)))]
        stored += [*(f"r{n}" for n in range(len(self._accumulators))), "revision"]
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

    @property
    def _scratch(self) -> Path:
        return self._folder / "scratch"

    def _definition(self) -> dict[str, object]:
        """What the state's tables depend on. Other options can change while the stream has a state."""
        window = self.window
        return {
            "kind": window.kind,
            "duration_ms": window.duration_ms,
            "hop_ms": window.hop_ms,
            "group_by": [[name, str(self._types[name])] for name in window.group_by],
            "aggregations": [
                [each.agg, each.column, str(self._types[each.column]) if each.column else None]
                for each in window.aggregations
            ],
        }
