"""Iceberg as a target: the lake target with namespaces and the table changes that Iceberg supports."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ematix_flow.backends.base import TableChange
from ematix_flow.backends.iceberg.dialect import IcebergDialect, can_widen
from ematix_flow.backends.iceberg.spark_catalog import open_catalog
from ematix_flow.backends.iceberg.table_format import IcebergFormat
from ematix_flow.backends.lake.target import LakeTarget
from ematix_flow.backends.sql.alterations import CannotAlter
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections.lakes import IcebergConnection
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergTarget(LakeTarget):
    def __init__(
        self, connection: IcebergConnection, format: IcebergFormat, store: Store, conf: Mapping[str, str]
    ) -> None:
        super().__init__(format, store, conf)
        self.dialect = IcebergDialect()
        self.iceberg, self._connection = format, connection

    def spark(self) -> SparkSession:
        spark = super().spark()
        open_catalog(spark, self._connection)
        return spark

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        """Hold the lock. Explain if the catalog does not give access to its bucket."""
        with ExitStack() as held:
            try:
                held.enter_context(super().lock(pipeline, target, run_id))
            except CannotConnect as error:
                if self._connection.staging or self._connection.catalog_type == "hadoop":
                    raise
                raise CannotConnect(
                    f"rows cannot be staged in the catalog's warehouse: {error.what}",
                    next_step='name another location in the connection, as in  staging = "s3://bucket/prefix"',
                ) from error
            yield

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        missing = self.iceberg.missing_namespaces(self.spark(), table)
        return [
            TableChange("create_schema", name, f"CREATE NAMESPACE IF NOT EXISTS {name}") for name in missing
        ]

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        live = {c.name: c.type for c in diff.live.columns}
        for item in diff.widened:
            if not can_widen(live[item.name], item.type):
                raise CannotAlter(
                    f"Iceberg does not change column {item.name!r} from {live[item.name]} to {item.type}. "
                    "By hand: add a column of the new type, fill it, and drop the old one"
                )
        return super().alterations(session, diff)
