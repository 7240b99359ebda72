"""Runs the commands of a page or a README in the test's own process, so that they share its Spark session.

A line that only a shell understands (a pipe, a variable, a redirection) runs in a shell, with processes for
its programs.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.cli.main import main as flow
from ematix_flow.graph.registry import Registry, use_registry
from ematix_probe.cli.main import main as ematix_probe

SECONDS_PER_BLOCK = 240
_COMMANDS = {"flow": flow, "ematix-probe": ematix_probe}
_PLAIN_LINE = re.compile(r"[a-z-]+( [^|&;<>$`\\*?]*)?")
_INLINE_PROGRAM = re.compile(r"python - <<'(?P<end>\w+)'")


def run_commands(commands: str, folder: Path) -> int:
    """The exit code of the last line. A line before it that fails ends the block, as with ``sh -e``."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        return _run_lines(commands, folder, patched)


def _run_lines(commands: str, folder: Path, patched: pytest.MonkeyPatch) -> int:
    lines = [line for line in commands.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    steps = _steps(lines, folder)
    if steps is None:
        return _run_in_a_shell(commands, folder)
    patched.chdir(folder)
    code = 0
    for step in steps:
        code = _run_step(step, patched)
        if code:
            break
    return code


def run_script(script: Path) -> int:
    """The exit code of a Python file that runs in its own folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(script.parent)
        return _run_in_this_process(["python", str(script)])


def _steps(lines: list[str], folder: Path) -> list[list[str]] | None:
    """The words of each command; None if one of them needs a shell."""
    steps: list[list[str]] = []
    rest = iter(lines)
    for line in rest:
        inline = _INLINE_PROGRAM.fullmatch(line)
        if inline:
            code = []
            for program_line in rest:
                if program_line == inline["end"]:
                    break
                code.append(program_line)
            program = folder / f"inline_{len(steps)}.py"
            program.write_text("\n".join(code), encoding="utf-8")
            steps.append(["python", str(program)])
        elif _PLAIN_LINE.fullmatch(line.split(" #")[0]):
            words = shlex.split(line, comments=True)
            if words[0] not in ("cd", "export") and shutil.which(words[0]) is None:
                return None
            steps.append(words)
        else:
            return None
    return steps


def _run_step(words: list[str], patched: pytest.MonkeyPatch) -> int:
    if words[0] == "cd":
        patched.chdir(words[1])
        return 0
    if words[0] == "export":
        for variable in words[1:]:
            patched.setenv(*variable.split("=", 1))
        return 0
    if words[0] in _COMMANDS or (words[0] == "python" and words[1].endswith(".py")):
        return _run_in_this_process(words)
    return subprocess.run(words, stdin=subprocess.DEVNULL, timeout=SECONDS_PER_BLOCK, check=False).returncode


def _run_in_this_process(words: list[str]) -> int:
    """A command of ours, or ``python file …``, with the modules, declarations and environment of a new
    process."""
    program, *arguments = words
    before = set(sys.modules)
    folder = Path.cwd() if program in _COMMANDS else Path(arguments[0]).resolve().parent
    with pytest.MonkeyPatch.context() as patched, use_registry(Registry()):
        patched.syspath_prepend(str(folder))
        patched.setattr(sys, "argv", arguments if program == "python" else words)
        try:
            if program in _COMMANDS:
                return _COMMANDS[program](arguments)
            runpy.run_path(arguments[0], run_name="__main__")
            return 0
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            for name in set(sys.modules) - before:
                if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                    del sys.modules[name]


def _run_in_a_shell(commands: str, folder: Path) -> int:
    done = subprocess.run(
        ["sh", "-eu", "-c", commands],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS_PER_BLOCK,
        check=False,
    )
    return done.returncode
