"""A streaming query of Spark: it follows the sources, loads each batch, and stops between two batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow import fault_points
from ematix_flow.backends.spark_sql.session_settings import session_settings
from ematix_flow.engine.streams.batch_frames import union_messages
from ematix_flow.engine.streams.batch_gate import BatchGate
from ematix_flow.engine.streams.batch_loader import BatchLoader
from ematix_flow.engine.streams.batch_report import BatchReport
from ematix_flow.engine.streams.checkpoint import Checkpoint, join_positions
from ematix_flow.engine.streams.followed_sources import FollowedSource
from ematix_flow.engine.streams.incoming_batch import IncomingBatch
from ematix_flow.engine.streams.lag import LagWatch, ReportLag
from ematix_flow.engine.streams.open_stream import StreamStopping
from ematix_flow.engine.streams.sinks import BatchName
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.1
_log = logging.getLogger(__name__)
_start_lock = threading.Lock()  # settings belong to the session, so queries start one at a time

MakeLoader = Callable[["DataFrame"], BatchLoader]
RenewLoader = Callable[[BatchLoader, IncomingBatch], BatchLoader]


class StreamQuery:
    """One running query. Without ``loader``, ``make_loader`` makes it from the messages of the first batch.

    ``renew_loader`` gives the loader of each batch: another one when the batch brings other columns.
    """

    def __init__(
        self,
        name: str,
        sources: Sequence[FollowedSource],
        checkpoint: Checkpoint,
        make_loader: MakeLoader,
        renew_loader: RenewLoader,
        *,
        loader: BatchLoader | None = None,
        once: bool,
        idle_pause_ms: int,
        report: Callable[[BatchReport], None],
        alive: Callable[[], None],
        stop: threading.Event,
        lag: ReportLag = lambda lag, unit: None,
        gate: BatchGate | None = None,
    ) -> None:
        self._gate = gate or BatchGate()
        self.name, self.sources, self.checkpoint = name, sources, checkpoint
        self._make_loader, self._renew_loader, self._loader = make_loader, renew_loader, loader
        self._ticks_are_complete = False  # no tick of an earlier run is unfinished
        self._load_lock = threading.RLock()  # one load at a time, with or without new messages
        self._once, self._idle_pause_ms, self._report = once, idle_pause_ms, report
        self._heartbeat = alive
        self._stopping, self._ending = stop, threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._failure: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._lag = LagWatch(name, sources, lag)
        self._stored_ids: list[dict[str, str]] = []
        self._last_loaded = -1  # the newest batch that every target holds

    _loader: BatchLoader | None

    def start(self, spark: SparkSession, failure: Callable[[Exception], FlowError]) -> None:
        """Start the query. ``failure`` translates exceptions of Spark and of batches into our errors."""
        self._translate = failure
        settings = {
            "spark.sql.streaming.pollingDelay": f"{max(self._idle_pause_ms, 1)}ms",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }
        try:
            with _start_lock, session_settings(spark, settings):
                frame = union_messages([source.frame(spark) for source in self.sources])
                context = copy_context()  # Spark calls from its own thread, which has no context variables
                writer = frame.writeStream.queryName(self.name).foreachBatch(
                    lambda batch, number: context.copy().run(self._load_batch, batch, number)
                )
                writer = writer.option("checkpointLocation", str(self.checkpoint.folder))
                if self._once and not self._waits_for_receivers:
                    writer = writer.trigger(availableNow=True)
                self._query = writer.start()
        except FlowError:
            raise
        except Exception as error:
            raise failure(error) from error
        done = self.checkpoint.last_committed()
        self._lag.start(self.checkpoint.positions(done) if done is not None else ())

    @property
    def is_idle(self) -> bool:
        """Whether no batch is running."""
        return self._idle.is_set()

    @property
    def _waits_for_receivers(self) -> bool:
        """Whether receivers, not Spark, tell when all messages are there."""
        return any(source.is_drained() is not None for source in self.sources)

    def wait(self) -> None:
        """Wait for the end of the query: it was stopped, or everything is loaded. Raises its failure."""
        assert self._query is not None
        query = self._query
        try:
            self._watch(query)
        except FlowError:
            self._ending.set()
            self._end(query)
            raise
        except Exception as error:  # the Java process ended
            raise self._translate(error) from error
        if self._failure is not None:
            if query.isActive:
                query.stop()
            raise self._failure
        problem = query.exception()
        if problem is not None and not self._is_ending:
            raise self._translate(problem) from problem
        if self._once and not self._stopping.is_set():
            self._flush_state()

    def close(self) -> None:
        """Stop measuring the lag and close the sinks."""
        self._lag.stop()
        if self._loader is not None:
            self._loader.close()

    @property
    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._ending.is_set()

    def _watch(self, query: StreamingQuery) -> None:
        while query.isActive and self._failure is None:
            for source in self.sources:
                source.raise_background_error()
            self._heartbeat()
            if not (self._idle.is_set() and self._gate.is_closed()):
                self._advance_clock()
            self._seal_state()
            if self._once and self._waits_for_receivers and self._is_drained():
                self._ending.set()
            if self._is_ending:
                self._end(query)
                return
            self._stopping.wait(_POLL_SECONDS)

    def _seal_state(self) -> None:
        """Let the mirror of the state have Spark's commit of the last batch."""
        if self._loader is None or self._loader.operator is None or not self._idle.is_set():
            return
        with self._load_lock:
            operator, committed = self._loader.operator, self.checkpoint.last_committed()
            if operator is not None and committed is not None:
                operator.seal(committed)

    def _is_drained(self) -> bool:
        return self._idle.is_set() and all(source.is_drained() is not False for source in self.sources)

    def _end(self, query: StreamingQuery) -> None:
        """Stop the query after the current batch and after Spark's commit of it."""
        self._idle.wait()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and query.isActive and self._last_committed() < self._last_loaded:
            time.sleep(0.02)
        query.stop()

    def _last_committed(self) -> int:
        newest = self.checkpoint.last_committed()
        return -1 if newest is None else newest

    # -------------------------------------------------------------- one batch, on a thread of Spark's

    def _load_batch(self, frame: DataFrame, number: int) -> None:
        try:
            self._gate.pass_through(lambda: self._is_ending or self._failure is not None)
            self._idle.clear()
            if self._is_ending or self._failure is not None:
                raise StreamStopping
            with self._load_lock:
                self._load_and_commit(frame, number)
        except BaseException as error:
            if not isinstance(error, StreamStopping) and self._failure is None:
                self._failure = self._translate(error) if isinstance(error, Exception) else error
            if isinstance(error, Exception):
                raise
            raise StreamStopping from error  # Java would wait forever for anything but a plain exception
        finally:
            self._idle.set()

    def _load_and_commit(self, frame: DataFrame, number: int) -> None:
        report = BatchReport(number)
        with report.time_phase("read"):
            after, before = self.checkpoint.positions(number), self.checkpoint.positions_before(number)
            before = before or (None,) * len(after)
            self._verify_resources(after)
            incoming = self._incoming_batch(frame, self.checkpoint.start_positions(number), after)
        if incoming is not None:
            loader = self._renew_loader(self._loader or self._make_loader(incoming.frame), incoming)
            if loader.sinks:  # a loader without sinks only rejects messages
                self._loader = loader
            name = self._batch_name(loader, number, before, after)
            self._complete_tick()
            changed = zip(before, after, strict=True)
            self._tick_before(number, [n for n, (began, ended) in enumerate(changed) if began != ended])
            loader.load(name, incoming, report)
            if loader.operator is not None:
                loader.operator.mark_active()
        fault_points.point("stream.committed")
        with report.time_phase("commit"):
            for source, began, ended in zip(self.sources, before, after, strict=True):
                if ended is not None:
                    source.mark_committed(began, ended)
        fault_points.point("stream.acknowledged")
        self._last_loaded = number
        if incoming is None:  # Spark planned a batch of the spool without messages
            return
        self._report(replace(report, lag=self._lag.after_batch(after), lag_unit=self._lag.unit))

    def _batch_name(
        self,
        loader: BatchLoader,
        number: int,
        before: tuple[str | None, ...],
        after: tuple[str | None, ...],
        tick: int = 0,
    ) -> BatchName:
        return BatchName(
            loader.spec.name,
            self.checkpoint.query_id(),
            number,
            join_positions(self._positions_for_ledger(after)),
            join_positions(self._positions_for_ledger(before)) if any(before) else None,
            tick=tick,
        )

    # -------------------------------------------------------------- loads without new messages

    def _flush_state(self) -> None:
        """Load what a state has at the end of a run that ends by itself."""
        number = self.checkpoint.last_committed()
        if number != self.checkpoint.last_planned():  # a batch comes again at the next start
            return
        if self._loader is not None and self._loader.operator is not None and number is not None:
            with self._load_lock:
                self._complete_tick()
                tick = self._loader.operator.begin_tick(number, flush=True)
                self._load_tick(self._loader, number, tick)

    def _advance_clock(self) -> None:
        """Load what the clock closes while no messages come."""
        if self._loader is None or self._loader.operator is None or not self._idle.is_set():
            return
        with self._load_lock:
            loader, operator = self._loader, self._loader.operator
            if operator is None or (self._ticks_are_complete and not operator.is_tick_due()):
                return
            number = self.checkpoint.last_committed()
            is_settled = number == self.checkpoint.last_planned()  # no batch comes again
            if number is None or not is_settled or not self._waits_for_data():
                return
            self._complete_tick()
            if operator.is_tick_due():
                self._load_tick(loader, number, operator.begin_tick(number, flush=False))

    def _tick_before(self, number: int, arriving: Sequence[int]) -> None:
        """Load what the clock closes while the sources of this batch bring rows and others do not."""
        loader = self._loader
        if len(self.sources) == 1 or loader is None or loader.operator is None or number == 0:
            return
        loader.operator.mark_arriving(arriving)
        if not loader.operator.has_version(number) and loader.operator.is_tick_due():
            self._load_tick(loader, number - 1, loader.operator.begin_tick(number - 1, flush=False))

    def _waits_for_data(self) -> bool:
        """Whether Spark has looked for messages and found none."""
        return self._query is not None and self._query.status["message"] == "Waiting for data to arrive"

    def _complete_tick(self) -> None:
        """Repeat the tick that an earlier run has begun and not finished. Its rows are the same again."""
        operator = self._loader.operator if self._loader is not None else None
        if self._ticks_are_complete or operator is None or self._loader is None:
            return
        unfinished = operator.unfinished_tick()
        if unfinished is not None:
            self._load_tick(self._loader, *unfinished)
        self._ticks_are_complete = True

    def _load_tick(self, loader: BatchLoader, number: int, tick: int) -> None:
        positions = self.checkpoint.positions(number)
        report = BatchReport(number)
        try:
            loader.load_tick(self._batch_name(loader, number, positions, positions, tick), report)
        except FlowError:
            raise
        except Exception as error:
            raise self._translate(error) from error
        if report.rows_written:
            lag = self._lag.after_batch(positions)
            self._report(replace(report, lag=lag, lag_unit=self._lag.unit))

    def _verify_resources(self, after: tuple[str | None, ...]) -> None:
        """Check the topics before a batch is read, and store new ids before the batch is loaded."""
        for source, position in zip(self.sources, after, strict=True):
            source.verify_resources(position)
        known = [dict(source.resource_ids) for source in self.sources]
        if any(known) and known != self._stored_ids:
            self.checkpoint.store_resource_ids(known)
            self._stored_ids = known

    def _positions_for_ledger(self, positions: tuple[str | None, ...]) -> tuple[str | None, ...]:
        return tuple(
            s.position_for_ledger(position) for s, position in zip(self.sources, positions, strict=True)
        )

    def _incoming_batch(
        self, frame: DataFrame, before: tuple[str | None, ...], after: tuple[str | None, ...]
    ) -> IncomingBatch | None:
        if len(self.sources) == 1:
            return self.sources[0].read_batch(frame, before[0], after[0])
        return IncomingBatch(frame, self._max_messages(before, after))

    def _max_messages(self, before: tuple[str | None, ...], after: tuple[str | None, ...]) -> int | None:
        """The most messages that the batch can hold, if every source knows."""
        total = 0
        for source, began, ended in zip(self.sources, before, after, strict=True):
            found = source.max_messages(began, ended)
            if found is None:
                return None
            total += found
        return total
