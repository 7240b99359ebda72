"""Iceberg as a backend: tables of a ``hadoop``, ``rest``, ``hive``, ``glue`` or ``jdbc`` catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ematix_flow.backends.base import Backend, BatchTarget, SparkSource
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.iceberg.catalog_settings import catalog_name, storage_settings, uses_s3
from ematix_flow.backends.iceberg.direct_table import HadoopDirectTables
from ematix_flow.backends.iceberg.table_names import Namespaces
from ematix_flow.backends.iceberg.warehouse import open_store, open_warehouse, spark_warehouse, store_location
from ematix_flow.backends.lake.direct_table import SparkNeeded
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.errors import Unsupported
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.connections.lakes import IcebergConnection


class IcebergBackend(Backend):
    kind = "iceberg"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate", "merge", "scd2"}),
        transactions=True,
        same_db=False,
        parallel_read=True,
        concurrent_writers=True,
        parallel_write=True,
        shared_filesystem=True,
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, IcebergConnection)
        self._iceberg = connection
        self._store = open_store(connection)
        self.jar_groups = ("iceberg", "s3") if uses_s3(connection) else ("iceberg",)
        on_disk = isinstance(self._store, LocalStore)
        self.capabilities = replace(IcebergBackend.capabilities, shared_filesystem=on_disk)

    def spark_conf(self) -> Mapping[str, str]:
        return storage_settings(self._iceberg)

    @property
    def _namespaces(self) -> Namespaces:
        catalog = self._iceberg
        root = tuple(catalog.namespace.split(".")) if catalog.namespace else ()
        return Namespaces(catalog_name(catalog), root, needed=catalog.catalog_type != "hadoop")

    @property
    def _label(self) -> str:
        catalog = self._iceberg
        return f"the {catalog.catalog_type} catalog {catalog.uri or spark_warehouse(catalog)}"

    def check(self) -> str:
        from ematix_flow.backends.iceberg.catalog_check import check_catalog

        return check_catalog(self._iceberg, self._store)

    def identity(self) -> str:
        catalog = self._iceberg
        return f"iceberg:{catalog.catalog_type}:{catalog.uri}:{spark_warehouse(catalog)}:{catalog.namespace}"

    def source(self) -> SparkSource:
        from ematix_flow.backends.iceberg.source import IcebergSource

        return IcebergSource(self._iceberg, self._namespaces, self._label)

    def target(self) -> BatchTarget:
        from ematix_flow.backends.iceberg.table_format import IcebergFormat
        from ematix_flow.backends.iceberg.target import IcebergTarget

        if self._store is None:
            raise self._no_store_error()
        in_folders = self._iceberg.catalog_type == "hadoop" and not self._iceberg.staging
        # by the warehouse and not by the address, which may change while the tables stay
        journals = None if in_folders else spark_warehouse(self._iceberg)
        format = IcebergFormat(
            self._namespaces,
            self._store,
            journals=journals,
            warehouse=open_warehouse(self._iceberg),
            direct=self._direct_tables(),
        )
        return IcebergTarget(self._iceberg, format, self._store, self.spark_conf())

    def _direct_tables(self) -> HadoopDirectTables | SparkNeeded:
        if self._iceberg.catalog_type != "hadoop":
            return SparkNeeded(f"tables of a {self._iceberg.catalog_type} catalog are committed by Spark")
        if self._iceberg.properties:  # among them may be a lock for all writers
            return SparkNeeded("the connection has properties for Iceberg's own catalog")
        if self._iceberg.staging:
            return SparkNeeded("the connection has its staging outside of the warehouse")
        if not isinstance(self._store, LocalStore):
            return SparkNeeded("tables in a bucket without a catalog are committed by Spark")
        return HadoopDirectTables(self._store, spark_warehouse(self._iceberg))

    def _no_store_error(self) -> Unsupported:
        place = store_location(self._iceberg)
        why = f"{place!r} is neither" if place else "its warehouse names neither"
        return Unsupported(
            f"connection {self.connection.name!r} cannot be a target: staging, locks and journals need "
            f"a folder or an S3 bucket, and {why}",
            next_step='give the connection one, as in  staging = "s3://bucket/prefix"',
        )
