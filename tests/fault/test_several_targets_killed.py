"""Killed between two targets for real: the next run finishes what is missing, and doubles nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.fault

MODULE = """
from ematix_flow import BigInt, SQLiteConnection, Target, Text, ematix, register_connection

register_connection(SQLiteConnection(name="shop", path="shop.db"))

@ematix.table(schema="mart")
class Loose:
    id: BigInt
    name: Text | None

@ematix.table(schema="mart")
class Strict:
    id: BigInt
    name: Text | None

@ematix.pipeline(targets=[Target(connection="shop", table=Loose), Target(connection="shop", table=Strict)])
def both(conn):
    return "SELECT id, name FROM people"
"""


def execute(path: Path, sql: str) -> list[Any]:
    connection = sqlite3.connect(path)
    with connection:
        rows = connection.execute(sql).fetchall()
    connection.close()
    return rows


def counts(path: Path) -> tuple[int, ...]:
    tables = {name for (name,) in execute(path, "SELECT name FROM sqlite_master")}
    return tuple(
        execute(path, f"SELECT count(*) FROM {name}")[0][0] if name in tables else 0
        for name in ("mart__loose", "mart__strict")
    )


@pytest.mark.parametrize(("fault", "left"), [("apply.after_commit", (2, 0)), ("apply.before_commit", (0, 0))])
def test_a_run_that_is_killed_is_finished_by_the_next(
    tmp_path: Path, fault: str, left: tuple[int, int]
) -> None:
    database = tmp_path / "shop.db"
    execute(database, "CREATE TABLE people (id INTEGER, name TEXT)")
    execute(database, "INSERT INTO people VALUES (1, 'Ada'), (2, NULL)")
    (database.parent / "killed_module.py").write_text(MODULE)
    run = [sys.executable, "-c", "from killed_module import both; print(both.sync().notes)"]
    path = os.pathsep.join([str(database.parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    killed = subprocess.run(run, env={**environment, "EMATIX_FLOW_FAULT": f"{fault}=kill"}, check=False)
    assert killed.returncode == -9
    assert counts(database) == left
    again = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert ("this run finishes only what is missing" in again.stdout) == (left == (2, 0))
    assert counts(database) == (2, 2)
