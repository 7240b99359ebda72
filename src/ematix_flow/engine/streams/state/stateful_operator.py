"""What a window, a session or a join of a running stream does with each batch, and with the clock.

A batch changes the state first, and then its results go to the targets. A tick is a load without new rows:
the clock or the end of a run closes what is open. It is described in the state before it begins, so that an
interrupted tick is repeated with the same rows.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow import fault_points
from ematix_flow.engine.streams.state.progress import NEVER, Progress, lowest_active
from ematix_flow.engine.streams.state.state_file import FORMAT, StateFile
from ematix_flow.engine.streams.state.status import StateStatus, remove_status, write_status
from ematix_flow.errors import FlowError
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.windows import LateData, StateStore, Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.engine.streams.state.mirror import StateMirror

_log = logging.getLogger(__name__)
SOURCE = internal_name("source")  # the number of a row's source, if the stream has several
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
    highest: tuple[int | None, ...] = ()  # event time in microseconds, of each source


@dataclass(frozen=True)
class StateReport:
    """The state after a batch, for metrics."""

    rows: int
    bytes: int
    watermark: float | None  # seconds since 1970


@dataclass(frozen=True)
class OpenRows:
    """The rows of the state, and the watermark at which the next of them is due."""

    rows: int = 0
    next_due: int | None = None


class StatefulOperator(ABC):
    """``folder`` holds the state, and scratch files of the current batch.

    ``retained_ms`` is how long a closed window takes late rows.
    """

    output: tuple[ColumnSpec, ...]  # of the rows for the targets
    late_data: LateData
    late_reason: str  # why a late row became a dead letter

    def __init__(
        self,
        spec: StreamSpec,
        folder: Path,
        definition: Mapping[str, Any],
        retained_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``definition`` is what the state's tables depend on. Other options may change with a state."""
        self.spec, self.folder, self._clock = spec, folder, clock
        self.sources = max(1, len(spec.sources))
        self.watermark = spec.watermark or Watermark()
        self.retained = retained_ms * 1000
        self.store = spec.state_store or StateStore()
        self.file = StateFile(folder, in_memory=self.store.kind == "in_memory")
        self.mirror: StateMirror | None = None
        self._is_sealed = True  # the mirror has Spark's commit of the last batch
        self.file.require_definition(definition)
        self._opened_version = self.file.last_version()  # its batch may come again
        self.counts = BatchCounts()
        self._last_rows = [clock()] * self.sources  # when the last rows of each source came
        self.open = OpenRows()

    # -------------------------------------------------------------- what an operator decides

    @abstractmethod
    def check_rows(self, rows: DataFrame) -> None:
        """Compute on these rows and forget them. Raises what a row makes fail."""

    @abstractmethod
    def load_batch(self, batch: int, rows: DataFrame) -> DataFrame:
        """Add a batch to the state and return the rows for the targets.

        Rows have the column `SOURCE` if the stream has several sources.
        """

    @abstractmethod
    def late_rows(self) -> Iterator[str]:
        """The late rows of the last batch as JSON, always in the same order."""

    @abstractmethod
    def load_version(
        self, spark: SparkSession, version: int, progress: Progress, *, flush: bool
    ) -> DataFrame | None:
        """Advance the state without rows and return the rows for the targets; None if there are none."""

    # -------------------------------------------------------------- what all of them share

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def close(self) -> None:
        self.file.close()
        if self.store.kind == "in_memory":
            remove_status(self.folder)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def publish(self) -> None:
        """Mirror the newest version and describe it in a file. Called before its rows reach a target."""
        status = StateStatus(
            stream=self.spec.name,
            query=self.folder.parent.name,
            store=self.store.kind,
            operator=str(self.spec.window) if self.spec.window is not None else "join",
            format=FORMAT,
            version=self.file.last_version(),
            rows=self.open.rows,
            bytes=self.file.size_bytes(),
            watermark=self.file.progress().watermark,
            border=self.file.progress().border,
            next_due=self.open.next_due,
            changed_at=time.time(),
        )
        if self.mirror is not None:
            self._is_sealed = False
            self.mirror.publish(self.file, status.to_text())
            fault_points.point("stream.state_mirrored")
        write_status(self.folder, status)

    def seal(self, committed: int) -> None:
        """Mirror Spark's commit of the last batch, so that a machine without the folder does not repeat it.

        ``committed`` is the newest batch that Spark has committed.
        """
        last = self.file.last_version()
        if self.mirror is None or self._is_sealed or last is None or last // _TICKS > committed:
            return
        self._is_sealed = True
        try:
            self.mirror.seal()
        except FlowError as error:  # the targets have everything; those with a ledger know a repeated batch
            _log.warning("the state store lacks the last commit of %s: %s", self.spec.name, error.what)

    def report(self) -> StateReport:
        progress = self.file.progress()
        watermark = None if progress.watermark is None else progress.watermark / 1e6
        return StateReport(self.open.rows, self.file.size_bytes(), watermark)

    def mark_arriving(self, sources: Sequence[int]) -> None:
        """Count the time without rows of these sources from now on: the next batch has messages of them."""
        for number in sources:
            self._last_rows[number] = self._clock()

    def mark_active(self) -> None:
        """Count the time without rows from now on: a batch is loaded."""
        for number in range(self.sources):
            if self.sources == 1 or self._has_rows(number):
                self._last_rows[number] = self._clock()

    def _has_rows(self, source: int) -> bool:
        return source < len(self.counts.highest) and self.counts.highest[source] is not None

    def progress_after(self, version: int, before: Progress) -> Progress:
        """The progress after the batch that was just counted.

        A batch that comes again has the progress of its first time, also if the watermark's options changed.
        """
        if version == self._opened_version:
            return self.file.progress_at(version)
        highest = self.counts.highest
        if all(seen is None for seen in highest):
            return before
        return before.after_rows(highest, self._lateness, self.retained)

    @property
    def _lateness(self) -> int:
        return (self.watermark.lateness_ms or 0) * 1000

    # -------------------------------------------------------------- loads without new rows

    def is_tick_due(self) -> bool:
        """Whether the clock closes something, because sources brought no rows for ``source_idleness_ms``."""
        return self.open.next_due is not None and self._clock_progress()[1] >= self.open.next_due

    def has_version(self, batch: int) -> bool:
        """Whether the state already has this batch, which comes again."""
        last = self.file.last_version()
        return last is not None and last >= state_version(batch)

    def begin_tick(self, batch: int, *, flush: bool) -> int:
        """Describe the next tick after this batch and return its number.

        ``flush`` loads everything that is open as it is now. It stays open.
        """
        last = self.file.last_version() or 0
        tick = max(0, last - state_version(batch)) + 1
        idle, watermark = ([], None) if flush else self._clock_progress()
        described = {
            "version": state_version(batch, tick),
            "flush": flush,
            "watermark": watermark,
            "idle": idle,
        }
        if self.file.fact(_FINISHED) == str(described["version"]):  # of a tick that changed no state
            self.file.store_fact(_FINISHED, "")
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
        """The rows that the described tick loads; None if there are none."""
        version = state_version(batch, tick)
        described = json.loads(self.file.fact(_TICK) or "{}")
        assert described["version"] == version
        progress = self.file.progress_before(version)
        if described["watermark"] is not None:
            progress = progress.with_idle(described.get("idle", ()))
            progress = progress.advance(described["watermark"], self.retained)
        rows = self.load_version(spark, version, progress, flush=described["flush"])
        self.publish()
        return rows

    def finish_tick(self, batch: int, tick: int) -> None:
        """Record that every target has the rows of the tick."""
        self.file.store_fact(_FINISHED, str(state_version(batch, tick)))

    def _clock_progress(self) -> tuple[Sequence[int], int]:
        """The sources that are idle by now, and the watermark that does not wait for them.

        If all are idle, the watermark goes on with the clock.
        """
        idle_ms, progress = self.watermark.source_idleness_ms, self.file.progress()
        if idle_ms is None or progress.highest is None:
            return (), NEVER
        quiet = [self._clock() - last for last in self._last_rows]
        idle = [number for number, seconds in enumerate(quiet) if seconds * 1000 >= idle_ms]
        if not idle:
            return (), NEVER
        if len(idle) == self.sources:
            return idle, progress.highest + int(min(quiet) * 1e6) - self._lateness
        return idle, lowest_active(progress.with_idle(idle).sources) - self._lateness
