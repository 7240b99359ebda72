"""The Typer application behind ``flow``: parses the command line and calls the command."""

from __future__ import annotations

import datetime as dt
import functools
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

from ematix_flow._version import __version__
from ematix_flow.cli.command_group import Command, LazyGroup
from ematix_flow.cli.json_log import LogFormat, json_stderr
from ematix_flow.cli.options import replace_aliases
from ematix_flow.cli.terminal import say
from ematix_flow.spec.location import SourceLocation
from ematix_probe.redaction import mask

app = typer.Typer(
    name="flow",
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"flow {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
    # taken by `main`; here for the completion
    debug: Annotated[bool, typer.Option("--debug")] = False,
    log_format: Annotated[LogFormat | None, typer.Option("--log-format")] = None,
) -> None:
    pass


def run_command(arguments: Sequence[str]) -> int:
    """Parse the command line and run the command. A command returns its exit code, or None for success."""
    with _warnings_on_stderr():
        code = _build_parser().main(replace_aliases(arguments), prog_name="flow", standalone_mode=False)
    if code == 130:  # how typer says Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


@functools.cache
def _build_parser() -> Command:
    """The parser of ``flow``. Building it takes longer than parsing, and tests call many commands."""
    return typer.main.get_command(app)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    where = SourceLocation(filename, lineno)
    lines = json_stderr()
    if lines is not None:
        lines.handler.write_line(logging.WARNING, "warning", str(message), where=str(where))
    else:
        say(f"warning: {mask(str(message))}\n  where: {where}", "yellow")


class _StderrHandler(logging.Handler):
    """Writes the package's log records to stderr like other messages; INFO lines begin with the time."""

    def emit(self, record: logging.LogRecord) -> None:
        message = mask(record.getMessage())
        if record.levelno >= logging.ERROR:
            say(f"error: {message}", "bold red")
        elif record.levelno >= logging.WARNING:
            say(f"warning: {message}", "yellow")
        else:
            say(f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ} {message}")


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    handler, logger = _StderrHandler(), logging.getLogger("ematix_flow")
    if json_stderr() is None:  # the JSON stream already contains the log records
        logger.addHandler(handler)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        finally:
            logger.removeHandler(handler)
