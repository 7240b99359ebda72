"""``ematix-probe``: the entry point of the command line, with its error handling and exit codes.

`ematix-probe --help` imports only this file and `cli.command_list`; a command imports what it needs when it
is called.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ematix_probe.cli.command_list import help_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are reported, not raised."""
    from ematix_probe.cli.terminal import write

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    debug, words = _take_debug(list(sys.argv[1:] if arguments is None else arguments))
    if words in ([], ["--help"], ["-h"]) and "_EMATIX_PROBE_COMPLETE" not in os.environ:
        write(help_text())
        return 0
    if words == ["--version"]:
        from ematix_probe._version import __version__

        write(f"ematix-probe {__version__}")
        return 0
    try:
        from ematix_probe.cli.error_report import show_tracebacks, wants_json
        from ematix_probe.cli.masked_streams import masked_output

        with _signals(), masked_output(as_json=wants_json(words)), show_tracebacks(debug):
            return _run(words, debug)
    except BaseException as error:
        return _report(error, words, debug)


def _run(words: Sequence[str], debug: bool) -> int:
    try:
        from ematix_probe.cli.app import call

        return call(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException as error:
        return _report(error, words, debug)


def _report(error: BaseException, words: Sequence[str], debug: bool) -> int:
    from ematix_probe.cli.error_report import report_error

    return report_error(error, arguments=words, debug=debug)


def _take_debug(words: list[str]) -> tuple[bool, list[str]]:
    """Remove ``--debug`` from the words; it may be before or after the command's name."""
    end = words.index("--") if "--" in words else len(words)
    rest = [word for word in words[:end] if word != "--debug"] + words[end:]
    return "--debug" in words[:end] or os.environ.get("EMATIX_PROBE_DEBUG", "") not in ("", "0"), rest


@contextmanager
def _signals() -> Iterator[None]:
    """Within the block, SIGTERM ends the command as Ctrl-C does: what it began is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
