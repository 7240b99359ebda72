"""Loads that commit the files of their tasks into a Delta table in a bucket, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ematix_flow import DeltaS3Connection, fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import LoadPlan, StagedRows
from ematix_flow.backends.delta.backend import DeltaS3Backend
from ematix_flow.backends.delta.log_access import log_access
from ematix_flow.backends.lake.direct_table import SparkNeeded
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load
from ematix_flow.testing.matched_loads import table_of
from tests.lakes import without_spark
from tests.services.s3 import S3Server

if TYPE_CHECKING:
    pass

SMALL = table_of("small", {}, {"id": DataType("big_int"), "name": DataType("text")})
FOLDER = "contract/small"


@pytest.fixture
def backend(s3: S3Server, s3_bucket: str) -> DeltaS3Backend:
    """A connection to a bucket with an empty table."""
    from deltalake import DeltaTable

    fields: dict[str, Any] = s3.connection_fields(s3_bucket)
    backend = DeltaS3Backend(DeltaS3Connection(name="lake", prefix="lake", **fields))
    columns = [pa.field(c.name, c.type.arrow()) for c in SMALL.with_load_columns().columns]
    uri, options = delta_rs_access(backend)
    DeltaTable.create(uri, pa.schema(columns), storage_options=options)
    return backend


def delta_rs_access(backend: DeltaS3Backend) -> tuple[str, dict[str, str]]:
    access = log_access(backend.store, FOLDER)
    assert not isinstance(access, SparkNeeded)
    return access


def named(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def record_batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return cast_batch(pa.RecordBatch.from_pylist(list(rows), schema=SMALL.arrow_schema()), SMALL)


def ids(backend: DeltaS3Backend) -> list[int]:
    from deltalake import DeltaTable

    uri, options = delta_rs_access(backend)
    return sorted(DeltaTable(uri, storage_options=options).to_pyarrow_table().column("id").to_pylist())


def data_files(backend: DeltaS3Backend) -> list[str]:
    return [name for name in backend.store.names(FOLDER) if name.endswith(".parquet")]


def test_an_incremental_append_into_a_bucket_loads_rows_at_the_watermark_once(
    backend: DeltaS3Backend,
) -> None:
    target, source = without_spark(backend), named(1, 2)
    for more, inserted in ((named(), 2), ([{"id": 2, "name": "other"}, *named(3)], 2), (named(), 0)):
        source += more
        low = target.watermark(PIPELINE, TARGET, "id")
        read = [row for row in source if low is None or row["id"] >= low.value]
        load = new_load(SMALL, range=SourceRange("id", low), batch_key=None)
        assert load_rows(target, load, read, parts=2, change=False).rows.inserted == inserted
    assert ids(backend) == [1, 2, 2, 3]
    target.sweep_staging(PIPELINE, TARGET)
    assert len(data_files(backend)) == 4  # 1, 2, 2 and 3, each of another part


def test_appends_and_refreshes_of_a_bucket_need_no_spark(backend: DeltaS3Backend) -> None:
    target = without_spark(backend)
    assert target.commit_method(LoadPlan(SMALL, "append"))[0] == "direct"  # type: ignore[index]
    assert load_rows(target, new_load(SMALL), named(1, 2), parts=2, change=False).rows.inserted == 2
    replaced = load_rows(target, new_load(SMALL, "truncate"), named(3), change=False)
    assert (replaced.rows.inserted, replaced.rows.deleted) == (1, 2)
    assert ids(backend) == [3]
    assert len(target.ledger(PIPELINE, TARGET)) == 2
    assert target.sweep_staging(PIPELINE, TARGET) == []


@pytest.mark.parametrize(("mode", "held"), [("append", [1, 2, 3]), ("truncate", [3])])
def test_only_one_of_two_writers_of_a_version_succeeds(
    backend: DeltaS3Backend, mode: Any, held: list[int]
) -> None:
    from deltalake import write_deltalake

    target = without_spark(backend)
    load_rows(target, new_load(SMALL), named(1), change=False)

    def write() -> None:
        uri, options = delta_rs_access(backend)
        rows = pa.Table.from_batches([record_batch(named(2))])
        write_deltalake(uri, rows, mode="append", schema_mode="merge", storage_options=options)

    with fault_points.inject("apply.before_commit", write):
        load_rows(target, new_load(SMALL, mode), named(3), change=False)
    assert ids(backend) == held
    assert len(target.ledger(PIPELINE, TARGET)) == 2


@pytest.mark.parametrize("point", ["apply.began", "apply.before_commit", "apply.after_commit"])
def test_files_of_a_dead_load_are_removed_when_it_can_no_longer_commit(
    backend: DeltaS3Backend, point: str
) -> None:
    """A process that is only slow loses its lease, and may still send its commit: for the next version."""
    dying, load = without_spark(backend), new_load(SMALL, batch_key="one")
    staging = dying.create_staging(load, SMALL.arrow_schema())
    part = staging.write("part", [record_batch(named(1))])
    with pytest.raises(fault_points.InjectedCrash), fault_points.inject(point, "crash"):
        dying.apply(load, StagedRows(staging, (part,)))
    committed = point == "apply.after_commit"
    next_run = without_spark(backend)
    assert len(next_run.sweep_staging(PIPELINE, TARGET)) == int(committed)
    assert len(data_files(backend)) == 1
    again = replace(new_load(SMALL), batch_key="one")
    assert load_rows(next_run, again, named(1), change=False).duplicate == committed
    assert ids(backend) == [1]
    assert len(next_run.sweep_staging(PIPELINE, TARGET)) == int(not committed)
    assert len(data_files(backend)) == 1
    assert next_run.sweep_staging(PIPELINE, TARGET) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ca_cert_path": "/ca.pem"}, "delta-rs does not use ca_cert_path"),
        ({"endpoint": "", "region": ""}, "the connection names no region"),
        (
            {"anonymous": True, "access_key_id": "", "secret_access_key": ""},
            "delta-rs writes only with keys of the bucket's own account",
        ),
    ],
)
def test_a_connection_that_delta_rs_cannot_use_needs_spark(
    s3: S3Server, given: dict[str, Any], reason: str
) -> None:
    fields: dict[str, Any] = {**s3.connection_fields("bucket"), **given}
    backend = DeltaS3Backend(DeltaS3Connection(name="lake", prefix="lake", **fields))
    assert log_access(backend.store, FOLDER) == SparkNeeded(reason)
