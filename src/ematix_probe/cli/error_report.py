"""Reports errors: a ProbeError in its four parts, any other error in one line; with --debug the traceback."""

from __future__ import annotations

import itertools
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from ematix_probe.cli.terminal import say, style_text, terminal_width, write
from ematix_probe.cli.usage_errors import command_of, usage_text
from ematix_probe.control_characters import mask_and_escape
from ematix_probe.errors import ProbeError, UsageError
from ematix_probe.redaction import mask

INTERRUPTED = 130
_with_tracebacks = False


@contextmanager
def show_tracebacks(wanted: bool) -> Iterator[None]:
    """Within the block, show unexpected errors of single probes with their traceback if ``wanted``."""
    global _with_tracebacks
    before, _with_tracebacks = _with_tracebacks, wanted
    try:
        yield
    finally:
        _with_tracebacks = before


def report_error(error: BaseException, *, arguments: Sequence[str], debug: bool = False) -> int:
    """Write the error to stderr, or to stdout with ``--output json``; returns the exit code."""
    import typer

    trace = mask("".join(traceback.format_exception(error))) if debug else None
    code = None
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        error, code, trace = ProbeError("interrupted", state="no further probe was run"), INTERRUPTED, None
    known = error if isinstance(error, ProbeError) else _as_probe_error(error, debug)
    if trace and not isinstance(known, UsageError):
        say(trace, "dim")
    code = known.exit_code if code is None else code
    if wants_json(arguments):
        from ematix_probe.cli.output import write_json

        write_json({"error": error_json(known, code)})
    else:
        show_error(known)
    return code


def error_json(error: ProbeError, code: int) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "state": error.state,
        "next": error.next_step,
        "exit_code": code,
    }


def show_error(error: ProbeError, probe: str | None = None) -> None:
    """Write the parts of an error to stderr, with the probe's name if it is given."""
    head = f"error in {probe}: " if probe else "error: "
    width = terminal_width(sys.stderr)
    what = error.what.replace("\n", "\n  ")
    if width is not None and "\n" not in what:
        what = textwrap.fill(what, max(width - len(head), 20), subsequent_indent=" " * len(head))
    parts = (("where", error.where), ("state", error.state), ("next", error.next_step))
    write(render_error(head, what, parts, sys.stderr), sys.stderr)


def render_error(head: str, what: str, parts: Sequence[tuple[str, str | None]], stream: TextIO) -> str:
    """An error and its parts, one below the other, in the style of the stream."""
    head, what = mask_and_escape(head, keep="\n"), mask_and_escape(what, keep="\n")
    lines = [style_text(head, "bold red", stream) + style_text(what, "bold", stream)]
    for label, text in parts:
        if text:
            indented = mask_and_escape(text, keep="\n").replace("\n", "\n         ")
            lines.append(f"  {style_text((label + ':').ljust(7), 'dim', stream)}{indented}")
    return "\n".join(lines)


def unexpected_error(error: Exception) -> ProbeError:
    """The error of one probe that this program did not foresee; with --debug its traceback is shown."""
    if _with_tracebacks:
        say(mask("".join(traceback.format_exception(error))), "dim")
    return _as_probe_error(error, _with_tracebacks)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the output is JSON, read from the raw arguments because they may fail to parse."""
    given = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    return bool({"--output=json", "-ojson", "-o=json"} & set(given)) or any(
        name in ("--output", "-o") and value == "json" for name, value in itertools.pairwise(given)
    )


def _as_probe_error(error: BaseException, debug: bool) -> ProbeError:
    import typer

    if isinstance(error, typer.TyperException):
        return UsageError(usage_text(error), next_step=f"{command_of(error, 'ematix-probe')} --help")
    return ProbeError(
        f"unexpected {type(error).__name__}: {error}",
        next_step="this is a bug in ematix-probe: please report it with this traceback"
        if debug
        else "run it again with --debug to see the traceback",
    )
