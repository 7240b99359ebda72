"""Iceberg tables in a REST catalog and in a bucket: every strategy, read back by pyiceberg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import IcebergConnection
from ematix_flow.backends.base import BatchTarget, SparkSource
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import CannotConnect, Unsupported
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load
from ematix_flow.testing.matched_loads import load_matched, table_and_matching, table_of
from tests.iceberg_reading import rows_of
from tests.lakes import lake_target
from tests.services.s3 import REGION, S3Server
from tests.services.s3_tables import catalog_fields, create_table_bucket

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

BIG, TEXT = DataType("big_int"), DataType("text")
CUSTOMERS = table_of("customers", {"id": BIG}, {"name": TEXT})


def opened(connection: IcebergConnection, spark: SparkSession) -> BatchTarget:
    return lake_target(open_backend(connection), spark)


def named(*rows: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number, name in rows]


@pytest.fixture
def rest(s3: S3Server, s3_bucket: str) -> IcebergConnection:
    fields = catalog_fields(s3, create_table_bucket(s3), f"s3://{s3_bucket}/flow")
    return IcebergConnection(name="lake", namespace="shop", **fields)


def pyiceberg_catalog(connection: IcebergConnection) -> Catalog:
    from pyiceberg.catalog import load_catalog

    return load_catalog(
        "independent",
        **{
            "type": "rest",
            "uri": connection.uri,
            "warehouse": connection.warehouse,
            "credential": connection.credential,
            "oauth2-server-uri": f"{connection.uri}/v1/oauth/tokens",
            "s3.endpoint": connection.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": connection.access_key_id,
            "s3.secret-access-key": connection.secret_access_key,
        },
    )


def test_all_strategies_load_tables_of_a_rest_catalog(
    rest: IcebergConnection, spark: SparkSession, s3: S3Server, s3_bucket: str
) -> None:
    target = opened(rest, spark)
    load = new_load(CUSTOMERS, batch_key="slot:1")
    load_rows(target, load, named((1, "Ada"), (2, "Ben")))
    assert load_rows(target, new_load(CUSTOMERS, batch_key="slot:1"), named((3, "Cy"))).duplicate
    merged = load_matched(target, CUSTOMERS, "merge", named((2, "Bob"), (3, "Cy")))
    assert (merged.rows.inserted, merged.rows.updated) == (1, 1)
    catalog = pyiceberg_catalog(rest)

    def found(table: TableSpec) -> list[dict[str, Any]]:
        read = catalog.load_table(("shop", table.schema or "", table.name)).scan().to_arrow()
        return sorted(rows_of(read, table), key=lambda row: str(row))

    assert found(CUSTOMERS) == named((1, "Ada"), (2, "Bob"), (3, "Cy"))
    load_rows(target, new_load(CUSTOMERS, "truncate"), named((7, "Gus"), (8, "Hal")))
    assert found(CUSTOMERS) == named((7, "Gus"), (8, "Hal"))
    versions, _ = table_and_matching(table_of("versions", {"id": BIG}, {"name": TEXT}), "scd2")
    load_matched(target, versions, "scd2", named((1, "Ada")))
    load_matched(target, versions, "scd2", named((1, "Eve")))
    assert [row["name"] for row in found(versions)] == ["Ada", "Eve"]
    assert {row["is_current"] for row in found(versions.with_load_columns())} == {True, False}
    assert [entry.rows.read for entry in target.ledger(PIPELINE, TARGET, limit=2)] == [1, 1]
    left = [key for key in s3.keys_in(s3_bucket) if "/staging/" in key]
    assert left == [], "staging is gone"


def test_a_rest_catalog_is_reached_without_spark_and_refuses_strangers(
    rest: IcebergConnection, s3: S3Server
) -> None:
    told = open_backend(rest).check()
    assert s3.iceberg_endpoint in told
    assert "flow" in told
    fields = {**catalog_fields(s3, "any", ""), "credential": f"{s3.keys.access}:not-it"}
    stranger = IcebergConnection(name="stranger", **fields)
    with pytest.raises(CannotConnect, match="does not let this connection in") as refused:
        open_backend(stranger).check()
    assert "not-it" not in str(refused.value)
    with pytest.raises(CannotConnect, match="no REST catalog answers"):
        open_backend(IcebergConnection(name="gone", uri="http://127.0.0.1:1")).check()


def test_a_catalog_whose_warehouse_is_but_a_name_is_read_and_not_loaded() -> None:
    backend = open_backend(IcebergConnection(name="prod", uri="http://127.0.0.1:1", warehouse="prod"))
    assert backend.source() is not None
    with pytest.raises(Unsupported, match="cannot be a target") as refused:
        backend.target()
    assert 'staging = "s3://bucket/prefix"' in str(refused.value)


def test_a_folder_of_a_bucket_is_a_catalog(s3: S3Server, s3_bucket: str, spark: SparkSession) -> None:
    fields: dict[str, Any] = {**s3.connection_fields(s3_bucket)}
    del fields["bucket"]
    connection = IcebergConnection(
        name="bucket", catalog_type="hadoop", warehouse=f"s3://{s3_bucket}/lake", **fields
    )
    target = opened(connection, spark)
    load_rows(target, new_load(CUSTOMERS), named((1, "Ada")))
    load_matched(target, CUSTOMERS, "merge", named((1, "Eve"), (2, "Ben")))
    source = open_backend(connection).source()
    assert isinstance(source, SparkSource)
    sql = f"SELECT id, name FROM {CUSTOMERS.schema}.customers ORDER BY id"
    rows = source.frame(spark.newSession(), sql).collect()
    assert [tuple(row) for row in rows] == [(1, "Eve"), (2, "Ben")]
    assert any("/_ematix_flow/" in key for key in s3.keys_in(s3_bucket, "lake/"))
