"""Delta Lake as a backend: ``delta_local`` and ``delta_s3`` connections."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.base import Backend, SparkSource, Target
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.delta.format import DeltaFormat
from ematix_flow.backends.query_tables import Name, chosen_columns, query_frame
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.folders import segments
from ematix_flow.backends.stores.local import LocalStore
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.connections import Connection, DeltaLocalConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONF = {
    # the log of a table is small beside its data: 50 tasks, Delta's default, cost seconds on few cores
    "spark.databricks.delta.snapshotPartitions": "2",
    # what a MERGE takes is computed and kept before it begins
    "spark.databricks.delta.merge.materializeSource": "none",
}


class DeltaSource(SparkSource):
    """Tables under one root, read by Spark: ``FROM sales.orders`` is the folder ``sales/orders``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return chosen_columns(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        return query_frame(spark, sql, lambda name: self._read(spark, name))

    def _read(self, spark: SparkSession, name: Name) -> DataFrame:
        try:
            folder = "/".join(part for each in name for part in segments(each))
        except ValueError as error:
            raise SourceFailed(f"{'.'.join(name)!r} cannot be the name of a Delta table: {error}") from error
        if not any(n.endswith(".json") for n in self._store.names(f"{folder}/_delta_log")):
            raise SourceFailed(
                f"there is no Delta table {'.'.join(name)!r} in {self._store.uri('')}",
                next_step="name a table by its folders, as in  FROM sales.orders",
            )
        return spark.read.format("delta").load(self._store.uri(folder))


class DeltaBackend(Backend):
    """A root under which each table is a folder."""

    kind = "delta_local"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate", "merge", "scd2"}),
        transactions=True,
        same_db=False,
        parallel_write=True,
        shared_filesystem=True,
    )
    jar_groups = ("delta",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.store: Store = self.open_store()

    def open_store(self) -> Store:
        assert isinstance(self.connection, DeltaLocalConnection)
        return LocalStore(os.path.abspath(os.path.expanduser(self.connection.path)))

    def spark_conf(self) -> Mapping[str, str]:
        return _CONF

    def check(self) -> str:
        return f"Delta tables in {self.store.check()}"

    def identity(self) -> str:
        return f"delta:{self.store.identity()}"

    def source(self) -> SparkSource:
        return DeltaSource(self.store)

    def target(self) -> Target:
        from ematix_flow.backends.lake.target import LakeTarget

        return LakeTarget(DeltaFormat(self.store), self.store, self.spark_conf())
