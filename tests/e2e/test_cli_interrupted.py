"""``flow run`` as a process that is stopped, started twice, or has no Java: one error, no partial load."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from ematix_flow.cli.app import app
from ematix_flow.engine.jvm.java_runtime import find_java

PROGRAM = "import sys; from ematix_flow.cli.main import main; sys.exit(main())"

# `numbers` counts for hours, so that it is caught in the act
PIPELINES = '''
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class source:
    kind = "sqlite"
    path = "source.db"

@ematix.connection
class target:
    kind = "sqlite"
    path = "target.db"

@ematix.table(schema="copy")
class Numbers:
    n: Annotated[BigInt, pk()]

@ematix.pipeline(target=Numbers, source_connection="source", target_connection="target", mode="truncate")
def numbers(conn):
    return """
        WITH RECURSIVE counting(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counting WHERE n < 2000000000)
        SELECT max(n) AS n FROM counting
    """

@ematix.pipeline(target=Numbers, name="few", source_connection="source", target_connection="target")
def few(conn):
    return "SELECT 1 AS n"
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    sqlite3.connect(tmp_path / "source.db").close()
    (tmp_path / "source.db").touch()
    return tmp_path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Starts flow in its own process group, as a shell does; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def launch(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments, "--module", "pipelines"],
            cwd=project,
            env={**os.environ, "NO_COLOR": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield launch
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_staging(folder: Path, process: subprocess.Popen[str], seconds: float = 240) -> None:
    """Until the load has begun: the attempt's staging folder is there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        staging = folder / ".ematix_flow" / "staging"
        if staging.is_dir() and any(staging.iterdir()):
            time.sleep(2)  # let its task begin
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.kill()
    pytest.fail("the load did not begin")


def last_runs(start: Start) -> list[dict[str, Any]]:
    out, _ = start("status", "--output", "json").communicate(timeout=60)
    return [pipeline["last_run"] for pipeline in json.loads(out) if pipeline["last_run"]]


def has_table(folder: Path) -> bool:
    """The table is created with its first rows, so an interrupted first load leaves none."""
    with closing(sqlite3.connect(folder / "target.db")) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE name = 'copy__numbers'").fetchone()
        return found is not None


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminate"])
def test_a_run_that_is_stopped_leaves_the_target_as_it_was(
    project: Path, start: Start, number: signal.Signals
) -> None:
    run = start("run", "numbers")
    wait_for_staging(project, run)
    os.killpg(run.pid, number)  # a terminal's Ctrl-C reaches every process of the group, Java too
    out, err = run.communicate(timeout=90)
    assert run.returncode == 130, err
    assert "error: pipeline 'numbers' was interrupted" in err
    assert "the target is as before" in err, err
    assert "Traceback" not in err
    assert out == ""
    assert not has_table(project)
    assert not any((project / ".ematix_flow" / "staging").iterdir())
    assert [record["status"] for record in last_runs(start)] == ["cancelled"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault
def test_the_same_pipeline_started_twice_at_once_runs_once(project: Path, start: Start) -> None:
    first = start("run", "numbers")
    wait_for_staging(project, first)
    second = start("run", "numbers")
    _, err = second.communicate(timeout=90)
    assert second.returncode == 4, err
    assert err.count("error: ") == 1
    assert first.poll() is None


def test_without_java_a_run_says_how_to_get_one(project: Path, start: Start) -> None:
    run = start("run", "few", EMATIX_FLOW_JAVA=str(project / "no-java"))
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert err.count("error: ") == 1
    assert "no Java was found" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize(
    ("redirected", "code", "told"),
    [
        (">/dev/full", 1, True),
        ("-o json >/dev/full", 1, True),
        (">&-", 0, False),
        ("2>/dev/full", 0, False),
        (">&- 2>&-", 0, False),
    ],
)
def test_output_that_cannot_be_written_is_reported_and_the_run_keeps_its_result(
    project: Path, redirected: str, code: int, told: bool
) -> None:
    (project / "pipelines.py").write_text(PIPELINES.replace('source_connection="source", ', ""))
    (project / "target.db").touch()
    shell = f'exec "$0" -c "$1" run few --module pipelines {redirected}'
    ran = subprocess.run(
        ["sh", "-c", shell, sys.executable, PROGRAM], cwd=project, capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ("error: the output cannot be written: No space left on device" in ran.stderr) == told
    assert "Traceback" not in ran.stderr and "defect" not in ran.stderr
    assert has_table(project)


# ------------------------------------------------------------------ every command, at every time

# Reports that it is being imported, and does not end. A class that is made at that time wraps what is
# raised in it, up to Python 3.11.
IMPORTING = """
import os, time
from pathlib import Path

class Slow:
    def __set_name__(self, owner, name):
        Path(os.environ["MARKER"]).touch()
        time.sleep(600)

class Declared:
    field = Slow()
"""
# In place of Java: reports that it is being started, and neither listens nor ends. Its version is Java's.
DEAF_JAVA = """#!/bin/sh
case "$*" in *PythonGatewayServer*) touch "$MARKER"; exec sleep 600;; esac
exec "{java}" "$@"
"""
IMPORTS = {
    "run": ["run", "few"],
    "run-due": ["run-due"],
    "scheduler": ["scheduler"],
    "plan": ["plan", "few"],
    "validate": ["validate"],
    "preview": ["preview", "few"],
    "dry-run": ["dry-run", "few"],
    "consume": ["consume", "few"],
    "maintain": ["maintain"],
    "freshness-check": ["freshness-check"],
    "list": ["list"],
    "status": ["status"],
    "clear": ["clear", "few"],
    "pause": ["pause", "few"],
    "consume-list": ["consume-list"],
    "transform list": ["transform", "list"],
    "dlq list": ["dlq", "list"],
    "quarantine list": ["quarantine", "list"],
    "state show": ["state", "show"],
    "connections list": ["connections", "list"],
    "secrets list": ["secrets", "list"],
    "web": ["web", "--port", "0"],
    "mcp": ["mcp"],
}
# others import by the same lines; slots and actions are run by the scheduler, whose own tests stop it
LIKE_OTHERS = {
    "transform run",
    "dlq show",
    "dlq replay",
    "dlq park",
    "dlq purge",
    "quarantine show",
    "quarantine replay",
    "quarantine purge",
    "connections check",
    "secrets test",
    "run-slot",
    "runs show",  # with --ledger
    "run-action",
    "resume",
    "stop",
    "restart",
}
# Spark reads files for every command.
FILES = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class inbox:
    kind = "object_store_local"
    path = "inbox"
    format = "csv"

@ematix.connection
class target:
    kind = "sqlite"
    path = "target.db"

@ematix.table(schema="copy")
class Numbers:
    n: Annotated[BigInt, pk()]

@ematix.pipeline(target=Numbers, source_connection="inbox", target_connection="target", mode="append")
def few(conn):
    return "SELECT cast(n AS bigint) AS n FROM few"
"""
STARTS_SPARK = {name: IMPORTS[name] for name in ("run", "validate", "preview", "dry-run", "plan")}
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted:
    """A command that is stopped when it reaches a certain point."""

    def __init__(self, start: Start, project: Path, arguments: list[str], number: int, **env: str) -> None:
        self.marker = project / f"marker-{uuid.uuid4().hex}"
        self.arguments, self.number = arguments, number
        self.process = start(*arguments, MARKER=str(self.marker), **env)

    def __str__(self) -> str:
        return f"flow {' '.join(self.arguments)} with {signal.Signals(self.number).name}"

    def stop(self, processes: int = 1) -> None:
        """Wait for that point and for so many processes, and send the signal.

        The processes are watched from then on. While one of them executes another program, it has no
        environment by which it could be found.
        """
        until, found = time.monotonic() + 240, list[int]()
        while not self.marker.exists() or len(found) < processes:
            assert self.process.poll() is None, (str(self), self.process.communicate())
            assert time.monotonic() < until, f"{self} did not come that far"
            time.sleep(0.02)
            found = children_of(str(self.marker)) if self.marker.exists() else []
        self.children = [os.pidfd_open(pid) for pid in found]
        os.kill(self.process.pid, self.number)

    def check(self) -> None:
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 130, (str(self), out, err)
        assert "interrupted" in err and "Traceback" not in err and "unexpected" not in err, (str(self), err)
        for child in self.children:
            assert select.select([child], [], [], 60)[0], f"{self} left a process behind"
            os.close(child)


def children_of(token: str) -> list[int]:
    """The processes that have it in their environment: the command itself, and what it has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def commands_with_a_module(command: Any, names: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of all commands below this one that import the user's module."""
    context = click.Context(command)
    if not hasattr(command, "list_commands"):
        if any("--module" in parameter.opts for parameter in command.params):
            yield " ".join(names)
        return
    for name in command.list_commands(context):
        yield from commands_with_a_module(command.get_command(context, name), (*names, name))


def test_the_commands_that_are_stopped_here_are_all_that_import_a_module() -> None:
    assert set(commands_with_a_module(typer.main.get_command(app))) == {*IMPORTS, *LIKE_OTHERS}


@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")
def test_every_command_that_is_stopped_while_it_imports_ends_as_interrupted(
    project: Path, start: Start
) -> None:
    (project / "pipelines.py").write_text(IMPORTING)
    both = [(name, number) for name in ("run", "validate") for number in SIGNALS]
    rest = [(name, SIGNALS[n % 2]) for n, name in enumerate(sorted(set(IMPORTS) - {"run", "validate"}))]
    commands = [Interrupted(start, project, IMPORTS[name], number) for name, number in (*both, *rest)]
    for command in commands:
        command.stop()
    for command in commands:
        command.check()


@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")
def test_every_command_that_is_stopped_while_spark_starts_leaves_no_java(project: Path, start: Start) -> None:
    home = find_java().home
    deaf = project / "java-home"
    (deaf / "bin").mkdir(parents=True)
    (deaf / "bin" / "java").write_text(DEAF_JAVA.replace("{java}", str(home / "bin" / "java")))
    (deaf / "bin" / "java").chmod(0o755)
    (project / "pipelines.py").write_text(FILES)
    (project / "inbox").mkdir()
    (project / "inbox" / "few.csv").write_text("n\n1\n")
    env = {"EMATIX_FLOW_JAVA": str(deaf), "EMATIX_FLOW_ENGINE": "local[1]"}
    commands = [
        Interrupted(start, project, arguments, SIGNALS[n % 2], **env)
        for n, arguments in enumerate(STARTS_SPARK.values())
    ]
    for command in commands:
        command.stop(processes=2)  # the command itself, and what it has started
    for command in commands:
        command.check()
