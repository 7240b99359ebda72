"""Staging: a folder of one attempt, a folder in it for each part, and the part's own account of itself.

`FilesStaging` is what is pickled into a Spark task. Files are written in their final form, so that
applying them is linking or copying them. Rows at the lower bound of an incremental read are set aside
unencoded: whether they are new is known only when they are applied.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.backends.base import Load, StagedPart
from ematix_flow.backends.objectstore.formats.file_writers import (
    OnFinished,
    RollingFileWriter,
    WrittenFile,
    check_values,
)
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout
from ematix_flow.backends.objectstore.layout.table_paths import DataFile, safe_file_name
from ematix_flow.backends.objectstore.writing.disk_errors import explain_disk_errors
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY_FILE, SET_ASIDE_FILE, DATA_FOLDER = "part.json", "aside.parquet", "data"

S = TypeVar("S", bound="FilesStaging")


@dataclass(frozen=True)
class PartSummary:
    """What a task says of the part that it wrote."""

    files: tuple[WrittenFile, ...]
    rows: int
    rows_set_aside: int  # rows at the bound, which are in no file yet
    rows_without_watermark: int  # rows without a watermark

    def to_staged_part(self, part: str) -> StagedPart:
        return StagedPart(part, self.rows, sum(file.bytes for file in self.files))

    def to_json(self) -> str:
        files = [file.to_json() for file in self.files]
        value = {
            "rows": self.rows,
            "aside": self.rows_set_aside,
            "unmarked": self.rows_without_watermark,
            "files": files,
        }
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> PartSummary:
        found = json.loads(text)
        files = tuple(WrittenFile(**file) for file in found["files"])
        return cls(files, found["rows"], found["aside"], found["unmarked"])


@dataclass(frozen=True)
class WrittenPart:
    """A part as its task describes it, and where its files are. ``aside_file`` is on this machine."""

    summary: PartSummary
    data: tuple[DataFile, ...]
    set_aside_file: Path | None


def new_attempt(load: Load) -> str:
    """A name that no other attempt has."""
    return f"{load.run_id.hex[:12]}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True)
class FilesStaging(ABC):
    """One attempt's staging. ``low`` is set when rows at the bound must be matched before they count."""

    attempt: str
    layout: FileLayout
    run_id: str
    loaded_at: dt.datetime
    watermark_column: str | None = None
    lower_bound: Watermark | None = None

    @classmethod
    def for_load(cls: type[S], load: Load, layout: FileLayout, attempt: str, **place: Any) -> S:
        """The staging of a load's attempt at a ``place``, which each kind names in its own way."""
        return cls(
            attempt=attempt,
            layout=layout,
            run_id=str(load.run_id),
            loaded_at=load.loaded_at,
            watermark_column=load.range.column if load.range else None,
            lower_bound=load.range.low if load.range and load.mode == "append" else None,
            **place,
        )

    @abstractmethod
    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Write all batches as ``part``, keep them safe, and only then leave the part's account."""

    @abstractmethod
    def scratch_folder(self) -> AbstractContextManager[Path]:
        """A folder of this machine while the parts are applied."""

    @abstractmethod
    def fetch_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        """What a part's task left; ``scratch`` is for what must be on this machine."""

    def read_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        """What a part's task wrote; TargetFailed when it is not what it told the driver."""
        try:
            written = self.fetch_part(part, scratch)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetFailed(
                f"the staged part {part.part!r} cannot be read: {error}",
                state="the table is unchanged",
                next_step="run it again",
            ) from error
        if written.summary.rows != part.rows:
            raise TargetFailed(
                f"the staged part {part.part!r} holds {written.summary.rows:,} rows; "
                f"its task told of {part.rows:,}",
                state="the table is unchanged",
                next_step="run it again",
            )
        return written

    def add_load_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with every column of the layout: load columns added, columns not brought null."""
        import pyarrow as pa

        stamps: dict[str, Any] = {LOADED_AT: self.loaded_at, BATCH_ID: self.run_id}
        arrays = []
        for column in self.layout.columns:
            if column.name in batch.schema.names:
                arrays.append(batch.column(column.name))
            else:
                value = pa.scalar(stamps.get(column.name), column.type.arrow())
                arrays.append(pa.repeat(value, batch.num_rows))
        return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in self.layout.columns])

    def file_prefix(self, part: str) -> str:
        """Unique, and the newest first: a reader that takes the columns of the first file sees them all."""
        moment = round(self.loaded_at.timestamp() * 1_000_000)
        return f"part-{2**56 - moment:014x}-{self.attempt}-{part}"

    def write_files(
        self, folder: Path, part: str, batches: Iterable[pa.RecordBatch], finished: OnFinished | None = None
    ) -> PartSummary:
        """The rows as files on this machine's disk, below ``data``; those at the bound in a file beside."""
        (folder / DATA_FOLDER).mkdir(parents=True)
        prefix = self.file_prefix(hashlib.sha256(part.encode()).hexdigest()[:12])
        files = RollingFileWriter(folder / DATA_FOLDER, prefix, self.layout, self.watermark_column, finished)
        aside = _BoundaryRowsFile(folder / SET_ASIDE_FILE)
        rows = unmarked = 0
        try:
            for batch in batches:
                check_values(batch, self.layout, rows)
                rows += batch.num_rows
                if self.watermark_column is not None:
                    unmarked += batch.column(self.watermark_column).null_count
                files.write(self.add_load_columns(aside.split_off(batch, self.lower_bound)))
            written = files.close()
            aside.close()
        except BaseException:
            files.abandon()
            aside.abandon()
            raise
        return PartSummary(tuple(written), rows, aside.rows, unmarked)


@dataclass(frozen=True, kw_only=True)
class LocalFilesStaging(FilesStaging):
    """A folder that the driver and every worker see."""

    folder: str

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        staging = Path(self.folder)
        if not staging.is_dir():
            raise TargetFailed(
                f"this task does not see the staging folder {staging}",
                next_step="files as a target need a file system that the driver and every worker share",
            )
        with explain_disk_errors(staging, "the table is unchanged"):
            folder = staging / safe_file_name(part)
            account = self.write_files(folder, part, batches)
            with (folder / SUMMARY_FILE).open("w", encoding="utf-8") as file:
                file.write(account.to_json())
                file.flush()
                os.fsync(file.fileno())
        return account.to_staged_part(part)

    def scratch_folder(self) -> AbstractContextManager[Path]:
        """The staging folder itself: what is made there can be linked."""
        return nullcontext(Path(self.folder))

    def fetch_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        folder = Path(self.folder) / safe_file_name(part.part)
        account = PartSummary.from_json((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        data = tuple(DataFile(folder / DATA_FOLDER / file.name, file.name) for file in account.files)
        return WrittenPart(account, data, folder / SET_ASIDE_FILE if account.rows_set_aside else None)


class _BoundaryRowsFile:
    """The rows at the bound, kept as they travel."""

    def __init__(self, path: Path) -> None:
        self._path, self.rows = path, 0
        self._writer: Any = None

    def split_off(self, batch: pa.RecordBatch, low: Watermark | None) -> pa.RecordBatch:
        """Set the rows at ``low`` aside; the rest."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if low is None or not batch.num_rows:
            return batch
        at_bound = pc.equal(batch.column(low.column), pa.scalar(low.value, low.type.arrow())).fill_null(False)
        rows = batch.filter(at_bound)
        if rows.num_rows:
            if self._writer is None:
                self._writer = pq.ParquetWriter(str(self._path), batch.schema, compression="zstd")
            self._writer.write_batch(rows)
            self.rows += rows.num_rows
        return batch.filter(pc.invert(at_bound))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    abandon = close


def highest_watermark(parts: Sequence[WrittenPart], staging: FilesStaging) -> Watermark | None:
    """The highest watermark among all rows of the parts."""
    column = staging.layout.column(staging.watermark_column) if staging.watermark_column is not None else None
    if column is None:
        return None
    type_json = Watermark(column.name, column.type, 0).type_json()
    encoded = [file.highest for part in parts for file in part.summary.files if file.highest is not None]
    found = [Watermark.decode(column.name, type_json, text) for text in encoded]
    if staging.lower_bound is not None and any(part.summary.rows_set_aside for part in parts):
        found.append(staging.lower_bound)
    return max(found, key=lambda mark: mark.value, default=None)
