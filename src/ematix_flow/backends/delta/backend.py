"""Delta Lake as a backend: ``delta_local`` and ``delta_s3`` connections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ematix_flow.backends.base import Backend, BatchTarget, SparkSource
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.delta.source import DeltaSource
from ematix_flow.backends.delta.stream import DeltaStream
from ematix_flow.backends.delta.table_format import DeltaFormat
from ematix_flow.backends.messages.base import StreamSource
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.connections import Connection, DeltaLocalConnection, DeltaS3Connection

_CONF = {
    # the log is much smaller than the data: Delta's default of 50 tasks costs seconds on few cores
    "spark.databricks.delta.snapshotPartitions": "2",
    # the source rows of a MERGE are computed and kept before it begins
    "spark.databricks.delta.merge.materializeSource": "none",
}


class DeltaBackend(Backend):
    """A root under which each table is a folder."""

    kind = "delta_local"
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
    jar_groups: tuple[str, ...] = ("delta",)

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

    def stream_source(self) -> StreamSource:
        return DeltaStream(self.store)

    def target(self) -> BatchTarget:
        from ematix_flow.backends.delta.target import DeltaTarget

        return DeltaTarget(DeltaFormat(self.store), self.store, self.spark_conf())


class DeltaS3Backend(DeltaBackend):
    """The same under a prefix of a bucket. One load at a time holds the lease of a table."""

    kind = "delta_s3"
    capabilities = replace(DeltaBackend.capabilities, shared_filesystem=False)
    jar_groups = ("delta", "s3")

    def open_store(self) -> Store:
        from ematix_flow.backends.stores.s3_store import S3Store

        assert isinstance(self.connection, DeltaS3Connection)
        return S3Store(self.connection)

    def spark_conf(self) -> Mapping[str, str]:
        from ematix_flow.backends.stores.s3a_settings import s3a_settings

        assert isinstance(self.connection, DeltaS3Connection)
        return {**_CONF, **s3a_settings(self.connection)}
