"""Runs that died after their commit: the next run reads the ledger and corrects the run log."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import (
    BigInt,
    Pipeline,
    SQLiteConnection,
    Target,
    Text,
    Timestamp,
    ematix,
    fault_points,
    pk,
    register_connection,
)
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from tests.unit.run.sqlite_file import execute

BOUNDS = ("source_from", "source_to")


@ematix.table(schema="analytics")
class People:
    id: Annotated[BigInt, pk()]
    name: Text | None


@ematix.table(schema="analytics")
class Seen:
    id: Annotated[BigInt, pk()]
    name: Text | None
    seen: Timestamp


@ematix.table(schema="analytics")
class Others:
    id: Annotated[BigInt, pk()]
    name: Text | None


def declare(database: Path, name: str, **options: Any) -> Pipeline:
    register_connection(SQLiteConnection(name=name, path=str(database)))
    into: dict[str, Any] = {"target": People, "target_connection": name}
    if options.pop("both", False):
        into = {"targets": [Target(connection=name, table=each, **options) for each in (People, Others)]}
        options = {}

    @ematix.pipeline(name=name, **into, **options)
    def load(conn: Any) -> str:
        return "SELECT id, name FROM raw_people"

    return load


def last_of(pipeline: str) -> RunRecord:
    """The run before the newest one, which has settled it."""
    with open_local_run_log(env=os.environ, reading=True) as log:
        return log.list(pipeline)[1]


def load_twice(folder: Path, name: str, options: dict[str, Any], point: str | None) -> RunRecord:
    """A load, another that changes and adds rows, which dies at the point, and a third that finds it."""
    database = folder / f"{name}.db"
    execute(database, "CREATE TABLE raw_people (id INTEGER, name TEXT)")
    execute(database, "INSERT INTO raw_people VALUES (1, 'Ada'), (2, 'Bob'), (3, 'Cy')")
    load = declare(database, name, **options)
    load.sync()
    execute(database, "UPDATE raw_people SET name = 'Bea' WHERE id = 2")
    execute(database, "DELETE FROM raw_people WHERE id = 3")
    execute(database, "INSERT INTO raw_people VALUES (4, 'Di'), (5, 'Eve')")
    if options.get("mode", "append") == "append" and not options.get("incremental"):
        execute(database, "DELETE FROM raw_people WHERE id < 4")
    if point is None:
        load.sync()
    else:
        with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
            load.sync()
    execute(database, "DELETE FROM raw_people WHERE id < 5")
    execute(database, "UPDATE raw_people SET id = 6")
    load.sync()
    return last_of(name)


LOADS: dict[str, dict[str, Any]] = {
    "append": {},
    "append by watermark": {"incremental": True, "watermark_column": "id"},
    "truncate": {"mode": "truncate"},
    "merge": {"mode": "merge"},
    "merge that deletes": {"mode": "merge", "handle_deletes": "hard"},
    "scd2": {"mode": "scd2"},
    "two targets": {"mode": "merge", "both": True},
}
# the second of two targets has not committed when the first has
CASES = [
    (what, point)
    for what in LOADS
    for point in ("apply.after_commit", "runlog.before_finish")
    if not (LOADS[what].get("both") and point == "apply.after_commit")
]


@pytest.mark.parametrize("point", ["apply.after_commit", "runlog.before_finish"])
def test_a_settled_run_of_scd2_by_event_time_tells_no_count_that_its_ledger_does_not_know(
    tmp_path: Path, point: str
) -> None:
    """Rows that another one outranks make no version, and are not unchanged either."""

    def load(name: str, at: str | None) -> RunRecord:
        database = tmp_path / f"{name}.db"
        execute(database, "CREATE TABLE raw_people (id INTEGER, name TEXT, seen TEXT)")
        register_connection(SQLiteConnection(name=name, path=str(database)))

        @ematix.pipeline(
            name=name, target=Seen, target_connection=name, mode="scd2", event_timestamp_column="seen"
        )
        def seen(conn: Any) -> str:
            return "SELECT id, name, seen FROM raw_people"

        rows = "(1, 'Ada', '2026-01-01 00:00:00'), (1, 'Ada', '2026-01-02 00:00:00')"
        execute(database, f"INSERT INTO raw_people VALUES {rows}, (2, 'Bob', '2026-01-01 00:00:00')")
        execute(database, "INSERT INTO raw_people VALUES (2, 'Bea', '2026-01-01 00:00:00')")
        if at is None:
            seen.sync()
        else:
            with pytest.raises(fault_points.InjectedCrash), fault_points.inject(at, "crash"):
                seen.sync()
        seen.sync()
        return last_of(name)

    whole, died = load("whole", None), load("died", point)
    for name in BOUNDS:
        assert getattr(whole, name) == getattr(died, name), name
    assert (whole.rows.read, whole.rows.inserted, whole.rows.unchanged) == (4, 2, 1)
    assert died.status == "succeeded" and died.rows == replace(whole.rows, unchanged=None)


@pytest.mark.parametrize(("what", "point"), CASES)
def test_a_run_that_died_after_its_commit_has_the_counts_of_one_that_did_not(
    tmp_path: Path, what: str, point: str
) -> None:
    whole, died = (
        load_twice(tmp_path, name, LOADS[what], at) for name, at in (("whole", None), ("died", point))
    )
    assert (whole.status, died.status) == ("succeeded", "succeeded")
    assert "the ledger has the batch" in (died.error_message or "")
    found = [{name: getattr(record, name) for name in ("rows", *BOUNDS)} for record in (whole, died)]
    assert found[0] == found[1]
    assert died.rows.read
