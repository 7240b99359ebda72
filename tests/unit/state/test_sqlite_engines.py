"""Engines for SQLite files share nothing: several are open in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ematix_flow.state.sql.sqlite import memory_engine, sqlite_engine


def test_a_listener_hears_only_its_own_engine(tmp_path: Path) -> None:
    engines = [sqlite_engine(tmp_path / "a.db"), sqlite_engine(tmp_path / "b.db"), memory_engine()]
    heard: list[Any] = []

    @sa.event.listens_for(engines[0], "handle_error")
    def listen(context: Any) -> None:
        heard.append(context.engine)

    for engine in engines:
        with engine.connect() as connection, pytest.raises(sa.exc.OperationalError):
            connection.exec_driver_sql("no SQL")
    assert heard == [engines[0]]


def test_the_same_statement_has_the_columns_of_each_file(tmp_path: Path) -> None:
    engines = [sqlite_engine(tmp_path / "a.db"), sqlite_engine(tmp_path / "b.db")]
    for engine, columns in zip(engines, ("a", "b, a"), strict=True):
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE t ({columns})")
            connection.exec_driver_sql(
                f"INSERT INTO t VALUES ({', '.join('12'[: len(columns.split(', '))])})"
            )
    found = []
    for engine in (*engines, engines[0]):
        with engine.connect() as connection:
            statement = sa.select(sa.literal_column("*")).select_from(sa.table("t"))
            found.append([dict(row) for row in connection.execute(statement).mappings()])
    assert found == [[{"a": 1}], [{"b": 1, "a": 2}], [{"a": 1}]]
