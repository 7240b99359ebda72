"""An incremental merge that only updates, in one SQLite database: its result and the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow import Annotated, BigInt, SQLiteConnection, Text, ematix, pk, register_connection
from tests.unit.run.sqlite_file import execute


@ematix.table(schema="mart")
class People:
    id: Annotated[BigInt, pk()]
    name: Text | None
    seq: BigInt


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE people (id INTEGER, name TEXT, seq INTEGER)")
    execute(path, "CREATE TABLE after_load (seen INTEGER)")
    execute(path, "INSERT INTO people VALUES (1, 'Ada', 1), (2, 'Bob', 2)")
    register_connection(SQLiteConnection(name="shop", path=str(path)))
    return path


def test_a_run_that_only_updates_succeeds_and_its_post_transforms_follow(database: Path) -> None:
    @ematix.pipeline(
        target=People,
        target_connection="shop",
        mode="merge",
        incremental=True,
        watermark_column="seq",
        transforms_post=["INSERT INTO after_load VALUES (1)"],
    )
    def people() -> str:
        return "SELECT id, name, seq FROM people"

    assert people.sync().status == "succeeded"
    execute(database, "UPDATE people SET name = 'Bea', seq = 3 WHERE id = 2")
    updated = people.sync()
    assert (updated.status, updated.rows_inserted, updated.rows_updated) == ("succeeded", 0, 1)
    assert people.sync().status == "skipped"
    assert execute(database, "SELECT count(*) FROM after_load") == [(2,)]


def test_a_merge_without_deletes_clears_the_mark_of_a_row_that_is_there_again(database: Path) -> None:
    @ematix.pipeline(
        target=People, target_connection="shop", mode="merge", handle_deletes="soft", max_shrink=1
    )
    def marking() -> str:
        return "SELECT id, name, seq FROM people"

    @ematix.pipeline(target=People, target_connection="shop", mode="merge")
    def people() -> str:
        return "SELECT id, name, seq FROM people"

    marking.sync()
    execute(database, "DELETE FROM people WHERE id = 2")
    marking.sync()
    marks = "SELECT id FROM mart__people WHERE _deleted_at IS NOT NULL"
    assert execute(database, marks) == [(2,)]
    execute(database, "INSERT INTO people VALUES (2, 'Bob', 2)")
    assert people.sync().rows_updated == 1
    assert execute(database, marks) == []
