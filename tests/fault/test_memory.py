"""A million rows through a few megabytes: neither the driver nor a worker ever holds the data.

Every Python process of a run is looked at: the driver and Spark's workers. Java's own is bounded by its
heap. A process's greatest size is kept by the system (``VmHWM``), so it does not matter when one looks.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.fault.databases import Database, file_database
from tests.services.postgres import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.spark]

ROWS = 1_000_000
WIDTH = 320  # bytes of text in a row: 320 MB in all, before what Python or Arrow add to it
LIMIT = 400 << 20  # of any one Python process, imports included
# DuckDB lives in the driver, and keeps what it writes in its cache up to a limit of its own
LIMIT_OF_DUCKDB = 800 << 20
HEAP = "1g"

PIPELINES = """\
from typing import Annotated

from ematix_flow import BigInt, Text, ematix, pk


@ematix.connection
class source:
    {source}


@ematix.connection
class target:
    {target}


@ematix.table(schema="loads")
class Wide:
    id: Annotated[BigInt, pk()]
    text: Text


@ematix.pipeline(target=Wide, source_connection="source", target_connection="target")
def load():
    return "SELECT id, text FROM wide"
"""

RUN = """
import json, sys
from ematix_flow.engine.session import stop_session
from ematix_flow.engine.settings import EngineSettings
import wide_pipelines
settings = EngineSettings.resolve(config={"engine": {"mode": "local[2]", "memory": sys.argv[1]}})
result = wide_pipelines.load.sync(engine=settings)
print(json.dumps([result.status, result.path, result.rows_inserted]), flush=True)
input()
stop_session()
"""


def fill(database: Database, width: int = WIDTH) -> None:
    """The source's rows, made by the database itself."""
    database.execute("CREATE TABLE wide (id BIGINT PRIMARY KEY, text TEXT)")
    if database.kind == "postgres":
        numbered = f"SELECT n, rpad(n::text, {width}, 'x') FROM generate_series(1, {ROWS}) n"
        database.execute(f"INSERT INTO wide {numbered}")
    else:
        with closing(sqlite3.connect(database.where)) as connection, connection:
            connection.executemany(
                "INSERT INTO wide VALUES (?, ?)", ((n, str(n).ljust(width, "x")) for n in range(1, ROWS + 1))
            )


def python_peaks(root: int) -> dict[int, int]:
    """The greatest size so far, in bytes, of each Python process that descends from this one, itself too."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue  # it has just ended
    family, added = {root}, True
    while added:
        found = {pid for pid, parent in parents.items() if parent in family and pid not in family}
        family |= found
        added = bool(found)
    return {pid: peak for pid in family for peak in [_peak(pid)] if peak is not None}


def _peak(pid: int) -> int | None:
    try:
        if "python" not in os.readlink(f"/proc/{pid}/exe"):
            return None
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else None


@pytest.mark.skipif(sys.platform != "linux", reason="processes are measured by /proc, which only Linux has")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kinds", [("postgres", "postgres"), ("postgres", "sqlite"), ("sqlite", "duckdb")], ids="-to-".join
)
def test_a_million_rows_are_copied_without_being_held(
    tmp_path: Path, postgres: PostgresServer, pg_database: str, kinds: tuple[str, str]
) -> None:
    made = postgres.create_database("source")
    source, target = (
        Database("postgres", url) if kind == "postgres" else file_database(kind, tmp_path, name)
        for kind, name, url in zip(
            kinds, ("source", "target"), (postgres.url(made), pg_database), strict=True
        )
    )
    fill(source)
    module = PIPELINES.format(source=source.fields, target=target.fields)
    (tmp_path / "wide_pipelines.py").write_text(module)
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, HEAP],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdin is not None
    assert run.stdout is not None
    peaks: dict[int, int] = {}
    os.set_blocking(run.stdout.fileno(), False)
    told = ""
    while not told and run.poll() is None:  # workers come and go: each is seen while it is there
        peaks |= python_peaks(run.pid)
        time.sleep(0.2)
        told = run.stdout.readline()
    peaks |= python_peaks(run.pid)
    run.communicate("\n", timeout=120)
    assert json.loads(told) == ["succeeded", "copy", ROWS]
    assert len(peaks) > 2  # the driver, and workers of Spark
    sizes = {pid: f"{peak >> 20} MB" for pid, peak in peaks.items()}
    driver = peaks.pop(run.pid)
    assert driver < (LIMIT_OF_DUCKDB if target.kind == "duckdb" else LIMIT), sizes
    assert max(peaks.values()) < LIMIT, sizes
    table = target.table("loads", "wide")
    counted = target.snapshot(f"SELECT count(DISTINCT id), sum(length(text)) FROM {table}")
    assert [int(n) for n in counted[0][0]] == [ROWS, ROWS * WIDTH]
    postgres.drop_database(made)
