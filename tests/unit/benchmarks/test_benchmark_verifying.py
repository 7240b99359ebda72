"""A contestant's rows are held against the source's: what a fingerprint sees, and what it lets pass."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.cases import APART, CASES, CHANGES, CONTESTANTS
from benchmarks.contestants import HOMES
from benchmarks.copy_loads import verified
from benchmarks.datasets import LINEITEM, ORDERS, Dataset
from benchmarks.fingerprint import Fingerprint, family, fingerprint
from benchmarks.place import Place
from benchmarks.results import Run
from benchmarks.rivals import LOCK_FILE, PACKAGES
from ematix_flow.engine.jars import jar_lock

Rows = list[tuple[Any, ...]]
COLUMNS, NAMES = ORDERS.columns, ORDERS.names


def order_row(key: int, **changed: Any) -> tuple[Any, ...]:
    row = {
        "o_orderkey": key,
        "o_custkey": key * 7,
        "o_orderstatus": "O",
        "o_totalprice": Decimal("173665.47") + key,
        "o_orderdate": dt.date(1996, 1, 2) + dt.timedelta(days=key),
        "o_orderpriority": "5-LOW",
        "o_clerk": f"Clerk#{key:09}",
        "o_shippriority": 0,
        "o_comment": f"naïve – {key}",
    }
    return tuple({**row, **changed}[name] for name in NAMES)


ROWS = [order_row(key) for key in range(1, 6)]


@pytest.fixture
def in_duckdb(tmp_path: Path) -> Callable[[Rows], Fingerprint]:
    def made(rows: Rows) -> Fingerprint:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.duckdb"
        with duckdb.connect(str(file)) as connection:
            connection.execute(f"CREATE TABLE orders ({', '.join(f'{c.name} {c.duckdb}' for c in COLUMNS)})")
            connection.executemany(f"INSERT INTO orders VALUES ({', '.join('?' * len(COLUMNS))})", rows)
        return fingerprint(Place("duckdb", str(file)), ORDERS)

    return made


def test_the_same_rows_have_the_same_fingerprint_in_every_system(
    tmp_path: Path, in_duckdb: Callable[[Rows], Fingerprint]
) -> None:
    source = sqlite3.connect(tmp_path / "orders.db")
    source.execute(f"CREATE TABLE orders ({', '.join(f'{c.name} {c.sqlite}' for c in COLUMNS)})")
    as_kept = [tuple(float(v) if isinstance(v, Decimal) else str(v) for v in row) for row in ROWS]
    source.executemany(f"INSERT INTO orders VALUES ({', '.join('?' * len(COLUMNS))})", as_kept)
    source.commit()
    source.close()
    (tmp_path / "lake" / "orders").mkdir(parents=True)
    table = pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in reversed(ROWS)])
    pq.write_table(table, tmp_path / "lake" / "orders" / "part.parquet")
    expected = fingerprint(Place("sqlite", str(tmp_path / "orders.db")), ORDERS)
    assert expected.rows == 5
    for landed in (in_duckdb(ROWS), fingerprint(Place("parquet", str(tmp_path / "lake")), ORDERS)):
        assert landed.differences(expected) == []
        assert landed.retyped(ORDERS) == []


@pytest.mark.parametrize(
    ("rows", "difference"),
    [
        (ROWS[:4], "4 rows arrived of 5"),
        ([*ROWS, ROWS[0]], "6 rows arrived of 5"),
        ([*ROWS[:4], order_row(5, o_comment="other")], "o_comment has other values"),
        ([*ROWS[:4], order_row(5, o_totalprice=Decimal("0.01"))], "o_totalprice has other values"),
        ([*ROWS[:4], order_row(5, o_clerk=None)], "o_clerk has other values"),
        (
            [order_row(1, o_custkey=14), order_row(2, o_custkey=7), *ROWS[2:]],  # swapped
            "o_custkey has other values",
        ),
    ],
)
def test_rows_that_are_lost_doubled_changed_or_swapped_are_seen(
    in_duckdb: Callable[[Rows], Fingerprint], rows: Rows, difference: str
) -> None:
    assert in_duckdb(rows).differences(in_duckdb(ROWS)) == [difference]


def test_a_row_twice_in_the_place_of_another_is_seen(in_duckdb: Callable[[Rows], Fingerprint]) -> None:
    doubled = [*ROWS[:4], ROWS[0]]
    assert f"{NAMES[0]} has other values" in in_duckdb(doubled).differences(in_duckdb(ROWS))


def test_a_wrong_result_disqualifies_and_another_type_is_noted(
    in_duckdb: Callable[[Rows], Fingerprint],
) -> None:
    right = in_duckdb(ROWS)
    types = tuple((name, "VARCHAR" if name == "o_orderdate" else kind) for name, kind in right.types)
    retyped = Fingerprint(right.rows, right.columns, types)
    assert verified(Run("flow", 1), retyped, right, ORDERS).notes == ("o_orderdate arrived as VARCHAR",)
    wrong = verified(Run("flow", 1), in_duckdb(ROWS[:2]), right, ORDERS)
    assert wrong.problem == "wrong result: 2 rows arrived of 5"


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        ("bigint", "integer"),
        ("INTEGER", "integer"),
        ("int32", "integer"),
        ("numeric(15,2)", "decimal"),
        ("decimal128(15, 2)", "decimal"),
        ("DOUBLE", "float"),
        ("date32[day]", "date"),
        ("timestamp[us]", "timestamp"),
        ("character varying(79)", "text"),
        ("VARCHAR", "text"),
        ("string", "text"),
        ("json", "json"),
    ],
)
def test_a_type_is_known_by_its_name_in_any_system(native: str, kind: str) -> None:
    assert family(native) == kind


@pytest.mark.parametrize(
    ("dataset", "rows", "scale"),
    [
        (ORDERS, 1, 1),
        (ORDERS, 1_500_000, 1),
        (ORDERS, 1_500_001, 2),
        (ORDERS, 10_000_000, 7),
        (LINEITEM, 10_000_000, 2),
    ],
)
def test_the_scale_factor_holds_the_rows_asked_for(dataset: Dataset, rows: int, scale: int) -> None:
    assert dataset.scale_factor(rows) == scale


def test_no_rows_are_no_benchmark() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        ORDERS.scale_factor(0)


def test_every_contestant_of_every_case_has_a_name_and_a_program() -> None:
    copying = {name for case in CASES.values() for name in case.contestants}
    assert copying == set(HOMES["copy"])
    assert all({"flow", "driver"} <= set(case.contestants) for case in CASES.values())
    for case in CHANGES.values():
        assert set(case.contestants) == set(HOMES[case.name])
    changing = {name for case in CHANGES.values() for name in case.contestants}
    assert copying | changing == set(CONTESTANTS)
    assert set(CONTESTANTS) > APART


def test_the_rivals_are_pinned_with_their_checksums() -> None:
    lock = jar_lock(LOCK_FILE)
    assert set(lock.groups) == {"postgres", "mysql", "sqlite", "duckdb"}
    assert all(len(a.sha256) == 64 and a.size > 0 for a in lock.artifacts)
    packages = PACKAGES.read_text(encoding="utf-8")
    assert all(f"\n{name}==" in f"\n{packages}" for name in ("dlt", "sling-linux-amd64", "connectorx"))
    assert packages.count("--hash=sha256:") > packages.count("==")


def test_a_place_of_a_server_says_how_to_log_in() -> None:
    login = Place("mysql", "mysql://root:p%40ss@127.0.0.1:3307/shop").login()
    assert (login.user, login.password, login.port, login.database) == ("root", "p@ss", 3307, "shop")
