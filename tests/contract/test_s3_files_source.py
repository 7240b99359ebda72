"""Files in a bucket as a source of Spark SQL: tables that we wrote, and what others put there."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.objectstore.reading.s3_file_tree import S3FileTree
from ematix_flow.backends.objectstore.s3_backend import S3FilesBackend
from ematix_flow.backends.stores import s3_client
from ematix_flow.errors import CannotConnect, PlanError, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import every_type, every_value
from tests.contract.s3_files import S3Lake
from tests.services.s3 import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = ColumnSpec("id", DataType("big_int"), primary_key=True)
DAY = ColumnSpec("day", DataType("text"))
TABLE = TableSpec("shop", "orders", (ID, DAY))


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": n, "day": f"d {n % 3}"} for n in range(first, last)]


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> Iterator[str]:
    name = s3.create_bucket("sources")
    yield name
    s3.drop_bucket(name)


@pytest.fixture
def lake(s3: S3Server, bucket: str) -> S3Lake:
    return S3Lake(s3, bucket)


def query(spark: SparkSession, backend: S3FilesBackend, sql: str) -> list[dict[str, Any]]:
    own = spark.newSession()
    for key, value in backend.spark_conf().items():
        own.conf.set(key, value)
    found: list[dict[str, Any]] = backend.source().frame(own, sql).toArrow().to_pylist()
    return found


def test_a_server_that_is_away_cannot_be_reached(
    spark: SparkSession, lake: S3Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 2)
    with pytest.raises(CannotConnect, match="cannot reach the S3 server"):
        query(spark, lake.backend(endpoint="http://127.0.0.1:1"), "SELECT * FROM orders")


def put(lake: S3Lake, path: str, body: bytes) -> None:
    lake.server.client().put_object(Bucket=lake.bucket, Key=f"{lake.prefix}/{path}", Body=body)


def parquet(**columns: list[Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


@pytest.mark.parametrize("format", ["parquet", "csv", "json_lines"])
def test_spark_reads_every_value_that_was_loaded(spark: SparkSession, lake: S3Lake, format: str) -> None:
    backend = replace(lake, format=format).backend()
    table = every_type()
    load_rows(backend.target(), new_load(table), every_value(), parts=2)
    columns = ", ".join(f"`{name}`" for name in table.column_names)
    found = query(spark, backend, f"SELECT {columns} FROM contract.every_type ORDER BY id")
    assert found == [{name: row[name] for name in table.column_names} for row in every_value()]


def test_a_load_that_is_not_published_is_not_seen(spark: SparkSession, lake: S3Lake) -> None:
    backend = lake.backend()
    target, count = backend.target(), "SELECT count(*) AS n FROM shop.orders"
    load_rows(target, new_load(TABLE), rows(0, 10), parts=2)
    seen = []
    with fault_points.inject(
        "files.before_publish", lambda: seen.append(query(spark, backend, count)[0]["n"])
    ):
        load_rows(target, new_load(TABLE, "truncate", max_shrink=1), rows(0, 4), parts=40)
    assert seen == [10]
    assert query(spark, backend, count) == [{"n": 4}]
    load_rows(target, new_load(TABLE), rows(4, 90), parts=40)  # many: Spark lists the folder itself
    assert query(spark, backend, count) == [{"n": 90}]
    with fault_points.inject(
        "files.before_publish", lambda: seen.append(query(spark, backend, count)[0]["n"])
    ):
        load_rows(target, new_load(TABLE), rows(90, 95))
    assert seen == [10, 90]


def test_a_quote_of_csv_that_is_never_closed_is_found(spark: SparkSession, lake: S3Lake) -> None:
    backend = replace(lake, format="csv").backend()
    put(lake, "t/day=a b/good.csv", b'a,b\n1,"x\n"\n')
    assert query(spark, backend, "SELECT a FROM t") == [{"a": 1}]
    put(lake, "t/day=a b/bad one.csv", b'a,b\n1,x\n2,"y\n3,z\n')
    with pytest.raises(SourceFailed, match=r"bad one.csv: the quote that opens in line 3 is never closed"):
        query(spark, backend, "SELECT a FROM t")


def test_partitions_of_ours_are_columns_again(spark: SparkSession, lake: S3Lake) -> None:
    backend = lake.backend()
    load_rows(backend.target(), new_load(TABLE, partition_by=("day",)), rows(0, 6))
    assert {name.split("/")[0] for name in lake.listed(TABLE)} == {"day=d 0", "day=d 1", "day=d 2"}
    assert query(spark, backend, "SELECT id, day FROM shop.orders WHERE day = 'd 1' ORDER BY id") == [
        {"id": 1, "day": "d 1"},
        {"id": 4, "day": "d 1"},
    ]


def test_what_others_put_there_is_found_by_name(spark: SparkSession, lake: S3Lake) -> None:
    put(lake, "people.parquet", parquet(id=[1, 2], name=["Ada", "Bob"]))
    put(lake, "visits/year=2025/a.parquet", parquet(person=[1]))
    put(lake, "visits/year=2026/b.parquet", parquet(person=[2], page=["/"]))
    put(lake, "visits/_SUCCESS", b"")
    put(lake, "visits/year=2026/", b"")
    sql = "SELECT p.name, v.year, v.page FROM people p JOIN Visits v ON v.person = p.id ORDER BY p.id"
    assert query(spark, lake.backend(), sql) == [
        {"name": "Ada", "year": 2025, "page": None},
        {"name": "Bob", "year": 2026, "page": "/"},
    ]
    with pytest.raises(SourceFailed, match="no table 'visit'") as raised:
        query(spark, lake.backend(), "SELECT * FROM visit")
    assert "Did you mean 'visits'?" in raised.value.what
    assert "people" in (raised.value.next_step or "")


def test_a_prefix_may_be_one_file(spark: SparkSession, lake: S3Lake) -> None:
    put(lake, "names.csv", b"name,age\nAda,36\n")
    backend = replace(lake, format="csv").backend(prefix=f"{lake.prefix}/names.csv")
    assert query(spark, backend, "SELECT name, age FROM names") == [{"name": "Ada", "age": 36}]


def test_a_folder_of_others_is_adopted_by_the_first_load(spark: SparkSession, lake: S3Lake) -> None:
    put(lake, "shop/orders/theirs.parquet", parquet(id=[100, 101], day=["old", "old"]))
    backend = lake.backend()
    applied = load_rows(backend.target(), new_load(TABLE), rows(0, 2))
    assert applied.rows.inserted == 2
    found = query(spark, backend, "SELECT id, day, _batch_id IS NULL AS theirs FROM shop.orders ORDER BY id")
    assert [(row["id"], row["theirs"]) for row in found] == [(0, False), (1, False), (100, True), (101, True)]
    put(lake, "shop/orders/stray.parquet", parquet(id=[7], day=["stray"]))
    assert len(query(spark, backend, "SELECT id FROM shop.orders")) == 4


WIDE = TableSpec("raw", "events", (ID, DAY))
NARROW = TableSpec(None, "events", (ID, DAY))


def narrow(lake: S3Lake) -> S3Lake:
    """The same place by a longer prefix: what is raw.events in the lake is events there."""
    return replace(lake, prefix=f"{lake.prefix}/raw")


@pytest.mark.parametrize("wide_loads", [True, False])
def test_a_table_that_is_loaded_through_another_prefix_is_read_by_its_manifest(
    lake: S3Lake, wide_loads: bool
) -> None:
    loading, table = (lake, WIDE) if wide_loads else (narrow(lake), NARROW)
    reading, parts = (narrow(lake), ("events",)) if wide_loads else (lake, ("raw", "events"))
    target = loading.backend().target()
    load_rows(target, new_load(table), rows(0, 3))
    load_rows(target, new_load(table, "truncate"), rows(3, 5))
    assert len(loading.listed(table)) > len(loading.published(table)), "the old files are still there"
    found = S3FileTree(reading.backend().store).own_table(parts)
    assert found is not None
    assert [file.name for file in found.files] == loading.published(table)
    (file,) = found.files
    with file.open() as content:
        assert sorted(pq.read_table(content)["id"].to_pylist()) == [3, 4]


@pytest.mark.parametrize("wide_first", [True, False])
def test_a_table_that_is_loaded_through_another_prefix_is_refused_as_a_target(
    lake: S3Lake, wide_first: bool
) -> None:
    places = [(lake, WIDE), (narrow(lake), NARROW)]
    (first, table), (second, same) = places if wide_first else places[::-1]
    load_rows(first.backend().target(), new_load(table, batch_key="slot:1"), rows(0, 3))
    for attempt in (
        lambda target: target.inspect(same),
        lambda target: load_rows(target, new_load(same), []),
    ):
        with pytest.raises(PlanError, match=f"through a connection with prefix '{first.prefix}'"):
            attempt(second.backend().target())
    again = new_load(table, batch_key="slot:1")
    assert load_rows(first.backend().target(), again, rows(0, 3)).duplicate
    assert len(first.listed(table)) == 1


def test_a_table_inside_one_of_another_prefix_is_refused(lake: S3Lake) -> None:
    load_rows(narrow(lake).backend().target(), new_load(NARROW), rows(0, 3))
    with pytest.raises(PlanError, match="would be inside 'raw/events'"):
        lake.backend().target().inspect(TableSpec("raw/events", "inner", (ID, DAY)))


def test_a_copied_table_or_lake_does_not_lead_to_where_it_came_from(lake: S3Lake) -> None:
    load_rows(narrow(lake).backend().target(), new_load(NARROW), rows(0, 3))
    client, start = lake.server.client(), f"{lake.prefix}/raw/"
    for key in lake.server.keys_in(lake.bucket, start):
        for to in ("copied/raw/", "alone/") if "/.ematix_flow/" not in key else ("copied/raw/",):
            source = {"Bucket": lake.bucket, "Key": key}
            client.copy_object(
                CopySource=source, Bucket=lake.bucket, Key=f"{lake.prefix}/{to}{key[len(start) :]}"
            )
    whole = replace(lake, prefix=f"{lake.prefix}/copied/raw").backend()
    load_rows(whole.target(), new_load(NARROW), rows(3, 5))
    alone = replace(lake, prefix=f"{lake.prefix}/alone")
    load_rows(alone.backend().target(), new_load(NARROW), rows(5, 6))
    found = S3FileTree(whole.store).own_table(("events",))
    assert found is not None
    assert len(found.files) == 2
    assert len(alone.published(NARROW)) == 2
    assert len(narrow(lake).published(NARROW)) == 1


def test_a_file_that_is_gone_is_named(spark: SparkSession, lake: S3Lake) -> None:
    backend = lake.backend()
    load_rows(backend.target(), new_load(TABLE), rows(0, 2))
    (name,) = lake.listed(TABLE)
    lake.server.client().delete_object(Bucket=lake.bucket, Key=f"{lake.prefix}/shop/orders/{name}")
    with pytest.raises(SourceFailed, match=name):
        query(spark, backend, "SELECT * FROM shop.orders")


def test_wrong_keys_are_reported_before_spark_is_asked(spark: SparkSession, lake: S3Lake) -> None:
    put(lake, "people.parquet", parquet(id=[1]))
    with pytest.raises(CannotConnect, match="refused the access keys"):
        query(spark, lake.backend(secret_access_key="wrong-one"), "SELECT * FROM people")
