"""Staging of one attempt: a folder with one folder per part, each with a summary of the part.

`FilesStaging` is pickled into Spark tasks. Files are written in their final form, so applying them means
linking or copying them. Rows at the lower bound of an incremental read are kept aside in Arrow's form,
because only the commit knows whether they are new.
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
from ematix_flow.backends.objectstore.table.disk_errors import explain_disk_errors
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY_FILE, SET_ASIDE_FILE, DATA_FOLDER = "part.json", "aside.parquet", "data"

S = TypeVar("S", bound="FilesStaging")


@dataclass(frozen=True)
class PartSummary:
    """What a task reports about the part that it wrote."""

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
    """A part as its task reports it, and where its files are. ``set_aside_file`` is a local file."""

    summary: PartSummary
    data: tuple[DataFile, ...]
    set_aside_file: Path | None


def new_attempt(load: Load) -> str:
    """A unique name for an attempt."""
    return f"{load.run_id.hex[:12]}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True)
class FilesStaging(ABC):
    """The staging of one attempt. ``lower_bound`` is set when rows at the bound must be compared with the
    table."""

    attempt: str
    layout: FileLayout
    run_id: str
    loaded_at: dt.datetime
    watermark_column: str | None = None
    lower_bound: Watermark | None = None

    @classmethod
    def for_load(cls: type[S], load: Load, layout: FileLayout, attempt: str, **place: Any) -> S:
        """Create the staging of a load's attempt; ``place`` are the fields of its location."""
        return cls(
            attempt=attempt,
            layout=layout,
            run_id=str(load.run_id),
            loaded_at=load.loaded_at,
            watermark_column=load.plan.range.column if load.plan.range else None,
            lower_bound=load.plan.range.low if load.plan.range and load.plan.mode == "append" else None,
            **place,
        )

    @abstractmethod
    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Write all batches as ``part``, flush them, and then write the part's summary."""

    @abstractmethod
    def scratch_folder(self) -> AbstractContextManager[Path]:
        """A local folder for as long as the parts are applied."""

    @abstractmethod
    def fetch_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        """Fetch a part; ``scratch`` receives the files that must be local."""

    def read_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        """Fetch a part; TargetFailed if it differs from what its task reported to the driver."""
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
                f"its task reported {part.rows:,}",
                state="the table is unchanged",
                next_step="run it again",
            )
        return written

    def add_load_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with every column of the layout: load columns are added, missing columns are null."""
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
        """A unique prefix that sorts newer files first: readers that take the columns of the first file see
        all."""
        moment = round(self.loaded_at.timestamp() * 1_000_000)
        return f"part-{2**56 - moment:014x}-{self.attempt}-{part}"

    def write_files(
        self, folder: Path, part: str, batches: Iterable[pa.RecordBatch], finished: OnFinished | None = None
    ) -> PartSummary:
        """Write the rows as local files below ``data``, and the rows at the bound into a separate file."""
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
                next_step="a table of files needs a file system that the driver and every worker share",
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
        """The staging folder itself, because files that are made there can be hard-linked."""
        return nullcontext(Path(self.folder))

    def fetch_part(self, part: StagedPart, scratch: Path) -> WrittenPart:
        folder = Path(self.folder) / safe_file_name(part.part)
        account = PartSummary.from_json((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        data = tuple(DataFile(folder / DATA_FOLDER / file.name, file.name) for file in account.files)
        return WrittenPart(account, data, folder / SET_ASIDE_FILE if account.rows_set_aside else None)


class _BoundaryRowsFile:
    """The file with the rows at the bound, in Arrow's form."""

    def __init__(self, path: Path) -> None:
        self._path, self.rows = path, 0
        self._writer: Any = None

    def split_off(self, batch: pa.RecordBatch, low: Watermark | None) -> pa.RecordBatch:
        """Write the rows at the bound into the file, and return the rest."""
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
