"""``flow``: the entry point of the command line, with its error handling and exit codes.

`flow --help` imports only this file and `cli.command_list`; a command imports what it needs when it is
called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ematix_flow._version import __version__
from ematix_flow.cli.command_list import help_text

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are reported, not raised."""
    from ematix_flow.cli.terminal import open_missing_streams, write

    open_missing_streams()
    debug, command_line = _take_debug(list(sys.argv[1:] if arguments is None else arguments))
    log_format, command_line = _take_log_format(command_line)
    if "_FLOW_COMPLETE" not in os.environ and command_line in ([], ["--help"], ["-h"], ["--version"]):
        try:
            write(f"flow {__version__}" if command_line == ["--version"] else help_text(), sys.stdout)
        except Exception as error:
            return _report(error, command_line)
        return 0
    try:
        from ematix_flow.cli.json_log import resolve_log_format, use_log_format
        from ematix_flow.cli.options import wants_json
        from ematix_flow.cli.signals import interruptible, was_signalled
        from ematix_probe.cli.masked_streams import masked_output

        with (
            interruptible(),
            use_log_format(resolve_log_format(log_format)),
            masked_output(as_json=wants_json(command_line)),
        ):
            from ematix_flow.cli.error_report import show_tracebacks

            with show_tracebacks(debug):
                code = _run(command_line)
                return INTERRUPTED if code and was_signalled() else code
    except BaseException as error:
        return _report(error, command_line)


def _run(arguments: Sequence[str]) -> int:
    try:
        from ematix_flow.cli.app import run_command
        from ematix_flow.config.working_folder import working_folder

        working_folder()  # an early error, because most commands resolve paths against it
        return run_command(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException as error:
        return _report(error, arguments)


def _report(error: BaseException, arguments: Sequence[str]) -> int:
    from ematix_flow.cli.error_report import report_error

    return report_error(error, arguments=arguments)


def _take_debug(arguments: list[str]) -> tuple[bool, list[str]]:
    """Remove ``--debug`` from the arguments; it may be before or after the command's name."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [a for a in arguments[:end] if a != "--debug"] + arguments[end:]
    wanted = "--debug" in arguments[:end] or os.environ.get("EMATIX_FLOW_DEBUG", "") not in ("", "0")
    return wanted, rest


def _take_log_format(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Remove ``--log-format FORMAT`` from the arguments, wherever it is; the last one counts."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    log_format, rest, words = None, [], iter(arguments[:end])
    for argument in words:
        name, equals, value = argument.partition("=")
        if name != "--log-format":
            rest.append(argument)
        else:
            log_format = value if equals else next(words, "")
    return log_format, [*rest, *arguments[end:]]
