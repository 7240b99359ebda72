"""Iceberg in a plain folder against the contract of every target. Rows are read back by pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.spec.tables import TableSpec
from tests.contract.lake_contract import LakeContract
from tests.iceberg_reading import rows_of, static_table
from tests.lakes import lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestIceberg(LakeContract):
    # what Delta's every run holds of the core that they share
    in_every_run = frozenset(
        {
            "test_every_type_and_null_arrives_unchanged",
            "test_hostile_column_names_round_trip",
            'test_hostile_table_names_round_trip[quo"te]',
            "test_a_batch_whose_key_is_in_the_ledger_is_not_applied_again",
            "test_truncate_replaces_every_row",
            "test_a_crash_at_any_commit_point_leaves_before_or_after_and_the_ledger_agrees[truncate]",
            "test_a_new_nullable_column_can_be_added",
            "test_merge_inserts_updates_and_leaves_the_rest_untouched[staged]",
            "test_a_merge_that_crashes_at_any_commit_point_leaves_before_or_after[soft]",
        }
    )

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return lake_backend("iceberg", tmp_path / "lake")

    @pytest.fixture
    def target(self, backend: Backend, spark: SparkSession) -> BatchTarget:
        return lake_target(backend, spark)

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        warehouse = Path(backend.connection.warehouse)  # type: ignore[attr-defined]
        found = static_table(warehouse, *filter(None, (table.schema, table.name)))
        return rows_of(found.scan().to_arrow(), table) if found is not None else []
