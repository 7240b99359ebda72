"""Shows running streams: live lines in a terminal, plain lines elsewhere, JSON with --log-format json."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ematix_flow.cli.error_report import error_lines
from ematix_flow.cli.json_log import json_stderr
from ematix_flow.cli.terminal import is_terminal, write
from ematix_flow.errors import FlowError
from ematix_flow.observe.run_logging import error_fields, log_event
from ematix_flow.observe.stream_listener import StreamListener
from ematix_probe.control_characters import mask_and_escape

if TYPE_CHECKING:
    from rich.progress import TaskID

SECONDS_BETWEEN_LINES = 10.0


@dataclass
class StreamCounters:
    """The counters of one stream so far."""

    name: str
    batches: int = 0
    last_batch: int | None = None
    rows_read: int = 0
    rows_written: int = 0
    rate: float = 0.0  # rows written a second, in the last batch
    seconds: float = 0.0  # of the last batch
    lag: int | None = None
    lag_unit: str = "messages"
    dead_letters: int = 0
    dropped: int = 0
    quarantined: int = 0  # rows that failed an expectation
    empty: int = 0  # messages without a payload
    restarts: int = 0
    changed: bool = False  # since its last line
    last_line_at: float = 0.0

    def record_batch(
        self,
        number: int,
        read: int,
        written: int,
        seconds: float,
        lag: Mapping[str, int],
        lag_unit: str = "messages",
    ) -> None:
        self.batches += 1
        self.last_batch = number
        self.rows_read += read
        self.rows_written += written
        self.seconds = seconds
        self.rate = written / seconds if seconds > 0 else 0.0
        self.record_lag(lag, lag_unit)
        self.changed = True

    def record_lag(self, lag: Mapping[str, int], lag_unit: str) -> None:
        in_all = max if lag_unit == "milliseconds" else sum  # lags in time do not add up over partitions
        self.lag, self.lag_unit = in_all(lag.values()) if lag else None, lag_unit

    def numbers(self) -> dict[str, int | float]:
        """The counters by name, without those that are zero or unknown."""
        optional = {
            "lag_ms" if self.lag_unit == "milliseconds" else "lag": self.lag,
            "dead_letters": self.dead_letters or None,
            "dropped": self.dropped or None,
            "quarantined": self.quarantined or None,
            "empty": self.empty or None,
            "restarts": self.restarts or None,
        }
        return {
            **({} if self.last_batch is None else {"batch": self.last_batch}),
            "rows_read": self.rows_read,
            "rows_written": self.rows_written,
            "rows_per_second": round(self.rate),
            "batch_seconds": round(self.seconds, 2),
            **{key: value for key, value in optional.items() if value is not None},
        }

    def key_values(self) -> str:
        """The counters as ``batch=12 rows_read=…``, for a log."""
        parts = {"batch": "-", **self.numbers(), "batch_seconds": f"{self.seconds:.2f}"}
        return " ".join(f"{key}={value}" for key, value in parts.items())

    def summary(self) -> str:
        """The counters in words, for a live line."""
        if self.last_batch is None:
            return "waiting for rows"
        parts = [f"{self.rows_written:,} rows", f"{self.rate:,.0f} a second", f"batch {self.last_batch}"]
        if self.lag is not None:
            timed = self.lag_unit == "milliseconds"
            parts.append(f"lag {self.lag / 1000:,.1f} s" if timed else f"lag {self.lag:,}")
        parts.append(f"last {self.seconds:.1f} s")
        if self.dead_letters:
            parts.append(f"{self.dead_letters:,} dead letters")
        if self.dropped:
            parts.append(f"{self.dropped:,} dropped")
        if self.quarantined:
            parts.append(f"{self.quarantined:,} quarantined")
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.restarts:
            parts.append(f"{self.restarts} restart{'' if self.restarts == 1 else 's'}")
        return ", ".join(parts)


class StreamView(StreamListener):
    """Base of the views: counts, and reports failures. Safe to call from any thread."""

    def __init__(self, names: Sequence[str], stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.states = {name: StreamCounters(name) for name in names}
        self._lock = threading.RLock()

    def batch_committed(
        self,
        name: str,
        number: int,
        rows_read: int,
        rows_written: int,
        seconds: float,
        lag: Mapping[str, int],
        lag_unit: str = "messages",
    ) -> None:
        with self._lock:
            self.states[name].record_batch(number, rows_read, rows_written, seconds, lag, lag_unit)
            self.show_state(self.states[name])

    def lag_changed(self, name: str, lag: Mapping[str, int], lag_unit: str) -> None:
        with self._lock:  # shown with the next line, not in a separate line
            self.states[name].record_lag(lag, lag_unit)

    def dead_letters_added(self, name: str, count: int) -> None:
        with self._lock:
            self.states[name].dead_letters += count
            self.states[name].changed = True
            self.show_state(self.states[name])

    def messages_left_out(self, name: str, dropped: int, empty: int) -> None:
        with self._lock:
            self.states[name].dropped += dropped
            self.states[name].empty += empty
            self.states[name].changed = True
            self.show_state(self.states[name])

    def rows_quarantined(self, name: str, count: int) -> None:
        with self._lock:
            self.states[name].quarantined += count
            self.states[name].changed = True
            self.show_state(self.states[name])

    def restarting(self, name: str, error: BaseException, delay: float) -> None:
        with self._lock:
            self.states[name].restarts += 1
            what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
            self.write_stream_line(name, f"failed, restarts in {delay:.1f} s: {what}")

    def failed(self, name: str, error: FlowError) -> None:
        """A stream ended with an error and will not be restarted."""
        with self._lock:
            several = name if len(self.states) > 1 else None
            self.write_line(error_lines(error, self.stream, several))

    def note(self, text: str) -> None:
        with self._lock:
            self.write_line(f"  note: {_escape_lines(text)}")

    def write_stream_line(self, name: str, text: str) -> None:
        """Write one line about a stream."""
        self.write_line(f"{name}: {_escape_lines(text)}")

    def write_line(self, text: str) -> None:
        write(text, self.stream)

    def show_state(self, state: StreamCounters) -> None:
        """Show the changed counters of a stream. Called with the lock held."""

    def tick(self) -> None:
        """Called regularly by the thread that waits for the streams."""

    @contextmanager
    def display(self) -> Iterator[None]:
        """Show the view on the screen within the block."""
        yield


class LineStreamView(StreamView):
    """For a log: a line at the start and at the end, and one every ten seconds if something changed."""

    def started(self, name: str, plan_text: str) -> None:
        with self._lock:
            self.states[name].last_line_at = time.monotonic()
            self.write_stream_line(name, "started")

    def tick(self) -> None:
        with self._lock:
            now = time.monotonic()
            for state in self.states.values():
                if state.changed and now - state.last_line_at >= SECONDS_BETWEEN_LINES:
                    state.changed, state.last_line_at = False, now
                    self.write_stream_line(state.name, state.key_values())

    def stopped(self, name: str) -> None:
        with self._lock:
            self.states[name].changed = False
            self.write_stream_line(name, f"stopped {self.states[name].key_values()}")

    def write_stream_line(self, name: str, text: str) -> None:
        moment = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.write_line(f"{moment} {name}: {_escape_lines(text)}")


class JsonStreamView(LineStreamView):
    """For a log collector: the same lines as JSON objects; with ``quiet`` only final failures."""

    def __init__(self, names: Sequence[str], *, quiet: bool = False) -> None:
        super().__init__(names)
        self._quiet = quiet

    def started(self, name: str, plan_text: str) -> None:
        self.states[name].last_line_at = time.monotonic()
        self._log(logging.INFO, "stream_started", name, "started")

    def restarting(self, name: str, error: BaseException, delay: float) -> None:
        self.states[name].restarts += 1
        what = error.what if isinstance(error, FlowError) else f"{type(error).__name__}: {error}"
        message = f"failed, restarts in {delay:.1f} s: {what}"
        self._log(logging.WARNING, "stream_restarting", name, message, error=error_fields(error))

    def failed(self, name: str, error: FlowError) -> None:
        self._log(logging.ERROR, "stream_failed", name, error.what, error=error_fields(error))

    def stopped(self, name: str) -> None:
        state = self.states[name]
        state.changed = False
        self._log(logging.INFO, "stream_stopped", name, f"stopped: {state.summary()}", **state.numbers())

    def write_stream_line(self, name: str, text: str) -> None:
        state = self.states[name]
        self._log(logging.INFO, "progress", name, state.summary(), **state.numbers())

    def note(self, text: str) -> None:
        if not self._quiet:
            log_event(logging.INFO, "note", text)

    def _log(self, level: int, event: str, name: str, message: str, **fields: Any) -> None:
        if level >= logging.ERROR or not self._quiet:
            log_event(level, event, f"{name}: {message}", pipeline=name, **fields)


class LiveStreamView(StreamView):
    """For a terminal: one line per stream, updated in place."""

    def __init__(self, names: Sequence[str], stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        super().__init__(names, stream)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=self.stream, highlight=False, soft_wrap=True),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=None, detail="starting") for name in names
        }

    @contextmanager
    def display(self) -> Iterator[None]:
        with self._progress:
            yield

    def write_line(self, text: str) -> None:
        from rich.text import Text

        self._progress.console.print(Text.from_ansi(text))

    def started(self, name: str, plan_text: str) -> None:
        with self._lock:
            self.show_state(self.states[name])

    def show_state(self, state: StreamCounters) -> None:
        self._progress.update(self._tasks[state.name], detail=state.summary())

    def failed(self, name: str, error: FlowError) -> None:
        with self._lock:
            self._progress.update(self._tasks[name], visible=False)
            super().failed(name, error)

    def stopped(self, name: str) -> None:
        with self._lock:
            self._progress.update(self._tasks[name], visible=False)
            self.write_stream_line(name, f"stopped: {self.states[name].summary()}")


class QuietStreamView(StreamView):
    """Shows only final failures."""

    def restarting(self, name: str, error: BaseException, delay: float) -> None:
        return None

    def note(self, text: str) -> None:
        return None


def choose_stream_view(
    names: Sequence[str], *, quiet: bool = False, stream: TextIO | None = None
) -> StreamView:
    """The view that fits the output stream, which is stderr by default."""
    stream = sys.stderr if stream is None else stream
    if stream is json_stderr():
        return JsonStreamView(names, quiet=quiet)
    if quiet:
        return QuietStreamView(names, stream)
    return LiveStreamView(names, stream) if is_terminal(stream) else LineStreamView(names, stream)


def _escape_lines(text: str) -> str:
    return mask_and_escape(text, keep="\n")
