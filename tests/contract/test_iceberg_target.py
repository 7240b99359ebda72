"""Iceberg in a plain folder against the contract of every target. Rows are read back by pyiceberg.

What the strategies mean is held by the core that all lakes share, and by Delta's own run of the contract.
So the usual run takes from merge and scd2 what goes another way on Iceberg; ``-m long`` takes all.
"""

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
from ematix_flow.testing.contract import TargetContract
from tests.contract.lake_contract import LakeContract
from tests.iceberg_reading import rows_of, static_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def as_they_are(_: str) -> Iterator[None]:
    yield


class InAFolder(TargetContract):
    thrifty = True

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


class TestIceberg(InAFolder):
    history = Scd2Contract.history

    test_merge_sees_a_change_of_every_type = (
        MergeContract.test_merge_sees_a_change_of_every_type_to_and_from_null
    )
    test_merge_by_hostile_names = MergeContract.test_merge_by_hostile_names
    test_hard_deletes = MergeContract.test_hard_deletes_remove_what_the_source_lacks
    test_a_late_event_splits_the_version = Scd2Contract.test_a_late_event_splits_the_version_it_falls_into


@pytest.mark.long
class TestIcebergAtLength(InAFolder, MergeContract, Scd2Contract):
    pass
