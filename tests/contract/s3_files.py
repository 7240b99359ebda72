"""Tables of files in a bucket, for tests: a backend, and rows read back by programs that do not know us."""

from __future__ import annotations

import json
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ematix_flow.backends.objectstore.s3_backend import S3FilesBackend
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.connections import ObjectStoreS3Connection
from ematix_flow.spec.tables import TableSpec
from tests.contract.files_reading import read_folder
from tests.services.s3 import S3Server


@dataclass(frozen=True)
class S3Lake:
    """A prefix of a bucket that no other test uses."""

    server: S3Server
    bucket: str
    format: str = "parquet"
    prefix: str = field(default_factory=lambda: f"some/lake-{uuid.uuid4().hex[:8]}")

    def backend(self, endpoint: str | None = None, **more: Any) -> S3FilesBackend:
        fields: dict[str, Any] = self.server.connection_fields(self.bucket, endpoint)
        fields |= {"prefix": self.prefix, "format": self.format, **more}
        backend = open_backend(ObjectStoreS3Connection(name="lake", **fields))
        assert isinstance(backend, S3FilesBackend)
        return backend

    def listed(self, table: TableSpec) -> list[str]:
        """The files that a reader sees who lists the table's prefix, relative to it.

        As every reader does, names that begin with an underscore are passed over.
        """
        start = self._folder(table) + "/"
        names = [key[len(start) :] for key in self.server.keys_in(self.bucket, start)]
        return [name for name in names if not name.startswith("_")]

    def hidden(self, folder: str = "") -> list[str]:
        """The objects in the product's own folder, relative to it."""
        start = f"{self.prefix}/.ematix_flow/"
        return [key[len(start) :] for key in self.server.keys_in(self.bucket, start + folder)]

    def published(self, table: TableSpec) -> list[str]:
        """The data files that the newest manifest of the table names; none when it has none."""
        client = self.server.client()
        for name in reversed(self.hidden("tables/")):
            if "/manifest-" in name:
                key = f"{self.prefix}/.ematix_flow/{name}"
                found = json.loads(client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
                if found["table"] == "/".join(filter(None, (table.schema, table.name))):
                    return sorted(found["files"])
        return []

    def replaced(self) -> list[str]:
        """The data files that tables no longer name, and keep for readers that have begun."""
        client, found = self.server.client(), []
        for name in self.hidden("tables/"):
            if "/replaced-" in name:
                key = f"{self.prefix}/.ematix_flow/{name}"
                found += json.loads(client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
        return found

    def rows(self, table: TableSpec) -> list[dict[str, Any]]:
        """The rows of the newest version: its files are downloaded and read."""
        client = self.server.client()
        with tempfile.TemporaryDirectory() as folder:
            for name in self.published(table):
                here = Path(folder, name)
                here.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(self.bucket, f"{self._folder(table)}/{name}", str(here))
            return read_folder(Path(folder), self.format, table)

    def _folder(self, table: TableSpec) -> str:
        return "/".join(filter(None, (self.prefix, table.schema, table.name)))
