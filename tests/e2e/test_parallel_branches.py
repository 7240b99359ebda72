"""``flow run --all --workers 2`` over one Spark: branches in parallel, one of which fails."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ematix_flow import fault_points
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.cli.main import main

PROJECT = """
from ematix_flow import BigInt, ManagedTable, ObjectStoreLocalConnection, SQLiteConnection, ematix
from ematix_flow import register_connection

register_connection(ObjectStoreLocalConnection(name="lake", path="lake", format="csv"))
for name in ("good", "after_good", "bad", "after_bad"):
    register_connection(SQLiteConnection(name=name, path=f"{name}.db"))

    class Loaded(ManagedTable):
        __tablename__ = "loaded"
        id: BigInt

    @ematix.pipeline(
        name=name,
        target=Loaded,
        target_connection=name,
        source_connection="lake",
        force_path="spark",
        depends_on=[name.removeprefix("after_")] if name.startswith("after_") else [],
    )
    def load(conn, name=name):
        return "SELECT CAST(" + ("name" if name == "bad" else "id") + " AS BIGINT) AS id FROM raw"
"""


@pytest.mark.timeout(180)
def test_branches_run_side_by_side_and_only_what_depends_on_a_failure_is_left_out(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    (tmp_path / "lake" / "raw").mkdir(parents=True)
    (tmp_path / "lake" / "raw" / "a.csv").write_text("id,name\n1,x\n2,y\n")

    def until_both_load() -> None:
        deadline = time.monotonic() + 60
        while both.hits < 2:
            assert time.monotonic() < deadline, "the other branch waits for this one"
            time.sleep(0.01)

    with fault_points.inject("staging.created", until_both_load) as both:
        code = main(["run", "--all", "--workers", "2", "--module", "project.py"])
    shown = capsys.readouterr()
    assert code == 1
    assert "bad failed, and after_bad depends on it" in shown.out + shown.err
    with open_run_log(env=os.environ, reading=True) as log:
        runs = {run.pipeline: run for run in log.list()}
    assert {name: run.status for name, run in runs.items()} == {
        "good": "succeeded",
        "after_good": "succeeded",
        "bad": "failed",
        "after_bad": "skipped",
    }
    assert runs["after_bad"].error_message == "bad failed, and after_bad depends on it"
    good, bad = runs["good"], runs["bad"]
    assert good.finished_at is not None and bad.finished_at is not None
    assert good.started_at < bad.finished_at and bad.started_at < good.finished_at
    assert {run.engine for name, run in runs.items() if name != "after_bad"} == {good.engine} != {"none"}
    for name in ("good", "after_good"):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
            assert database.execute("SELECT id FROM loaded ORDER BY id").fetchall() == [(1,), (2,)]
