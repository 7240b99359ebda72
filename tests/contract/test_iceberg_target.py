"""Iceberg in a plain folder against the contract of every target. Rows are read back by pyiceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import IcebergConnection
from ematix_flow.backends.base import Backend, SparkTarget, Target
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import TableSpec
from tests.contract.lake_contract import LakeContract
from tests.iceberg_reading import rows_of, static_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def as_they_are(_: str) -> Iterator[None]:
    yield


class TestIceberg(LakeContract):
    # what Delta's every run holds of the core that they share
    in_every_run = LakeContract.in_every_run - {
        "test_a_change_of_every_type_to_and_from_null_is_a_version_with_its_hash",
        "test_a_source_without_a_key_closes_it_and_a_return_opens_a_new_version",
        "test_versions_by_hostile_names[staged]",
        "test_an_scd2_load_that_crashes_at_any_commit_point_leaves_before_or_after[at]",
        "test_merge_compares_composite_keys_column_by_column",
        "test_two_rows_with_one_key_are_refused_and_named[staged]",
        "test_of_rows_with_one_key_the_last_by_the_order_column_wins",
        "test_soft_deletes_mark_the_row_and_a_return_clears_the_mark[staged]",
        "test_the_watermark_moves_with_a_merge_also_when_nothing_changed",
    }

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(
            IcebergConnection(name="target", catalog_type="hadoop", warehouse=str(tmp_path / "lake"))
        )

    @pytest.fixture
    def target(self, backend: Backend, spark: SparkSession) -> Target:
        target = backend.target()
        assert isinstance(target, SparkTarget)
        assert isinstance(target, Target)
        target.use_spark(lambda: spark, as_they_are)
        return target

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        warehouse = Path(backend.connection.warehouse)  # type: ignore[attr-defined]
        found = static_table(warehouse, *filter(None, (table.schema, table.name)))
        return rows_of(found.scan().to_arrow(), table) if found is not None else []
