"""Files in a bucket against the one contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ematix_flow.backends.base import Backend
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.contract import APPLY_POINTS, TargetContract
from ematix_flow.testing.loads import load_incremental, load_rows, new_load
from tests.contract.s3_files import S3Lake
from tests.services.s3 import S3Server

TABLE = TableSpec(
    "shop",
    "orders",
    (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("what", DataType("text"))),
)


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> Iterator[str]:
    """One for all: each test has its own prefix in it, and a new bucket costs a second."""
    name = s3.create_bucket("contract")
    yield name
    s3.drop_bucket(name)


class TestParquetInABucket(TargetContract):
    points = (*APPLY_POINTS, "files.version_written", "files.before_publish", "files.after_publish")

    @pytest.fixture
    def backend(self, s3: S3Server, bucket: str) -> Backend:
        self.lake = S3Lake(s3, bucket)
        return self.lake.backend()

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return self.lake.rows(table)


@pytest.mark.parametrize("format", ["csv", "json_lines", "orc"])
def test_other_formats_are_appended_replaced_and_read_incrementally(
    s3: S3Server, bucket: str, format: str
) -> None:
    lake = S3Lake(s3, bucket, format)
    target = lake.backend().target()
    source = [{"id": n, "what": f'"{n}", \n ü'} for n in range(5)]
    load_rows(target, new_load(TABLE), source[:2], parts=2)
    load_rows(target, new_load(TABLE, "truncate"), source[2:3])
    assert lake.rows(TABLE) == source[2:3]
    events = TableSpec("shop", "events", (TABLE.columns[0], TABLE.columns[1]))
    load_incremental(target, events, "id", source[:3])
    again = [*source[:3], *source[3:]]
    assert load_incremental(target, events, "id", again).rows.inserted == 2
    assert sorted(row["id"] for row in lake.rows(events)) == [0, 1, 2, 3, 4]
