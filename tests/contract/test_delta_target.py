"""Delta Lake against the contract of every target; delta-rs, which knows nothing of us, reads rows back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow import DeltaLocalConnection
from ematix_flow.backends.base import Backend, SparkTarget, Target
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import TableSpec
from tests.contract.lake_contract import LakeContract
from tests.lake_reading import read_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def as_they_are(_: str) -> Iterator[None]:
    yield


class TestDelta(LakeContract):
    spark: SparkSession

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return open_backend(DeltaLocalConnection(name="target", path=str(tmp_path / "lake")))

    @pytest.fixture
    def target(self, backend: Backend, spark: SparkSession) -> Target:
        target = backend.target()
        assert isinstance(target, SparkTarget)
        assert isinstance(target, Target)
        target.use_spark(lambda: spark, as_they_are)
        self.spark = spark
        return target

    def read_rows(self, backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
        return read_delta(backend, table, self.spark)
