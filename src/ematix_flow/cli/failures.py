"""How an error reaches the person: four parts for our own, one line and a saved traceback for the rest."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from typing import Any, TextIO

import typer

from ematix_flow.cli.log_lines import json_stderr
from ematix_flow.cli.options import without_aliases
from ematix_flow.cli.output import write_json
from ematix_flow.cli.signals import was_asked
from ematix_flow.cli.terminal import say, styled, width_of, write
from ematix_flow.engine.interrupts import was_interrupted
from ematix_flow.errors import FlowError, Interrupted, UsageError
from ematix_flow.spec.redaction import mask


def report(error: BaseException, *, arguments: Sequence[str], debug: bool) -> int:
    """Show the error where it is looked for, and return the exit code."""
    trace = None
    if debug and not isinstance(error, (typer.TyperException, UsageError)):
        trace = mask("".join(traceback.format_exception(error)))
    is_usage = isinstance(error, (Interrupted, UsageError, typer.TyperException))
    if isinstance(error, KeyboardInterrupt) or (not is_usage and (was_asked() or was_interrupted(error))):
        error = Interrupted("interrupted", state="what had not committed was undone")
    if isinstance(error, typer.Abort):
        error = Interrupted("stopped")
    known = error if isinstance(error, FlowError) else _as_flow_error(error)
    lines = json_stderr()
    if lines is not None:
        lines.error(known, trace=trace)
    elif trace:
        say(trace, "dim")
    if _wants_json(arguments):
        write_json({"error": known.to_json()})
    elif lines is None:
        show(known)
    return known.exit_code


def show(error: FlowError, pipeline: str | None = None) -> None:
    """On stderr; with several pipelines it says whose error it is."""
    lines = json_stderr()
    if lines is not None:
        lines.error(error, pipeline)
    else:
        write(error_lines(error, sys.stderr, pipeline), sys.stderr)


def error_lines(error: FlowError, stream: TextIO, pipeline: str | None = None) -> str:
    """The parts of an error, a line each, as the stream can show them."""
    width = width_of(stream)
    what = error.what if width is None else textwrap.fill(error.what, width - 7, subsequent_indent=" " * 7)
    head = f"error in {pipeline}: " if pipeline else "error: "
    lines = [styled(head, "bold red", stream) + styled(what, "bold", stream)]
    parts = (
        ("where", str(error.where) if error.where else None),
        ("state", error.state),
        ("next", error.next_step),  # never folded: it may be a command to copy
    )
    for label, text in parts:
        if text:
            indented = text.replace("\n", "\n         ")
            lines.append(f"  {styled((label + ':').ljust(7), 'dim', stream)}{indented}")
    return "\n".join(lines)


def _as_flow_error(error: BaseException) -> FlowError:
    if isinstance(error, typer.TyperException):
        return _usage(error)
    saved = _save_traceback(error)
    return FlowError(
        f"unexpected {type(error).__name__}: {error}",
        state=f"the traceback is in {saved}" if saved else "the traceback could not be saved",
        next_step="this is a defect of flow: please report it with that file"
        if saved
        else "run it again with --debug to see the traceback",
    )


def _usage(error: typer.TyperException) -> UsageError:
    """A wrong option or argument, in our words."""
    context = getattr(error, "ctx", None)
    possible = getattr(error, "possibilities", None)
    message = _of_number(error) or (error.message if possible else error.format_message())
    if possible:
        message = f"{message.rstrip('.')}. Did you mean {' or '.join(sorted(possible))}?"
    message = message.replace("Value error, ", "")  # pydantic's, which stands behind typer
    path = context.command_path if context is not None else "flow"
    return UsageError(message[:1].lower() + message[1:], next_step=f"{path} --help")


def _of_number(error: typer.TyperException) -> str | None:
    """What is wrong with a number, instead of pydantic's words; None when it is about something else."""
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    option = getattr(error, "param", None)
    if not found or option is None:
        return None
    limits = found[0].get("ctx", {})
    wanted = {
        "int_parsing": "a whole number",
        "float_parsing": "a number",
        "greater_than_equal": f"a number from {limits.get('ge')} on",
        "less_than_equal": f"a number up to {limits.get('le')}",
    }.get(found[0]["type"])
    if wanted is None:
        return None
    return f"{max(option.opts, key=len)} takes {wanted}, not {found[0]['input']!r}"


def _save_traceback(error: BaseException) -> str | None:
    from ematix_flow.state.private_files import write_private
    from ematix_flow.state.root import private_directory, state_root

    moment = dt.datetime.now()
    try:
        folder = private_directory(state_root(os.environ) / "logs", tighten=True)
        path = folder / f"error-{moment:%Y%m%d-%H%M%S}-{os.getpid()}.txt"
        write_private(path, mask("".join(traceback.format_exception(error))))
    except (OSError, FlowError):
        return None
    return str(path)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Read from the raw arguments: they may be the very thing that is wrong."""
    given = without_aliases(arguments)
    together = {"--output=json", "-ojson", "-o=json"} & set(given)
    return bool(together) or any(
        name in ("--output", "-o") and value == "json" for name, value in itertools.pairwise(given)
    )
