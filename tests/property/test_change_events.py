"""Change events against an oracle: however they are repeated and cut into batches, the target is what the
source was at the last change that arrived."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.backends.payloads.change_events import UNAVAILABLE
from ematix_flow.errors import RowRejected
from tests.contract import mysql_setup, postgres_setup
from tests.contract.embedded_setup import backend_at, run_sql, target_of
from tests.lakes import lake_backend, lake_target
from tests.property.change_model import Key, Mirror, SourceTable, versions_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SELECTED = "region, id, note, amount"
VERSIONED = f"{SELECTED}, valid_from, valid_to, is_current"
Rows = Callable[[], dict[Key, tuple[Any, Any, bool]]]
Versions = Callable[[], list[tuple[Any, ...]]]


def embedded_mirror(kind: str, path: Path, *, soft: bool) -> tuple[Mirror, Rows]:
    target = target_of(backend_at(kind, path))
    table = "shop__mirror" if kind == "sqlite" else "shop.mirror"
    return Mirror(target, soft), lambda: as_rows(run_sql(kind, path, f"SELECT * FROM {table}"), soft)


def as_rows(found: list[tuple[Any, ...]], soft: bool) -> dict[Key, tuple[Any, Any, bool]]:
    rows = {(r[0], r[1]): (r[2], r[3], r[4] is not None if soft else False) for r in found}
    assert len(rows) == len(found), "a key is there twice"
    return rows


def check_delivery_with_repeats(mirror: Mirror, rows: Rows, seed: int, *, soft: bool, count: int) -> None:
    """Messages come in order, but the delivery goes back several times, as after a crash of the source."""
    chance = random.Random(seed)
    source = SourceTable(chance, soft, partial=True)
    source.make_changes(count)
    at = newest = 0
    while newest < len(source.messages):
        end = min(len(source.messages), at + chance.randrange(1, 9))
        mirror.deliver(source.messages[at:end], sorted_parts=chance.choice((0, 0, 1, 3)))
        newest = max(newest, end)
        assert rows() == source.states[newest], f"seed {seed}, after message {newest}"
        at = chance.randrange(end) if chance.random() < 0.3 else end


def check_any_order(mirror: Mirror, rows: Rows, seed: int, *, count: int) -> None:
    """Messages with whole rows come in any order, some of them twice."""
    chance = random.Random(seed)
    source = SourceTable(chance, soft=False, partial=False)
    source.make_changes(count)
    delivered = [*source.messages, *chance.sample(source.messages, count // 3)]
    chance.shuffle(delivered)
    while delivered:
        size = chance.randrange(1, 9)
        mirror.deliver(delivered[:size])
        delivered = delivered[size:]
    assert rows() == source.states[-1], f"seed {seed}"


def check_history(mirror: Mirror, rows: Versions, seed: int, *, count: int) -> None:
    """Messages come in order, but the delivery goes back several times."""
    chance = random.Random(seed)
    source = SourceTable(chance, soft=False, partial=True)
    source.make_changes(count)
    at = newest = 0
    while newest < len(source.messages):
        end = min(len(source.messages), at + chance.randrange(1, 12))
        mirror.deliver(source.messages[at:end], sorted_parts=chance.choice((0, 0, 1, 3)))
        newest = max(newest, end)
        found = rows()
        expected = versions_of(source.made[:newest])
        assert {row[:6] for row in found} == expected, f"seed {seed}, after message {newest}"
        assert len(found) == len(expected)
        assert all(bool(current) == (end is None) for *_, end, current in found)
        at = chance.randrange(end) if chance.random() < 0.3 else end


def embedded_history(kind: str, path: Path) -> tuple[Mirror, Versions]:
    mirror = Mirror(target_of(backend_at(kind, path)), soft=False, history=True)
    table = "shop__mirror" if kind == "sqlite" else "shop.mirror"
    return mirror, lambda: as_versions(run_sql(kind, path, f"SELECT {VERSIONED} FROM {table}"))


def as_versions(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(*row[:4], milliseconds(row[4]), milliseconds(row[5]), row[6]) for row in found]


def milliseconds(moment: Any) -> int | None:
    if moment is None:
        return None
    if isinstance(moment, str):
        moment = dt.datetime.fromisoformat(moment.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return round(moment.timestamp() * 1000)


def check_seed(kind: str, path: Path, seed: int, *, count: int) -> None:
    """One history of the source: as newest rows, with marks of deleted rows, as versions, or in any order."""
    variant = seed % 4
    if variant == 3:
        check_history(*embedded_history(kind, path), seed, count=count)
        return
    mirror, rows = embedded_mirror(kind, path, soft=variant == 1)
    if variant == 2:
        check_any_order(mirror, rows, seed, count=count)
    else:
        check_delivery_with_repeats(mirror, rows, seed, soft=variant == 1, count=count)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "seeds"), [("sqlite", 300), ("duckdb", 4)])
def test_changes_in_any_batches_give_the_rows_and_versions_of_the_source(
    kind: str, seeds: int, tmp_path: Path
) -> None:
    for seed in range(seeds):
        path = tmp_path / "mirror.db"
        check_seed(kind, path, seed, count=30 if seed < 8 else 8)
        path.unlink()


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("kind", "seeds"), [("sqlite", 10_000), ("duckdb", 400)])
def test_many_histories_of_changes_give_the_rows_and_versions_of_the_source(
    kind: str, seeds: int, tmp_path: Path
) -> None:
    for seed in range(1_000, 1_000 + seeds):
        path = tmp_path / "mirror.db"
        check_seed(kind, path, seed, count=40 if seed % 10 == 0 else 12)
        path.unlink()


@pytest.mark.parametrize("soft", [False, True])
def test_a_mirror_in_postgres_is_the_source(pg_database: str, soft: bool) -> None:
    mirror = Mirror(postgres_setup.backend_of(pg_database).target(), soft)
    select = f"SELECT {SELECTED}{', gone_at' if soft else ''} FROM shop.mirror"
    check_delivery_with_repeats(
        mirror, lambda: as_rows(postgres_setup.sql(pg_database, select), soft), 7, soft=soft, count=30
    )


@pytest.mark.parametrize("soft", [False, True])
def test_a_mirror_in_mariadb_is_the_source(mariadb_database: str, soft: bool) -> None:
    schema = mariadb_database.rpartition("/")[2]
    mirror = Mirror(mysql_setup.backend_of(mariadb_database).target(), soft, schema=schema)
    select = f"SELECT {SELECTED}{', gone_at' if soft else ''} FROM mirror"
    check_delivery_with_repeats(
        mirror, lambda: as_rows(mysql_setup.sql(mariadb_database, select), soft), 8, soft=soft, count=30
    )


def test_versions_of_changes_in_postgres_are_those_of_the_source(pg_database: str) -> None:
    mirror = Mirror(postgres_setup.backend_of(pg_database).target(), soft=False, history=True)
    select = f"SELECT {VERSIONED} FROM shop.mirror"
    check_history(mirror, lambda: as_versions(postgres_setup.sql(pg_database, select)), 21, count=30)


def test_versions_of_changes_in_mariadb_are_those_of_the_source(mariadb_database: str) -> None:
    schema = mariadb_database.rpartition("/")[2]
    mirror = Mirror(
        mysql_setup.backend_of(mariadb_database).target(), soft=False, schema=schema, history=True
    )
    select = f"SELECT {VERSIONED} FROM mirror"
    check_history(mirror, lambda: as_versions(mysql_setup.sql(mariadb_database, select)), 22, count=30)


@pytest.mark.long  # MariaDB always runs
@pytest.mark.parametrize("history", [False, True])
def test_a_mirror_in_mysql_is_the_source(mysql_database: str, history: bool) -> None:
    target, schema = mysql_setup.backend_of(mysql_database).target(), mysql_database.rpartition("/")[2]
    mirror = Mirror(target, soft=False, schema=schema, history=history)
    select = f"SELECT {VERSIONED if history else SELECTED} FROM mirror"

    def found() -> list[tuple[Any, ...]]:
        return mysql_setup.sql(mysql_database, select)

    if history:
        check_history(mirror, lambda: as_versions(found()), 31, count=40)
    else:
        check_delivery_with_repeats(mirror, lambda: as_rows(found(), False), 32, soft=False, count=40)


@pytest.mark.long  # each load takes seconds
def test_versions_of_changes_in_delta_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    mirror = Mirror(lake_target(lake_backend("delta", tmp_path), spark), soft=False, history=True)
    names = VERSIONED.split(", ")

    def rows() -> list[tuple[Any, ...]]:
        found = spark.read.format("delta").load(str(tmp_path / "shop" / "mirror")).select(*names).collect()
        return as_versions([tuple(row) for row in found])

    check_history(mirror, rows, 23, count=16)


@pytest.mark.long  # each load takes seconds; tests/e2e/test_stream_cdc.py always loads a Delta table
@pytest.mark.parametrize("soft", [False, True])
def test_a_mirror_in_delta_is_the_source(spark: SparkSession, tmp_path: Path, soft: bool) -> None:
    mirror = Mirror(lake_target(lake_backend("delta", tmp_path), spark), soft)
    names = ["region", "id", "note", "amount", *(["gone_at"] if soft else [])]

    def rows() -> dict[Key, tuple[Any, Any, bool]]:
        found = spark.read.format("delta").load(str(tmp_path / "shop" / "mirror")).select(*names).collect()
        return as_rows([tuple(row) for row in found], soft)

    check_delivery_with_repeats(mirror, rows, 9, soft=soft, count=16)


# ------------------------------------------------------------------ cases that random histories seldom have


def event(op: str, lsn: int, after: dict[str, Any] | None, id: int = 1) -> bytes:
    row = None if after is None else {"region": "a", "id": id, "amount": lsn, **after}
    before = {"region": "a", "id": id} if op == "d" else None
    source = {"connector": "postgresql", "lsn": lsn, "ts_ms": 1_700_000_000_000 + lsn * 1_000}
    return json.dumps({"op": op, "before": before, "after": row, "source": source}).encode()


def embedded(path: Path, *, soft: bool = False, history: bool = False) -> tuple[Mirror, Versions]:
    mirror = Mirror(target_of(backend_at("sqlite", path)), soft=soft, history=history)
    current = " WHERE is_current" if history else ""
    gone = ", gone_at" if soft else ""
    select = f"SELECT id, note{gone} FROM shop__mirror{current} ORDER BY id"
    return mirror, lambda: run_sql("sqlite", path, select)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_a_late_change_tells_no_value_of_a_newer_one(history: bool, size: int, tmp_path: Path) -> None:
    mirror, rows = embedded(tmp_path / "mirror.db", history=history)
    mirror.deliver([event("c", 5, {"note": "new"})])
    late = [event("c", 3, {"note": "old"}), event("u", 9, {"note": UNAVAILABLE})]
    for start in range(0, 2, size):
        mirror.deliver(late[start : start + size])
    assert rows() == [(1, "new")]


@pytest.mark.parametrize(("soft", "history"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [1, 3])
def test_a_row_with_the_key_of_a_deleted_one_does_not_take_its_values(
    soft: bool, history: bool, size: int, tmp_path: Path
) -> None:
    mirror, _ = embedded(tmp_path / "mirror.db", soft=soft, history=history)
    mirror.deliver([event("c", 5, {"note": "mine"}), event("c", 6, {"note": "of another row"}, id=2)])
    moved = [event("d", 7, None, id=2), event("d", 8, None), event("c", 9, {"note": UNAVAILABLE}, id=2)]
    with pytest.raises(RowRejected, match="leave out long values"):
        for start in range(0, 3, size):
            mirror.deliver(moved[start : start + size])


@pytest.mark.parametrize("op", ["t", "d"])
def test_a_deleted_row_keeps_the_time_of_its_delete(op: str, tmp_path: Path) -> None:
    mirror, rows = embedded(tmp_path / "mirror.db", soft=True)
    mirror.deliver([event("c", 5, {"note": "x"}), event("d", 6, None)])
    ((_, _, deleted_at),) = rows()
    mirror.deliver([event(op, 8, None)])
    assert rows() == [(1, "x", deleted_at)]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_a_value_that_an_insert_does_not_have_is_null_for_later_changes(
    history: bool, size: int, tmp_path: Path
) -> None:
    mirror, rows = embedded(tmp_path / "mirror.db", history=history)
    changes = [event("c", 5, {}), event("u", 9, {"note": UNAVAILABLE})]
    for start in range(0, 2, size):
        mirror.deliver(changes[start : start + size])
    assert rows() == [(1, None)]
