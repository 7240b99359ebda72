"""Lakes in a folder as tests open them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ematix_flow import DeltaLocalConnection, IcebergConnection
from ematix_flow.backends.base import Backend
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.registry import open_backend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What the core does for both, in the same way: every run sees it do so for one.
delta_first = pytest.mark.parametrize(
    "backend", ["delta", pytest.param("iceberg", marks=pytest.mark.long)], indirect=True
)
iceberg_first = pytest.mark.parametrize(
    "backend", ["iceberg", pytest.param("delta", marks=pytest.mark.long)], indirect=True
)


def lake_backend(kind: str, folder: Path) -> Backend:
    if kind == "delta":
        return open_backend(DeltaLocalConnection(name="lake", path=str(folder)))
    return open_backend(IcebergConnection(name="lake", catalog_type="hadoop", warehouse=str(folder)))


def lake_target(backend: Backend, spark: SparkSession) -> LakeTarget:
    """The target of a lake on this session, which raises errors as they are."""
    target = backend.target()
    assert isinstance(target, LakeTarget)
    target.use_spark(lambda: spark, _as_they_are)
    return target


def without_spark(backend: Backend) -> LakeTarget:
    """A target of the same folder that fails if it starts Spark."""
    target = backend.target()
    assert isinstance(target, LakeTarget)

    def start() -> SparkSession:
        raise AssertionError("the load has started Spark")

    target.use_spark(start, _as_they_are)
    return target


@contextmanager
def _as_they_are(_: str) -> Iterator[None]:
    yield
