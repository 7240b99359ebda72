"""``--log-format json``: every message on stderr is one JSON object per line.

Messages of runs, errors, warnings, records of Python's `logging` and anything written to ``sys.stderr``
become such lines. Data on stdout does not change.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO, get_args

from ematix_flow.cli.terminal import write
from ematix_flow.config.project_file import text_setting
from ematix_flow.errors import ConfigError, FlowError, UsageError, did_you_mean
from ematix_flow.observe.run_logging import error_fields, event_fields
from ematix_probe.redaction import mask_all

LogFormat = Literal["text", "json"]
LOG_FORMAT_VARIABLE = "EMATIX_FLOW_LOG_FORMAT"
_LONGEST = 64 * 1024  # longest line that is held back until its end
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"warning: ": logging.WARNING, "error: ": logging.ERROR}


def resolve_log_format(log_format: str | None) -> LogFormat:
    """``--log-format``, then the environment, then ``[log] format`` of the project's file, then text."""
    if log_format is not None:
        return _require_log_format(log_format, "--log-format")
    if os.environ.get(LOG_FORMAT_VARIABLE):
        return _require_log_format(os.environ[LOG_FORMAT_VARIABLE], LOG_FORMAT_VARIABLE)
    try:
        written = text_setting("log", "format")
    except ConfigError:
        return "text"  # the command that reads the file reports the error
    return _require_log_format(written, "[log] format in .ematix-flow.toml") if written else "text"


def _require_log_format(value: str, place: str) -> LogFormat:
    for name in get_args(LogFormat):
        if value == name:
            return name  # type: ignore[no-any-return]  # get_args has no types
    raise UsageError(
        f"{place} is {value!r}, which is not a format.{did_you_mean(value, get_args(LogFormat))}"
    )


class JsonLogHandler(logging.Handler):
    """Writes JSON lines. Lines of different threads are never mixed."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._writing = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        fields = dict(event_fields(record) or {"event": _event_name(record.levelno), "logger": record.name})
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        try:
            message = record.getMessage()
        except Exception as problem:  # the arguments of a library's record do not fit its text
            message = f"{record.msg} ({type(problem).__name__}: {problem})"
        self.write_line(record.levelno, fields.pop("event"), message, **fields)

    def write_line(self, level: int, event: str, message: str, **fields: Any) -> None:
        """Write one line. Texts are masked, and floats are rounded."""
        record = {
            "ts": dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds"),
            "level": logging.getLevelName(level).lower(),
            "event": event,
            **{key: round(value, 3) if isinstance(value, float) else value for key, value in fields.items()},
            "message": message,
        }
        text = json.dumps(mask_all(record), ensure_ascii=False, default=str)
        with self._writing:
            write(text, self._stream)


class JsonLogStream(io.TextIOBase):
    """Replaces ``sys.stderr``: each line written to it becomes the message of one JSON line."""

    encoding = "utf-8"

    def __init__(self, lines: JsonLogHandler) -> None:
        self.handler = lines
        self._pending = ""
        self._writing = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._writing:
            self._pending += text
            if self._pending.endswith("\n") or len(self._pending) > _LONGEST:
                self.end_line()
        return len(text)

    def end_line(self) -> None:
        """Write the pending text as a line, even without a line end."""
        with self._writing:
            message, self._pending = _STYLE.sub("", self._pending).strip("\n"), ""
        if message.strip():
            prefix = next((prefix for prefix in _LEVELS if message.startswith(prefix)), "")
            level = _LEVELS.get(prefix, logging.INFO)
            self.handler.write_line(level, _event_name(level, "note"), message.removeprefix(prefix).strip())

    def write_error(self, error: FlowError, pipeline: str | None = None, trace: str | None = None) -> None:
        """Write an error with its parts."""
        about = {"pipeline": pipeline, "traceback": trace}
        fields = {key: value for key, value in about.items() if value}
        self.handler.write_line(logging.ERROR, "error", error.what, **fields, error=error_fields(error))


def json_stderr() -> JsonLogStream | None:
    """The stream of JSON lines if it replaces stderr now, else None."""
    return sys.stderr if isinstance(sys.stderr, JsonLogStream) else None


@contextmanager
def use_log_format(log_format: LogFormat) -> Iterator[None]:
    """Within the block, write messages in this format, here and in child processes."""
    if log_format == "text":
        yield
        return
    real, root, ours = sys.stderr, logging.getLogger(), logging.getLogger("ematix_flow")
    level, variable = ours.level, os.environ.get(LOG_FORMAT_VARIABLE)
    lines = JsonLogHandler(real)
    stream = JsonLogStream(lines)
    root.addHandler(lines)
    ours.setLevel(logging.INFO)
    sys.stderr = stream
    os.environ[LOG_FORMAT_VARIABLE] = log_format
    try:
        yield
    finally:
        stream.end_line()
        sys.stderr = real
        root.removeHandler(lines)
        ours.setLevel(level)
        os.environ.pop(LOG_FORMAT_VARIABLE)
        if variable is not None:
            os.environ[LOG_FORMAT_VARIABLE] = variable


@contextmanager
def log_info_of(logger: str) -> Iterator[None]:
    """Within the block, show the INFO records of this logger and not only its warnings."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.INFO)
    try:
        yield
    finally:
        found.setLevel(level)


def log_environment() -> dict[str, str]:
    """The environment for another process that must log in the same format."""
    return (
        {LOG_FORMAT_VARIABLE: os.environ[LOG_FORMAT_VARIABLE]} if os.environ.get(LOG_FORMAT_VARIABLE) else {}
    )


def _event_name(level: int, otherwise: str = "log") -> str:
    if level >= logging.ERROR:
        return "error"
    return "warning" if level >= logging.WARNING else otherwise
