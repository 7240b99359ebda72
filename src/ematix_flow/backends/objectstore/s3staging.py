"""Staging in a bucket: tasks write on their own disk and bring each file as it is finished."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.objectstore.diskfailures import told_of
from ematix_flow.backends.objectstore.places import DataFile, stem
from ematix_flow.backends.objectstore.staging import (
    ACCOUNT,
    ASIDE,
    DATA,
    Account,
    FilesStaging,
    WrittenPart,
)
from ematix_flow.backends.stores.s3 import S3Store

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class S3Path:
    """A file of a store, for those who open files by their path."""

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
class S3Staging(FilesStaging):
    """A hidden folder of the store, one folder in it for each part."""

    store: S3Store
    folder: str

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        folder = f"{self.folder}/{stem(part)}"

        def bring(path: Path, name: str) -> None:
            self.store.upload(path, f"{folder}/{DATA}/{name}")

        with _scratch() as scratch:
            here = scratch / "part"
            account = self.write_files(here, part, batches, bring)
            if account.aside:
                self.store.upload(here / ASIDE, f"{folder}/{ASIDE}")
        self.store.put(f"{folder}/{ACCOUNT}", account.to_json())
        return account.staged(part)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with _scratch() as folder:
            yield folder

    def fetch(self, part: StagedPart, scratch: Path) -> WrittenPart:
        folder = f"{self.folder}/{stem(part.part)}"
        account = Account.from_json(self.store.read(f"{folder}/{ACCOUNT}"))
        files = account.files
        data = tuple(DataFile(S3Path(self.store, f"{folder}/{DATA}/{f.name}"), f.name) for f in files)
        if not account.aside:
            return WrittenPart(account, data, None)
        aside = scratch / f"{stem(part.part)}.parquet"
        self.store.download(f"{folder}/{ASIDE}", aside)
        return WrittenPart(account, data, aside)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of this machine's disk, which may be full."""
    with (
        tempfile.TemporaryDirectory(prefix="ematix-flow-") as folder,
        told_of(Path(folder), "the table is unchanged"),
    ):
        yield Path(folder)
