"""Ctrl-C ends a probe whose statement runs in the C code of an engine, and what was done is reported."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

PROBES = """
import sys
import threading

from ematix_probe import probe, source

def announce(frame, event, function):
    if event == "c_call" and 'AS "m0"' in str(frame.f_locals.get("sql")):  # the statement that measures
        print("a statement begins", flush=True)

sys.setprofile(announce)
threading.setprofile(announce)

@probe.data(source=source.sqlite("shop.db"), table="orders")
def quick(t):
    t.row_count(at_least=1)

@probe.data(source=source.sqlite("shop.db"), query='''
    WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT i FROM c''')
def in_sqlite(t):
    t.row_count(at_least=1)

@probe.data(
    source=source.duckdb("shop.duckdb"),
    query="SELECT a.range % 7 AS r FROM range(1000000000) a, range(100000) b",
)
def in_duckdb(t):
    t.column("r").sum_between(0, 1)

@probe.data(
    source=source.csv("shop.csv"),
    query="SELECT a.range % 7 AS r FROM shop, range(1000000000) a, range(100000) b",
)
def in_a_file(t):
    t.column("r").sum_between(0, 1)

@probe.data(source=source.sqlite("shop.db"), table="orders")
def never(t):
    t.row_count(at_least=1)
"""


@pytest.mark.parametrize("slow", ["in_sqlite", "in_duckdb", "in_a_file"])
def test_the_first_ctrl_c_interrupts_the_statement_and_reports_what_was_done(
    tmp_path: Path, slow: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.executescript("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1)")
    duckdb.connect(str(tmp_path / "shop.duckdb")).close()
    (tmp_path / "shop.csv").write_text("id\n1\n")
    (tmp_path / "checks.py").write_text(PROBES)
    words = ["run", "checks.py", "-s", "quick", "-s", slow, "-s", "never", "--json", "r.json"]
    with subprocess.Popen(
        [sys.executable, "-m", "ematix_probe.cli.main", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            assert any(line.startswith("[PASS] quick") for line in running.stdout)
            assert "a statement begins\n" in running.stdout  # that of the next one
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 130
    assert f"error in {slow}: interrupted" in said
    assert "1 of 3 probes were run" in said
    assert [each["probe_name"] for each in json.loads((tmp_path / "r.json").read_text())] == ["quick", slow]
