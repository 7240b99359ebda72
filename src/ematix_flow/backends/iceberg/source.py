"""Iceberg tables as a source: Spark reads them, each at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.base import SparkSource
from ematix_flow.backends.iceberg.names import Namespaces
from ematix_flow.backends.iceberg.tables import CatalogTables
from ematix_flow.backends.query_tables import Name, chosen_columns, query_frame
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IcebergSource(SparkSource):
    """``FROM sales.orders`` is the table ``orders`` in ``sales`` below the connection's namespace."""

    def __init__(self, namespaces: Namespaces, label: str) -> None:
        self._namespaces, self._label = namespaces, label
        self._tables = CatalogTables(namespaces)

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return chosen_columns(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        return query_frame(spark, sql, lambda name: self._read(spark, name))

    def _read(self, spark: SparkSession, name: Name) -> DataFrame:
        shown = ".".join(name)
        try:
            path = self._namespaces.full(name)
        except ValueError as error:
            raise SourceFailed(f"{shown!r} cannot be the name of an Iceberg table: {error}") from error
        snapshot = self._tables.look(spark, path)
        if snapshot is None:
            raise SourceFailed(
                f"there is no Iceberg table {'.'.join(path)!r} in {self._label}",
                next_step="name a table by its namespace, as in  FROM sales.orders",
            )
        return self._tables.read(spark, path, snapshot)
