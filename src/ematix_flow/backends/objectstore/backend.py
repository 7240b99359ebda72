"""Local files as a backend: `object_store_local` connections."""

from __future__ import annotations

import os
from pathlib import Path

from ematix_flow.backends.base import Backend, BatchTarget, SparkSource
from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.messages.base import StreamSource
from ematix_flow.backends.objectstore.layout.file_layout import FILE_BYTES
from ematix_flow.backends.objectstore.layout.table_paths import absolute_root
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.connections import Connection, ObjectStoreLocalConnection


class LocalFilesBackend(Backend):
    """A folder on a disk that the driver and every worker see."""

    kind = "object_store_local"
    capabilities = Capabilities(
        source=True,
        strategies=frozenset({"append", "truncate"}),
        transactions=True,
        same_db=False,
        parallel_read=True,
        concurrent_writers=True,
        parallel_write=True,
        shared_filesystem=True,
        file_bytes=FILE_BYTES,
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, ObjectStoreLocalConnection)
        self.root: Path = absolute_root(connection.path)
        self.format: str = connection.format

    def check(self) -> str:
        return f"{self.format} files in {LocalStore(str(self.root)).check()}"

    def identity(self) -> str:
        return f"files:{os.path.realpath(self.root)}"

    def source(self) -> SparkSource:
        from ematix_flow.backends.objectstore.spark import LocalFilesSource

        return LocalFilesSource(self.root, self.format)

    def target(self) -> BatchTarget:
        from ematix_flow.backends.objectstore.target import LocalFilesTarget

        return LocalFilesTarget(self.root, self.format)

    def stream_source(self) -> StreamSource:
        from ematix_flow.backends.objectstore.reading.file_tree import LocalFileTree
        from ematix_flow.backends.objectstore.stream import FilesStream

        return FilesStream(LocalFileTree(self.root), self.format, written_in_place=True, poll_seconds=1.0)
