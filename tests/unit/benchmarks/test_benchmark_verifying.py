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
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.cases import (
    APART,
    APART_FOR_PROBES,
    CASES,
    CHANGES,
    CONTESTANTS,
    PROBE_LOAD,
    PROBES,
    STATEFUL,
    STREAMS,
)
from benchmarks.change_loads import published
from benchmarks.changing import Size
from benchmarks.contestants import HOMES
from benchmarks.contestants.spark_jdbc import DELTA, csv_schema
from benchmarks.copy_loads import verified
from benchmarks.datasets import DATED_ORDERS, LINEITEM, ORDERS, Dataset
from benchmarks.endpoint import Endpoint
from benchmarks.fingerprint import Fingerprint, family, fingerprint
from benchmarks.results import Run
from benchmarks.rivals import LOCK_FILE, PACKAGES, SHARED
from ematix_flow.engine.jvm.jars import jar_lock, jar_session_conf

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
        return fingerprint(Endpoint("duckdb", str(file)), ORDERS)

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
    write_deltalake(tmp_path / "delta" / "orders", table)
    (tmp_path / "text" / "orders").mkdir(parents=True)
    csv.write_csv(table, tmp_path / "text" / "orders" / "orders.csv")
    expected = fingerprint(Endpoint("sqlite", str(tmp_path / "orders.db")), ORDERS)
    assert expected.rows == 5
    text = fingerprint(Endpoint("csv", str(tmp_path / "text")), ORDERS)
    assert text.differences(expected) == []  # its types are the reader's
    for landed in (
        in_duckdb(ROWS),
        fingerprint(Endpoint("parquet", str(tmp_path / "lake")), ORDERS),
        fingerprint(Endpoint("delta", str(tmp_path / "delta")), ORDERS),
    ):
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


def test_a_time_of_change_counts_whether_or_not_it_has_a_zone_and_a_deleted_row_does_not(
    tmp_path: Path,
) -> None:
    changed = dt.datetime(2026, 6, 1, 0, 0, 0, 1000)
    rows = [dict(zip(DATED_ORDERS.names, (*row, changed), strict=True)) for row in ROWS]
    plain = pa.Table.from_pylist(rows[:4], DATED_ORDERS.arrow_schema())
    write_deltalake(tmp_path / "plain" / "orders", plain)
    zoned = pa.Table.from_pylist(rows)
    zone = zoned.column("updated_at").cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    zoned = zoned.set_column(zoned.schema.get_field_index("updated_at"), "updated_at", zone)
    write_deltalake(tmp_path / "zoned" / "orders", zoned)
    DeltaTable(tmp_path / "zoned" / "orders").delete("o_orderkey = 5")
    expected, landed = (
        fingerprint(Endpoint("delta", str(tmp_path / kind)), DATED_ORDERS) for kind in ("plain", "zoned")
    )
    assert (landed.rows, landed.differences(expected)) == (4, [])
    later = plain.set_column(
        plain.schema.get_field_index("updated_at"),
        "updated_at",
        pa.array([changed + dt.timedelta(milliseconds=n) for n in range(4)], pa.timestamp("us")),
    )
    write_deltalake(tmp_path / "later" / "orders", later)
    wrong = fingerprint(Endpoint("delta", str(tmp_path / "later")), DATED_ORDERS)
    assert wrong.differences(expected) == ["updated_at has other values"]


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
    following = {name for case in STREAMS.values() for name in case.contestants}
    assert following == set(HOMES["streams"])
    stateful = {name for case in STATEFUL.values() for name in case.contestants}
    assert stateful == set(HOMES["stateful"])
    probing = {name for case in PROBES.values() for name in case.contestants}
    assert probing == set(HOMES["probes"])
    assert copying | changing | following | stateful | probing | set(PROBE_LOAD) == set(CONTESTANTS)
    assert set(CONTESTANTS) > APART | APART_FOR_PROBES


def test_who_is_left_out_of_a_case_has_a_name_and_a_reason_and_does_not_take_part() -> None:
    for case in (*CASES.values(), *CHANGES.values()):
        assert set(case.left_out) <= set(CONTESTANTS) - set(case.contestants)
        assert all(case.left_out.values())
    assert "creates" in CASES["postgres-delta"].left_out["duckdb"]


def test_into_a_lake_one_row_in_a_hundred_changes_at_two_sizes_of_the_table() -> None:
    assert published(CHANGES["delta-merge"]) == (Size(10_000, 1_000_000), Size(100_000, 10_000_000))
    assert len(published(CHANGES["merge"])) == 3


def test_the_files_and_lakes_are_loaded_as_the_cases_say() -> None:
    ways = {name: (CASES[name].source, CASES[name].target) for name in ("postgres-delta", "csv-postgres")}
    assert ways == {"postgres-delta": ("postgres", "delta"), "csv-postgres": ("csv", "postgres")}
    assert (CHANGES["delta-merge"].strategy, CHANGES["delta-merge"].target) == ("merge", "delta")


def test_the_rivals_use_the_products_jars_of_lakes_with_their_versions() -> None:
    assert set(SHARED) <= set(jar_lock().groups)
    assert jar_session_conf(["delta"]) == DELTA


def test_spark_gets_the_types_of_a_file_by_its_own_names() -> None:
    assert csv_schema(ORDERS).startswith(
        "o_orderkey BIGINT, o_custkey BIGINT, o_orderstatus STRING, o_totalprice DECIMAL(15,2), "
    )


def test_the_rivals_are_pinned_with_their_checksums() -> None:
    lock = jar_lock(LOCK_FILE)
    assert set(lock.groups) == {"postgres", "mysql", "sqlite", "duckdb"}
    assert all(len(a.sha256) == 64 and a.size > 0 for a in lock.artifacts)
    packages = PACKAGES.read_text(encoding="utf-8")
    assert all(f"\n{name}==" in f"\n{packages}" for name in ("dlt", "sling-linux-amd64", "connectorx"))
    assert packages.count("--hash=sha256:") > packages.count("==")


def test_a_place_of_a_server_says_how_to_log_in() -> None:
    login = Endpoint("mysql", "mysql://root:p%40ss@127.0.0.1:3307/shop").login()
    assert (login.user, login.password, login.port, login.database) == ("root", "p@ss", 3307, "shop")
