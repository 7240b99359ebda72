"""``flow``: the entry point of the command line, with its help, error handling and exit codes.

`flow --help` imports only this file; a command imports what it needs when it is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ematix_flow._version import __version__

# each command and its line in `flow --help`; its module in `commands` has the same name
COMMANDS = {
    "Get started": {
        "demo": "Load a small example project twice, and see what happens.",
        "init": "Create a new project that runs at once.",
        "doctor": "Check Python, Java, Spark and the folders that flow uses.",
    },
    "Look": {
        "list": "Show the pipelines that a module declares.",
        "status": "Show each pipeline's last run and when it is due next.",
        "freshness-check": "Show which pipelines are stale by their freshness_sla.",
        "plan": "Show what a run would do. Changes nothing.",
        "preview": "Show the plan and the first rows of the source.",
        "validate": "Check pipelines against their source and target.",
        "dry-run": "Do everything except the commit, and count the rows.",
    },
    "Run": {
        "run": "Run pipelines now, upstreams first.",
        "run-due": "Run all slots that are due, each once.",
        "scheduler": "Run slots when they are due, until stopped.",
        "clear": "Run slots again that were given up or skipped.",
        "consume": "Run the streams of a TOML file or of a module.",
        "consume-list": "Show the streams that a module declares.",
        "transform": "List named transforms, or run one by hand.",
        "runs": "Show the runs in the run log, or delete old ones.",
        "logs": "Show the log of a run.",
        "dlq": "Show dead letters; replay, park or purge them.",
        "maintain": "Compact lake tables, and remove files that are no longer needed.",
    },
    "Set up": {
        "connections": "List, check and define connections.",
        "secrets": "List and test the ${…} references of connections and settings.",
        "alerts": "Send a test alert.",
        "jars": "List or fetch the Java libraries that a backend needs.",
    },
}
_OPTIONS = {
    "--version": "Show the version.",
    "--log-format FORMAT": "Write messages as text, or as json: one object per line, on stderr.",
    "--debug": "Show the traceback of an error. Also EMATIX_FLOW_DEBUG=1.",
    "--install-completion": "Let your shell complete commands and pipeline names.",
    "--show-completion": "Print the completion script instead.",
    "-h, --help": "Show this help, or the help of a command.",
}
INTERRUPTED = 130
_EXIT_CODES = "0 ok, 1 failed, 2 usage, 3 changes pending, 4 locked, 5 cannot connect, 130 interrupted"


HIDDEN = ("run-slot",)  # for programs


def command_names() -> list[str]:
    return [*(name for commands in COMMANDS.values() for name in commands), *HIDDEN]


def help_text() -> str:
    """What ``flow --help`` prints."""
    lines = [
        "Usage: flow COMMAND [OPTIONS] …",
        "",
        "Declarative data pipelines in Python, exactly once, on Apache Spark.",
    ]
    for section, entries in {**COMMANDS, "Options": _OPTIONS}.items():
        lines += ["", f"{section}:", *(f"  {name:<22}{text}" for name, text in entries.items())]
    lines += ["", f"Exit codes: {_EXIT_CODES}."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are reported, not raised."""
    from ematix_flow.cli.terminal import open_missing_streams, write

    open_missing_streams()
    debug, given = _take_debug(list(sys.argv[1:] if arguments is None else arguments))
    log_format, given = _take_log_format(given)
    if "_FLOW_COMPLETE" not in os.environ and given in ([], ["--help"], ["-h"], ["--version"]):
        try:
            write(f"flow {__version__}" if given == ["--version"] else help_text(), sys.stdout)
        except Exception as error:
            return _report(error, given)
        return 0
    try:
        from ematix_flow.cli.json_log import resolve_log_format, use_log_format
        from ematix_flow.cli.masked_streams import masked_output
        from ematix_flow.cli.options import wants_json
        from ematix_flow.cli.signals import interruptible, was_signalled

        with (
            interruptible(),
            use_log_format(resolve_log_format(log_format)),
            masked_output(as_json=wants_json(given)),
        ):
            from ematix_flow.cli.error_report import show_tracebacks

            with show_tracebacks(debug):
                code = _run(given)
                return INTERRUPTED if code and was_signalled() else code
    except BaseException as error:
        return _report(error, given)


def _run(given: Sequence[str]) -> int:
    try:
        from ematix_flow.cli.app import run_command

        return run_command(given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException as error:
        return _report(error, given)


def _report(error: BaseException, given: Sequence[str]) -> int:
    from ematix_flow.cli.error_report import report_error

    return report_error(error, arguments=given)


def _take_debug(arguments: list[str]) -> tuple[bool, list[str]]:
    """Remove ``--debug`` from the arguments; it may be before or after the command's name."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [a for a in arguments[:end] if a != "--debug"] + arguments[end:]
    asked = "--debug" in arguments[:end] or os.environ.get("EMATIX_FLOW_DEBUG", "") not in ("", "0")
    return asked, rest


def _take_log_format(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Remove ``--log-format FORMAT`` from the arguments, wherever it is; the last one counts."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found, rest, given = None, [], iter(arguments[:end])
    for argument in given:
        name, equals, value = argument.partition("=")
        if name != "--log-format":
            rest.append(argument)
        else:
            found = value if equals else next(given, "")
    return found, [*rest, *arguments[end:]]
