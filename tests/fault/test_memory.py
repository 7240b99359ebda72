"""A million rows through a few megabytes: neither the driver nor a worker ever holds the data.

The test measures every Python process of a run: the driver and Spark's workers. The heap size bounds Java's
process. The system keeps the peak size of a process (``VmHWM``), so it does not matter when it is read.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.fault.databases import Database, file_database
from tests.memory_watching import watched
from tests.services.postgres import PostgresServer

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.spark]

ROWS = 1_000_000
WIDTH = 320  # bytes of text in a row: 320 MB in all, before what Python or Arrow add to it
LIMIT = 400 << 20  # of any one Python process, imports included
# DuckDB lives in the driver, and keeps what it writes in its cache up to its own limit
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
from ematix_flow.engine.spark.session import stop_session
from ematix_flow.engine.spark.settings import EngineSettings
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


@pytest.mark.skipif(sys.platform != "linux", reason="processes are measured by /proc, which only Linux has")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kinds",
    [
        ("postgres", "postgres"),
        ("sqlite", "duckdb"),
        pytest.param(("postgres", "sqlite"), marks=pytest.mark.long),
    ],
    ids="-to-".join,
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
    told, peaks, pid = watched(RUN, HEAP, tmp_path)
    assert told == ["succeeded", "copy", ROWS]
    assert len(peaks) > 2  # the driver, and workers of Spark
    sizes = {pid: f"{peak >> 20} MB" for pid, peak in peaks.items()}
    driver = peaks.pop(pid)
    assert driver < (LIMIT_OF_DUCKDB if target.kind == "duckdb" else LIMIT), sizes
    assert max(peaks.values()) < LIMIT, sizes
    table = target.table("loads", "wide")
    counted = target.snapshot(f"SELECT count(DISTINCT id), sum(length(text)) FROM {table}")
    assert [int(n) for n in counted[0][0]] == [ROWS, ROWS * WIDTH]
    postgres.drop_database(made)
