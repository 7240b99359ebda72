"""SQLite's columns hold values of any type: what does not fit the column's type fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import probe, source
from ematix_probe.report import RunReport
from ematix_probe.tester import Tester


def run(folder: Path, declared: str, values: list[Any], declare: Any) -> RunReport:
    path = folder / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(f"CREATE TABLE t (x {declared})")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
        connection.commit()

    @probe.data(source=source.sqlite(path), table="t")
    def stored(t: Tester) -> None:
        declare(t)

    return stored.run()


@pytest.mark.parametrize(
    ("declared", "values", "check", "failing"),
    [
        ("integer", [1, "x", b"\x01", None, 2.5], lambda c: c.between(0, 10), 2),
        ("integer", [1, "x", 2], lambda c: c.is_in([1, 2]), 1),
        ("text", ["a", b"a", None], lambda c: c.regex("^a$"), 1),
        ("date", ["2024-01-01", "soon", 0, None], lambda c: c.between("2023-01-01", "2025-01-01"), 2),
        ("timestamp", ["2024-01-01T00:00:00+02:00", "2023-12-31 22:00"], lambda c: c.unique(), 2),
        ("", [1, "x", None], lambda c: c.between(0, 10), 1),
        ("", ["b", 5], lambda c: c.between("a", "c"), 1),
    ],
)
def test_a_value_of_another_type_fails(
    tmp_path: Path, declared: str, values: list[Any], check: Any, failing: int
) -> None:
    (result,) = run(tmp_path, declared, values, lambda t: check(t.column("x"))).assertions
    assert (result.verdict, result.failing) == ("fail", failing), result
    assert len(result.samples) == failing


def test_there_is_no_sum_and_no_percentile_with_a_value_of_another_type(tmp_path: Path) -> None:
    def declare(t: Tester) -> None:
        t.column("x").sum_between(0, 10).percentile_between(0.5, 0, 10)

    total, middle = run(tmp_path, "integer", [1, "x", 2], declare).assertions
    assert total.message == "there is no sum: 1 value is of another type; asked for: 0 … 10"
    assert middle.message == "there is no p50: 1 value is of another type; asked for: 0 … 10"


@pytest.mark.parametrize(
    ("declared", "values", "total"),
    [
        ("integer", [2**63 - 1, 2**63 - 1], 2**64 - 2),
        ("numeric(10,2)", [0.1] * 10, 1),
        ("numeric(38,9)", [1e18, 1e18, 0.5], 2e18),
        ("double", [float("inf"), float("-inf")], None),
        ("double", [], 0),
    ],
)
def test_a_sum_neither_overflows_nor_loses_decimals(
    tmp_path: Path, declared: str, values: list[Any], total: Any
) -> None:
    bounds = (0, 0) if total is None else (total, total)
    (result,) = run(tmp_path, declared, values, lambda t: t.column("x").sum_between(*bounds)).assertions
    assert result.verdict == ("fail" if total is None else "pass"), result


@pytest.mark.parametrize(
    ("declared", "check"),
    [("text", lambda c: c.regex("^a")), ("timestamp", lambda c: c.between("2023-01-01", "2025-01-01"))],
)
def test_a_text_that_is_not_utf_8_is_named_as_the_reason(tmp_path: Path, declared: str, check: Any) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            f"CREATE TABLE t (x {declared}); INSERT INTO t VALUES (CAST(x'61ff' AS TEXT))"
        )

    @probe.data(source=source.sqlite(path), table="t")
    def stored(t: Tester) -> None:
        check(t.column("x"))
        t.column("x").not_null()

    refused, held = stored.run().assertions
    assert (refused.verdict, held.verdict) == ("error", "pass")
    assert "a text is not valid UTF-8" in refused.message
    assert "next: correct the text" in refused.message
