"""The progress of a load while Spark copies: rows, bytes, and the expected number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import BigInt, ManagedTable, PostgresConnection, SQLiteConnection, Text, ematix
from ematix_flow.observe.listener import Attempt, Listener, Progress

ROWS = 20_000


class Heard(Listener):
    def __init__(self) -> None:
        self.reached: list[Progress] = []
        self.events: list[str] = []

    def run_started(self, attempt: Attempt) -> Listener:
        self.events.append(f"{attempt.pipeline} {attempt.number}")
        return self

    def progress(self, target: str, progress: Progress) -> None:
        self.reached.append(progress)

    def run_finished(self, result: Any, error: BaseException | None) -> None:
        self.events.append("failed" if error else result.status)


@pytest.mark.usefixtures("spark")
def test_a_copy_tells_its_rows_and_bytes_and_how_many_the_source_expects(
    pg_database: str, tmp_path: Path
) -> None:
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE people AS SELECT g AS id, 'person ' || g AS name"
            f" FROM generate_series(1, {ROWS}) AS g"
        )
        connection.execute("ANALYZE people")

    class People(ManagedTable):
        __tablename__ = "people"
        id: BigInt
        name: Text

    @ematix.pipeline(
        target=People,
        source_connection=PostgresConnection(name="source", url=pg_database),
        target_connection=SQLiteConnection(name="target", path=str(tmp_path / "target.db")),
    )
    def people() -> str:
        return "SELECT id, name FROM people"

    heard = Heard()
    assert people.sync(listener=heard).rows_inserted == ROWS
    last = heard.reached[-1]
    assert (last.rows, last.expected_rows) == (ROWS, ROWS)
    assert last.bytes > ROWS * len("person 1")
    assert heard.events == ["people 1", "succeeded"]
