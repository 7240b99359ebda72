"""Files in a bucket as a backend: `object_store_s3` connections."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.base import Backend, BatchTarget, SparkSource
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.messages.base import StreamSource
from ematix_flow.backends.objectstore.layout.file_layout import FILE_BYTES
from ematix_flow.backends.stores.s3_store import S3Store
from ematix_flow.backends.stores.s3a_settings import JAR_GROUPS, s3a_settings
from ematix_flow.spec.connections import Connection, ObjectStoreS3Connection


class S3FilesBackend(Backend):
    """A prefix of a bucket. Spark reads it through ``s3a://``; our own tasks write the rows."""

    kind = "object_store_s3"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate"}),
        transactions=True,
        same_db=False,
        parallel_read=True,
        concurrent_writers=True,
        parallel_write=True,
        file_bytes=FILE_BYTES,
    )
    jar_groups = JAR_GROUPS

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, ObjectStoreS3Connection)
        self._bucket = connection
        self.store = S3Store(connection)
        self.format: str = connection.format

    def spark_conf(self) -> Mapping[str, str]:
        return s3a_settings(self._bucket)

    def check(self) -> str:
        return f"{self.format} files in {self.store.check()}"

    def identity(self) -> str:
        return f"files:{self.store.identity()}"

    def source(self) -> SparkSource:
        from ematix_flow.backends.objectstore.reading.catalog import FilesCatalog
        from ematix_flow.backends.objectstore.reading.s3_file_tree import S3FileTree
        from ematix_flow.backends.objectstore.spark import FilesSource

        return FilesSource(FilesCatalog(S3FileTree(self.store), self.format), self.format)

    def target(self) -> BatchTarget:
        from ematix_flow.backends.objectstore.storage.s3_storage_root import S3StorageRoot
        from ematix_flow.backends.objectstore.target import FilesTarget

        return FilesTarget(S3StorageRoot(self.store), self.format)

    def stream_source(self) -> StreamSource:
        from ematix_flow.backends.objectstore.reading.s3_file_tree import S3FileTree
        from ematix_flow.backends.objectstore.stream import FilesStream

        # each listing costs a request per thousand files
        return FilesStream(S3FileTree(self.store), self.format, written_in_place=False, poll_seconds=5.0)
