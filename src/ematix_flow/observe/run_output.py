"""The output of a run, kept in memory: its notes and stages, and Python's log records and warnings.

Each run has its own output, even if several run at once: a context variable decides whose a line is. A
thread that a run has started has no such context; its lines belong to the run if only one is active. The
levels of loggers stay as they are.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ematix_flow.state.runlog.records import LONGEST_OUTPUT, bounded_text

_RUN_LOGGER = "ematix_flow.runs"  # a run's listener logs its stages and notes here

_current: ContextVar[RunOutput | None] = ContextVar("ematix_flow_run_output", default=None)
_active: list[RunOutput] = []
_lock = threading.RLock()


class RunOutput:
    """The last lines of a run's output, up to ``most`` characters."""

    def __init__(self, most: int = LONGEST_OUTPUT) -> None:
        self._most, self._size = most, 0
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()

    def add_text(self, text: str, level: str = "INFO") -> None:
        """Add one line with the present time."""
        self.add_line(f"{_format_time(time.time())} {level} {bounded_text(text)}")

    def add_line(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            self._size += len(line) + 1
            while self._size > self._most and len(self._lines) > 1:
                self._size -= len(self._lines.popleft()) + 1

    def text(self) -> str:
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """While the block runs, its log records and warnings are added to this output."""
        token = _current.set(self)
        with _lock:
            if not _active:
                _log_capture.begin()
            _active.append(self)
        try:
            yield
        finally:
            _current.reset(token)
            with _lock:
                _active.remove(self)
                if not _active:
                    _log_capture.end()


def _output_of_caller() -> RunOutput | None:
    own = _current.get()
    if own is not None:
        return own
    with _lock:
        return _active[0] if len(_active) == 1 else None


class _LogCapture(logging.Handler):
    """Receives all records of Python's logging while a run is active."""

    def __init__(self) -> None:
        super().__init__()
        self._form = logging.Formatter()
        self._previous_showwarning: Callable[..., Any] | None = None

    def begin(self) -> None:
        logging.getLogger().addHandler(self)
        self._previous_showwarning, warnings.showwarning = warnings.showwarning, self._show_warning

    def end(self) -> None:
        logging.getLogger().removeHandler(self)
        if warnings.showwarning == self._show_warning and self._previous_showwarning is not None:
            warnings.showwarning = self._previous_showwarning

    def emit(self, record: logging.LogRecord) -> None:
        output = _output_of_caller()
        if output is not None and record.name != _RUN_LOGGER:
            try:
                text = self._form.format(record)
            except (
                Exception
            ) as problem:  # arguments do not fit the text: the mistake of a library, not of the run
                text = f"{record.msg} ({type(problem).__name__}: {problem})"
            output.add_line(
                f"{_format_time(record.created)} {record.levelname} {record.name}: {bounded_text(text)}"
            )
        if self._is_only_handler(record):
            # Python prints a warning without handlers; with our handler it would be silent
            last = logging.lastResort
            if last is not None and record.levelno >= last.level:
                last.handle(record)

    def _is_only_handler(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def _show_warning(
        self, message: Warning | str, category: type[Warning], *place: Any, **others: Any
    ) -> None:
        output = _output_of_caller()
        if output is not None:
            where = f" ({place[0]}:{place[1]})" if len(place) > 1 else ""
            output.add_text(f"{category.__name__}: {message}{where}", "WARNING")
        if self._previous_showwarning is not None:
            self._previous_showwarning(message, category, *place, **others)


_log_capture = _LogCapture()


def _format_time(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}Z"
