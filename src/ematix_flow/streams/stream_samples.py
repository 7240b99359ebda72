"""Samples of a running stream, for charts: one every ten seconds, and one at its end."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ematix_flow.backends.messages.base import LagUnit
from ematix_flow.engine.streams.batch_report import BatchReport
from ematix_flow.errors import FlowError
from ematix_flow.state.runlog.base import warn_once
from ematix_flow.state.samples.base import KEPT_FOR, SampleStore, StreamSample, add_phases
from ematix_flow.state.times import utc_now

SAMPLE_SECONDS = 10.0
_PURGE_SECONDS = 3600.0
_AWAY_SECONDS = 60.0  # after a failure, before the store is tried again
_MOST_PARTITIONS = 50  # of a lag that is stored by partition


class SampleWriter:
    """Adds up what one run of a stream does, and stores it.

    ``write_if_due`` is called by the run's watcher, the rest by the threads of the stream.
    """

    def __init__(self, stream: str, run_id: str, open_store: Callable[[], SampleStore]) -> None:
        self._stream, self._run_id, self._open = stream, run_id, open_store
        self._store: SampleStore | None = None
        self._lock = threading.Lock()
        self._counts = self._no_counts()
        self._present: dict[str, Any] = {"lag": {}, "lag_unit": "messages", "watermark": None}
        self._present |= {"state_rows": None, "state_bytes": None}
        self._due = time.monotonic() + SAMPLE_SECONDS
        self._purge_due = 0.0

    @staticmethod
    def _no_counts() -> dict[str, Any]:
        return {"rows_read": 0, "rows_written": 0, "batches": 0, "dead_letters": 0, "phases": {}}

    def add_batch(self, batch: BatchReport) -> None:
        with self._lock:
            counts = self._counts
            counts["rows_read"] += batch.rows_read
            counts["rows_written"] += sum(batch.rows_written.values())
            counts["batches"] += 1
            counts["dead_letters"] += sum(batch.dead_letters.values())
            counts["phases"] = add_phases((counts["phases"], batch.seconds))
            if batch.state is not None:
                self._present["state_rows"] = batch.state.rows
                self._present["state_bytes"] = batch.state.bytes
                self._present["watermark"] = _format_watermark(batch.state.watermark)
        self.set_lag(batch.lag, batch.lag_unit)

    def set_lag(self, lag: Mapping[str, int], unit: LagUnit) -> None:
        """Of a source with many partitions only one number is stored: the sum, or the longest time."""
        found = dict(lag)
        if len(found) > _MOST_PARTITIONS:
            found = {"all": sum(lag.values()) if unit == "messages" else max(lag.values())}
        with self._lock:
            self._present["lag"], self._present["lag_unit"] = found, unit

    def write_if_due(self, state: str) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SAMPLE_SECONDS
            self._write(state)

    def write_last(self, state: str) -> None:
        """Store the last sample of the run, and close the store."""
        self._write(state)
        if self._store is not None:
            self._store.close()

    def _write(self, state: str) -> None:
        with self._lock:
            counts, self._counts = self._counts, self._no_counts()
            values = {**counts, **self._present, "state": state}
        now = utc_now()
        try:
            if self._store is None:
                self._store = self._open()
            self._store.add(StreamSample(self._stream, self._run_id, now, values))
            if time.monotonic() >= self._purge_due:
                self._purge_due = time.monotonic() + _PURGE_SECONDS
                self._store.purge(now - KEPT_FOR, self._stream)
        except Exception as error:  # no problem of the store stops the stream
            self._due = time.monotonic() + _AWAY_SECONDS
            with self._lock:  # the next sample has the counts of this one too
                self._counts = _add_counts(counts, self._counts)
            what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
            warn_once("samples of streams", f"samples of streams cannot be stored: {what}. Streams go on")


def _add_counts(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    added = {name: one[name] + other[name] for name in one if name != "phases"}
    return {**added, "phases": add_phases((one["phases"], other["phases"]))}


def _format_watermark(seconds: float | None) -> str | None:
    """Return the time as ISO 8601; None if it is unknown or no calendar has it."""
    if seconds is None:
        return None
    try:
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
