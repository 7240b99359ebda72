"""What ``run(history=…)`` takes: a history, or the path or URL of one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ematix_probe import RunHistory, probe, source
from ematix_probe.declaration import DataProbe
from ematix_probe.errors import DeclarationError, HistoryError
from ematix_probe.history.forgiving import ForgivingHistory
from ematix_probe.history.sql import SqlHistory
from ematix_probe.history.sqlite_database import SqliteDatabase
from ematix_probe.sources.sqlite import SQLiteSource


@pytest.fixture
def orders(tmp_path: Path) -> DataProbe:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.executescript("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1)")

    @probe.data(source=source.sqlite(tmp_path / "shop.db"), table="orders")
    def orders(t: Any) -> None:
        t.row_count_change(max_drop=0.1)

    return orders


def test_a_history_is_given_as_itself_as_a_path_or_as_a_url(orders: DataProbe, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    for given in (path, str(path), f"sqlite://{path}", RunHistory(path)):
        assert orders.run(history=given).verdict == "pass"
    assert len(RunHistory(path).runs("orders")) == 4


def test_anything_else_is_refused_at_the_line_of_the_caller(orders: DataProbe) -> None:
    with pytest.raises(DeclarationError, match="RunHistory, or the path or URL of one, not int") as refused:
        orders.run(history=7)  # type: ignore[arg-type]
    assert refused.value.where is not None and refused.value.where.startswith(__file__)


class FullDisk(SqliteDatabase):
    """A database whose file may not grow."""

    def engine(self, *, write: bool) -> sa.Engine:
        engine = super().engine(write=write)

        def limit(connection: sqlite3.Connection, _: object) -> None:
            connection.execute("PRAGMA max_page_count = 1")

        sa.event.listen(engine, "connect", limit)
        return engine


def history_on_a_full_disk(path: Path) -> RunHistory:
    history = RunHistory(path)
    history._store = SqlHistory(FullDisk(path))
    return history


def probe_with_past(path: Path) -> DataProbe:
    @probe.data(source=source.sqlite(path), table="orders")
    def orders(t: Any) -> None:
        t.row_count(at_least=1)
        t.row_count_change(max_drop=0.1)
        t.drift("row_count", at_least_runs=3)

    return orders


@pytest.mark.parametrize("place", ["typo/history.db", "typo/history.duckdb"])
def test_assertions_about_the_past_are_errors_when_the_folder_of_the_history_is_missing(
    orders: DataProbe, tmp_path: Path, place: str
) -> None:
    history = ForgivingHistory(RunHistory(tmp_path / place))
    report = probe_with_past(tmp_path / "shop.db").run(history=history)  # type: ignore[arg-type]
    assert [each.verdict for each in report.assertions] == ["pass", "error", "error"]
    assert report.verdict == "error"
    assert "there is no folder" in report.assertions[1].message
    assert not (tmp_path / "typo").exists()


def test_assertions_about_the_past_are_errors_when_the_disk_of_a_new_history_is_full(
    orders: DataProbe, tmp_path: Path
) -> None:
    history = ForgivingHistory(history_on_a_full_disk(tmp_path / "history.db"))
    report = probe_with_past(tmp_path / "shop.db").run(history=history)  # type: ignore[arg-type]
    assert [each.verdict for each in report.assertions] == ["pass", "error", "error"]
    assert "database or disk is full" in report.assertions[2].message
    assert "next: make room on its disk" in report.assertions[2].message


def test_an_assertion_that_has_enough_past_is_judged_although_its_run_cannot_be_recorded(
    orders: DataProbe, tmp_path: Path
) -> None:
    checked, path = probe_with_past(tmp_path / "shop.db"), tmp_path / "history.db"
    checked.run(history=path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TRIGGER refuse BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END")
    report = checked.run(history=ForgivingHistory(RunHistory(path)))  # type: ignore[arg-type]
    assert [each.verdict for each in report.assertions] == ["pass", "pass", "error"]  # drift has 1 run of 3


def test_a_history_that_cannot_be_opened_is_refused_before_the_probe_runs(
    orders: DataProbe, tmp_path: Path
) -> None:
    class Unread(SQLiteSource):
        def open(self, subject: Any) -> Any:
            raise AssertionError("the probe ran")

    @probe.data(source=Unread(str(tmp_path / "shop.db")), table="orders")
    def unread(t: Any) -> None:
        t.row_count(at_least=1)

    for history in (tmp_path / "typo" / "history.db", history_on_a_full_disk(tmp_path / "full.db")):
        with pytest.raises(HistoryError) as refused:
            unread.run(history=history)
        assert refused.value.state
