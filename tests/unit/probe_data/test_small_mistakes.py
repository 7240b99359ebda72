"""Small mistakes of a user: a wrong method, the wrong kind of file, control characters in a name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import feed, http, probe, source, sql
from ematix_probe.duration import format_duration
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
    checks = declare(
        shop, lambda t: t.column("n").null_share(at_least=0.2).null_share(at_least=0.3, name="more")
    )
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


async def asynchronous(t: Any) -> None:
    t.row_count(at_least=1)


async def asynchronous_generator(t: Any) -> Any:
    yield t.row_count(at_least=1)


def generator(t: Any) -> Any:
    yield t.row_count(at_least=1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (asynchronous, "a probe is a plain function, not async def asynchronous"),
        (asynchronous_generator, "not async def asynchronous_generator"),
        (generator, r"not generator\(\) with yield in its body"),
    ],
)
def test_a_function_whose_body_does_not_run_is_no_probe(shop: Path, body: Any, said: str) -> None:
    loads = probe.load(target=http("GET", "http://127.0.0.1/"), rate=1, duration=1)
    for decorate in (probe.data(source=source.sqlite(shop), table="orders"), loads):
        with pytest.raises(DeclarationError, match=said) as refused:
            decorate(body)
        assert refused.value.where is not None and refused.value.where.startswith(__file__)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda shop: probe.data(source=source.sqlite(shop), tabel="orders"),
            r"@probe\.data takes no tabel=\. Did you mean 'table'\?",
        ),
        (lambda shop: probe.load(traget=1), r"@probe\.load takes no traget=\. Did you mean 'target'\?"),
        (lambda shop: probe.load(rate=1), r"@probe\.load: missing a required .*'target'"),
        (
            lambda shop: source.csv("a.csv", delimeter=";"),
            r"source\.csv\(\) takes no delimeter=\. Did you mean 'delimiter'\?",
        ),
        (lambda shop: source.csv("a.csv", encodng="utf-8"), "Did you mean 'encoding'"),
        (lambda shop: source.jsonl("a.jsonl", colums={}), "Did you mean 'columns'"),
        (lambda shop: source.parquet("s3://b/k", regoin="x"), "Did you mean 'region'"),
        (lambda shop: source.sqlite(shop, timout=1), "Did you mean 'timeout'"),
        (lambda shop: http("GET", "http://h", header={}), "Did you mean 'headers'"),
        (lambda shop: sql("sqlite:///a", "SELECT 1", parms={}), "Did you mean 'params'"),
        (lambda shop: feed([{"a": 1}], ordr="once"), "Did you mean 'order'"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_one(shop: Path, call: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as refused:
        call(shop)
    assert refused.value.where is not None and refused.value.where.startswith(__file__)
    assert "it takes " in str(refused.value.next_step)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("SELECT NULL AS n", "1 of 1 row (100 %) is NULL"),
        ("SELECT NULL AS n UNION ALL SELECT 1", "1 of 2 rows (50 %) is NULL"),
    ],
)
def test_one_row_is_a_row(shop: Path, query: str, shown: str) -> None:
    def check(t: Any) -> None:
        t.column("n").not_null()
        t.column("n").null_share(at_most=0.1)

    report = probe.data(source=source.sqlite(shop), query=query)(check).run()
    messages = [each.message for each in report.assertions]
    assert messages == [shown, f"{shown}; asked for: at most 10 %"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0ms"), (0.0004, "under 1ms"), (0.001, "1ms"), (0.9994, "999ms"), (0.9999, "1s"), (2.5, "2.5s")],
)
def test_a_short_duration_is_not_rounded_to_none(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


def test_a_long_pattern_is_shortened_in_its_error(shop: Path) -> None:
    with pytest.raises(DeclarationError, match=r"repeats more than 255 times") as refused:
        declare(shop, lambda t: t.column("n").regex("(a|b){1,1000}" * 50))
    assert len(refused.value.what) < 200
