"""``ematix-probe doctor``: checks what this machine has, and says how to get what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ematix_probe.cli.history_option import HistoryOption, optional_history
from ematix_probe.cli.output import Column, OutputOption, write_json, write_table
from ematix_probe.errors import ProbeError

HELP = """Check Python, the libraries and the history.

Exit code 1 when something that is needed is missing. A library that only some probes need is no failure.
"""
_STYLES = {"ok": "green", "missing": "yellow", "fail": "bold red"}


@dataclass(frozen=True)
class Finding:
    subject: str
    state: str  # ok, missing (only some probes need it), fail
    found: str
    next_step: str | None = None


def doctor(history: HistoryOption = None, output: OutputOption = "text") -> int:
    findings = [*_python(), *_libraries(), _java(), _history(history)]
    if output == "json":
        write_json([asdict(each) for each in findings])
    else:
        columns = (
            Column("subject"),
            Column("state", style=_STYLES.get),
            Column("found", wraps=True),
            Column("next", wraps=True),
        )
        write_table(columns, [(each.subject, each.state, each.found, each.next_step) for each in findings])
    return 1 if any(each.state == "fail" for each in findings) else 0


def _python() -> Iterator[Finding]:
    from ematix_probe._version import __version__
    from ematix_probe.extras import distribution

    yield Finding("ematix-probe", "ok", f"{__version__}, of {distribution()}")
    version = platform.python_version()
    if (3, 10) <= sys.version_info[:2] <= (3, 13):
        yield Finding("python", "ok", f"{version}, {sys.executable}")
    else:
        yield Finding("python", "fail", version, "use Python 3.10 to 3.13")


def _libraries() -> Iterator[Finding]:
    from ematix_probe.extras import install_command, installed

    for library, version in installed():
        if version is not None:
            yield Finding(library.name, "ok", f"{version}, for {library.purpose}")
        elif library.extra is None:
            yield Finding(
                library.name,
                "fail",
                f"not installed; {library.purpose} need it",
                f"pip install {library.name}",
            )
        else:
            needed = f"not installed; for {library.purpose}"
            yield Finding(library.name, "missing", needed, install_command(library.extra))


def _java() -> Finding:
    """Java, which Spark needs; found as PySpark finds it."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not os.access(program, os.X_OK):
        where = f"there is none in JAVA_HOME={home}" if home else "not found"
        return Finding(
            "java", "missing", f"{where}; for probes of Spark", "install Java 17 or 21, or set JAVA_HOME"
        )
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "missing", f"{program} cannot be started: {error}", "install Java 17 or 21")
    first = next(iter((done.stderr or done.stdout).splitlines()), "?")
    return Finding("java", "ok", f"{first.replace(chr(34), '')}, {program}")


def _history(given: str | None) -> Finding:
    try:
        history = optional_history(given)
        if history is None:
            return Finding("history", "ok", "none is named: runs are not recorded")
        return Finding("history", "ok", f"{history.location}: {history.check()}")
    except ProbeError as error:
        return Finding("history", "fail", error.what, error.next_step)
