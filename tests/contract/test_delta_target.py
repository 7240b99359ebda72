"""Delta Lake against the contract of every target; delta-rs, an independent reader, reads rows back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.backends.base import Backend, BatchTarget
from ematix_flow.spec.tables import TableSpec
from tests.contract.lake_contract import LakeContract
from tests.lake_reading import read_delta
from tests.lakes import lake_backend, lake_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TestDelta(LakeContract):
    spark: SparkSession

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return lake_backend("delta", tmp_path / "lake")

    @pytest.fixture
    def target(self, backend: Backend, spark: SparkSession) -> BatchTarget:
        self.spark = spark
        return lake_target(backend, spark)

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_delta(backend, table, self.spark)
