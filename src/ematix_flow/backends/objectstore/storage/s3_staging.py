"""Staging in a bucket: tasks write files on their local disk and upload each finished file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.objectstore.layout.table_paths import DataFile, safe_file_name
from ematix_flow.backends.objectstore.table.disk_errors import explain_disk_errors
from ematix_flow.backends.objectstore.table.staging import (
    DATA_FOLDER,
    SET_ASIDE_FILE,
    SUMMARY_FILE,
    FilesStaging,
    PartSummary,
    WrittenPart,
)
from ematix_flow.backends.stores.s3_store import S3Store

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class S3Path:
    """A file of a store with the interface of a path."""

    store: S3Store
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> S3Path:
        return S3Path(self.store, self.path.rpartition("/")[0])

    def open(self, mode: Literal["rb"]) -> BinaryIO:
        return self.store.open(self.path)

    def __str__(self) -> str:
        return self.store.uri(self.path)


@dataclass(frozen=True, kw_only=True)
class S3FilesStaging(FilesStaging):
    """A hidden folder of the store, with one folder per part."""

    store: S3Store
    folder: str

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        folder = f"{self.folder}/{safe_file_name(part)}"

        def upload(path: Path, name: str) -> None:
            self.store.upload(path, f"{folder}/{DATA_FOLDER}/{name}")

        with _scratch_folder() as scratch:
            here = scratch / "part"
            account = self.write_files(here, part, batches, upload)
            if account.rows_set_aside:
                self.store.upload(here / SET_ASIDE_FILE, f"{folder}/{SET_ASIDE_FILE}")
        self.store.put(f"{folder}/{SUMMARY_FILE}", account.to_json())
        return account.to_staged_part(part)

    @contextmanager
    def scratch_folder(self) -> Iterator[Path]:
        with _scratch_folder() as folder:
            yield folder

    def fetch_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        folder = f"{self.folder}/{safe_file_name(part.part)}"
        account = PartSummary.from_json(self.store.read(f"{folder}/{SUMMARY_FILE}"))
        files = account.files
        data = tuple(DataFile(S3Path(self.store, f"{folder}/{DATA_FOLDER}/{f.name}"), f.name) for f in files)
        if not account.rows_set_aside:
            return WrittenPart(account, data, None)
        aside = scratch / f"{safe_file_name(part.part)}.parquet"
        self.store.download(f"{folder}/{SET_ASIDE_FILE}", aside)
        return WrittenPart(account, data, aside)


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A temporary local folder. Errors of a full disk are explained."""
    with (
        tempfile.TemporaryDirectory(prefix="ematix-flow-") as folder,
        explain_disk_errors(Path(folder), "the table is unchanged"),
    ):
        yield Path(folder)
