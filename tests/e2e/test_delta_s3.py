"""Delta tables in a bucket of a real S3 server, loaded by pipelines as a user writes them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow import (
    BigInt,
    DeltaS3Connection,
    DuckDBConnection,
    Text,
    Timestamp,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.errors import CannotConnect, FlowError
from tests.services.s3 import S3Server
from tests.services.shared import private_server

s3 = private_server("s3")  # a test here restarts it
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(
            "CREATE TABLE customers AS SELECT range AS id, 'n' || range AS name,"
            " TIMESTAMP '2026-01-01' + INTERVAL (range) SECOND AS changed FROM range(50)"
        )
    register_connection(DuckDBConnection(name="shop", path=str(path)))
    return path


def customers(mode: str, **options: Any) -> Any:
    @ematix.table(schema="crm", name="customers")
    class Customer:
        id: Annotated[BigInt, pk()]
        name: Text
        changed: Timestamp

    @ematix.pipeline(
        source_connection="shop", target_connection="lake", target=Customer, mode=mode, name="crm", **options
    )
    def crm(conn: Any) -> str:
        return "SELECT id, name, changed FROM customers"

    return crm


def read_back(s3: S3Server, bucket: str) -> list[dict[str, Any]]:
    """By delta-rs, with the keys of the server."""
    from deltalake import DeltaTable

    fields = s3.connection_fields(bucket)
    options = {
        "AWS_ENDPOINT_URL": fields["endpoint"],
        "AWS_ACCESS_KEY_ID": fields["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": fields["secret_access_key"],
        "AWS_REGION": fields.get("region") or "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    table = DeltaTable(f"s3://{bucket}/lake/crm/customers", storage_options=options)
    return sorted(table.to_pyarrow_table(columns=["id", "name"]).to_pylist(), key=lambda row: row["id"])


def test_a_merge_into_a_bucket_brings_changes_and_shows_no_secret(
    s3: S3Server, s3_bucket: str, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="ematix_flow")
    fields = s3.connection_fields(s3_bucket)
    register_connection(DeltaS3Connection(name="lake", prefix="lake", **fields))  # type: ignore[arg-type]
    pipeline = customers("merge", incremental=True, watermark_column="changed")
    first = pipeline.sync()
    assert first.targets[0].rows_inserted == 50
    with duckdb.connect(str(source)) as database:
        database.execute("UPDATE customers SET name = 'new', changed = '2026-02-01' WHERE id < 2")
        database.execute("INSERT INTO customers VALUES (99, 'late', '2026-02-02')")
    second = pipeline.sync()
    assert (second.targets[0].rows_inserted, second.targets[0].rows_updated) == (1, 2)
    assert pipeline.sync().targets[0].status == "skipped"
    rows = read_back(s3, s3_bucket)
    assert len(rows) == 51
    assert [row["name"] for row in rows[:3]] == ["new", "new", "n2"]
    assert rows[-1] == {"id": 99, "name": "late"}
    assert not [key for key in s3.keys_in(s3_bucket) if "/staging/" in key]
    told = caplog.text + str(second) + repr(pipeline.plan())
    assert fields["secret_access_key"] not in told


def test_wrong_keys_are_reported_before_anything_is_read(s3: S3Server, s3_bucket: str, source: Path) -> None:
    fields = {**s3.connection_fields(s3_bucket), "secret_access_key": "not the right one"}
    register_connection(DeltaS3Connection(name="lake", prefix="lake", **fields))  # type: ignore[arg-type]
    with pytest.raises(CannotConnect) as told:
        customers("append").sync()
    assert "not the right one" not in str(told.value)
    assert told.value.next_step


def test_a_server_that_goes_away_in_mid_load_loses_nothing(
    s3: S3Server, s3_bucket: str, source: Path
) -> None:
    from ematix_flow import fault_points

    register_connection(DeltaS3Connection(name="lake", prefix="lake", **s3.connection_fields(s3_bucket)))  # type: ignore[arg-type]
    pipeline = customers("append")
    with fault_points.inject("apply.before_commit", s3.restart):
        pipeline.sync()
    assert len(read_back(s3, s3_bucket)) == 50
    with fault_points.inject("apply.before_commit", "raise"), pytest.raises(FlowError):
        pipeline.sync()
    assert len(read_back(s3, s3_bucket)) == 50
    pipeline.sync()
    assert len(read_back(s3, s3_bucket)) == 100
