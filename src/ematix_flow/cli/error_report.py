"""Reports errors: a FlowError in its four parts, any other error in one line with a saved traceback."""

from __future__ import annotations

import datetime as dt
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import typer

from ematix_flow.cli.command_list import command_names
from ematix_flow.cli.json_log import json_stderr
from ematix_flow.cli.options import wants_json
from ematix_flow.cli.output import write_json
from ematix_flow.cli.signals import was_signalled
from ematix_flow.cli.terminal import say, style_text, terminal_width, write
from ematix_flow.errors import FlowError, Interrupted, OutputFailed, UsageError
from ematix_flow.spec.location import NamedLocation
from ematix_probe.cli.error_report import render_error
from ematix_probe.cli.error_report import show_tracebacks as show_tracebacks_of_probes
from ematix_probe.cli.usage_errors import command_of, usage_text
from ematix_probe.errors import ProbeError
from ematix_probe.errors import UsageError as ProbeUsageError
from ematix_probe.redaction import mask

_with_tracebacks = False  # --debug, for the whole command


@contextmanager
def show_tracebacks(wanted: bool) -> Iterator[None]:
    """Within the block, show errors with their traceback if ``wanted``."""
    global _with_tracebacks
    before, _with_tracebacks = _with_tracebacks, wanted
    try:
        with show_tracebacks_of_probes(wanted):
            yield
    finally:
        _with_tracebacks = before


def debug_traceback(error: BaseException) -> str | None:
    """The traceback of an error and its causes with --debug, else None."""
    if not _with_tracebacks or isinstance(
        error, (typer.TyperException, UsageError, Interrupted, ProbeUsageError)
    ):
        return None
    if error.__traceback__ is None and error.__cause__ is None:
        return None
    return mask("".join(traceback.format_exception(error)))


def _is_interrupt(error: BaseException) -> bool:
    """Whether a signal ended the command, even if Java or a library raised another error because of it."""
    from ematix_flow.engine.spark.interrupts import was_interrupted

    if isinstance(error, KeyboardInterrupt):
        return True
    if isinstance(error, (Interrupted, UsageError, typer.TyperException)):
        return False
    return was_signalled() or was_interrupted(error)


def report_error(error: BaseException, *, arguments: Sequence[str]) -> int:
    """Write the error to stderr, or to stdout with ``--output json``, and return the exit code."""
    trace = debug_traceback(error)
    if _is_interrupt(error):
        error = Interrupted("interrupted", state="everything that was not committed is undone")
    if isinstance(error, typer.Abort):
        error = Interrupted("stopped")
    known = error if isinstance(error, FlowError) else _as_flow_error(error)
    if isinstance(known, UsageError) and known.next_step is None:
        named = [word for word in arguments[:1] if word in command_names()]
        known.next_step = " ".join(("flow", *named, "--help"))
    lines = json_stderr()
    if lines is not None:
        lines.write_error(known, trace=trace)
    elif trace:
        say(trace, "dim")
    if wants_json(arguments) and not isinstance(known, OutputFailed):
        write_json({"error": known.to_json()})
    elif lines is None:
        write(_error_parts(known, sys.stderr), sys.stderr)
    return known.exit_code


def show_error(error: FlowError, pipeline: str | None = None) -> None:
    """Write the error to stderr, with the pipeline's name if it is given."""
    lines = json_stderr()
    if lines is not None:
        lines.write_error(error, pipeline, trace=debug_traceback(error))
    else:
        write(error_lines(error, sys.stderr, pipeline), sys.stderr)


def error_lines(error: FlowError, stream: TextIO, pipeline: str | None = None) -> str:
    """The parts of an error, one per line, in the style of the stream; with --debug below its traceback."""
    parts, trace = _error_parts(error, stream, pipeline), debug_traceback(error)
    return f"{style_text(trace.rstrip(), 'dim', stream)}\n{parts}" if trace else parts


def _error_parts(error: FlowError, stream: TextIO, pipeline: str | None = None) -> str:
    head = f"error in {pipeline}: " if pipeline else "error: "
    what = _fold(error.what, terminal_width(stream))
    parts = (
        ("where", str(error.where) if error.where else None),
        ("state", error.state),
        ("next", error.advice),  # never folded: it may be a command to copy
    )
    return render_error(head, what, parts, stream)


def _fold(what: str, width: int | None) -> str:
    """Wrap a single line to the width. Several lines keep their layout, such as SQL with a caret below it."""
    if "\n" in what:
        return what.replace("\n", "\n  ")
    return what if width is None else textwrap.fill(what, width - 7, subsequent_indent=" " * 7)


class _ProbeFailed(FlowError):
    """An error of a probe with its own name and exit code."""

    def __init__(self, error: ProbeError) -> None:
        where = NamedLocation.of(error.where) if error.where else None
        super().__init__(error.what, where=where, state=error.state, next_step=error.next_step)
        self.exit_code, self._name = error.exit_code, type(error).__name__

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "type": self._name}


def _as_flow_error(error: BaseException) -> FlowError:
    if isinstance(error, typer.TyperException):
        return UsageError(usage_text(error), next_step=f"{command_of(error, 'flow')} --help")
    if isinstance(error, ProbeError):
        return _ProbeFailed(error)
    saved = _save_traceback(error)
    return FlowError(
        f"unexpected {type(error).__name__}: {error}",
        state=f"the traceback is in {saved}" if saved else "the traceback could not be saved",
        next_step="this is a bug in flow: please report it with that file"
        if saved
        else "run it again with --debug to see the traceback",
    )


def _save_traceback(error: BaseException) -> str | None:
    from ematix_flow.state.private_files import write_private
    from ematix_flow.state.state_root import private_directory, state_root

    moment = dt.datetime.now()
    try:
        folder = private_directory(state_root(os.environ) / "logs", tighten=True)
        path = folder / f"error-{moment:%Y%m%d-%H%M%S}-{os.getpid()}.txt"
        write_private(path, mask("".join(traceback.format_exception(error))))
    except (OSError, FlowError):
        return None
    return str(path)
