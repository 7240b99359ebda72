"""Small mistakes of a user: a wrong method, the wrong kind of file, control characters in a name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import probe, source
from ematix_probe.errors import DeclarationError
from ematix_probe.reports.text import report_text


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.executescript(
            "CREATE TABLE orders (n INTEGER); INSERT INTO orders VALUES (1), (2), (3), (NULL)"
        )
    return tmp_path / "shop.db"


def declare(shop: Path, check: Any, **options: Any) -> Any:
    return probe.data(source=source.sqlite(shop), table="orders", **options)(check)


def test_a_wrong_method_is_an_error_that_names_the_nearest_one(shop: Path) -> None:
    with pytest.raises(AttributeError, match=r"t has no 'colum'\. Did you mean 'column'\?"):
        declare(shop, lambda t: t.colum("n"))
    with pytest.raises(AttributeError, match=r"has no 'not_nul'\. Did you mean 'not_null'\?"):
        declare(shop, lambda t: t.column("n").not_nul())


def test_the_share_of_null_may_have_only_a_lower_limit(shop: Path) -> None:
    checks = declare(shop, lambda t: t.column("n").null_share(at_least=0.2).null_share(at_least=0.3))
    found = checks.run().assertions
    assert [each.verdict for each in found] == ["pass", "fail"]
    assert found[0].message.startswith("1 of 4 rows (25 %) is NULL")
    with pytest.raises(DeclarationError, match="it needs at_most= or at_least="):
        declare(shop, lambda t: t.column("n").null_share())


def test_a_sqlite_file_is_no_duckdb_file_and_the_right_source_is_named(shop: Path) -> None:
    @probe.data(source=source.duckdb(shop), table="orders")
    def orders(t: Any) -> None:
        t.row_count(at_least=1)

    (result,) = orders.run().assertions
    assert "is a SQLite file, not one of DuckDB" in result.message
    assert "source.sqlite(" in result.message


def test_control_characters_of_a_name_do_not_reach_the_terminal(shop: Path) -> None:
    report = declare(shop, lambda t: t.column("n").not_null(), name="a\x1b[2Jb").run()
    assert "\x1b" not in report_text(report)
    assert r"a\x1b[2Jb" in report_text(report)
