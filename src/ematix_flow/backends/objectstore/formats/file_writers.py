"""Writes rows into data files: one writer per format, files of bounded size, one open file per partition.

Memory is bounded by the buffered row groups, not by the rows of a part. A file is flushed to disk before it
is reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ematix_flow.backends.arrow.batch_casts import row_rejection
from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.backends.objectstore.formats import text_cells
from ematix_flow.backends.objectstore.layout.file_layout import (
    EXTENSIONS,
    FILE_BYTES,
    FileLayout,
    storage_type,
)
from ematix_flow.backends.objectstore.layout.partition_folders import split_by_partition
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 524_288  # smaller ones cost a third more time and a fifth more space
ROW_GROUP_BYTES = 64 * 1024 * 1024
BUFFERED_BYTES = 128 * 1024 * 1024  # in all open files together
OPEN_FILES = 64

_COMPRESSION = {"uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}


@dataclass(frozen=True)
class WrittenFile:
    """A finished file: its name below the table's folder, and the highest watermark in it."""

    name: str
    rows: int
    bytes: int
    highest: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "rows": self.rows, "bytes": self.bytes, "highest": self.highest}


class FileWriter(ABC):
    """One open file of one format."""

    buffered_bytes = 0  # bytes of rows that are not in the file yet

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    def flush(self) -> None:
        """Write the buffered rows into the file."""
        return

    @abstractmethod
    def size(self) -> int:
        """Bytes in the file so far."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """Close a file that will not be finished."""


class _ArrowWriter(FileWriter):
    """Writes Parquet and ORC, in the types that the format stores."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        import pyarrow as pa

        self._schema = pa.schema(
            [(c.name, storage_type(layout.format, c.type)) for c in layout.stored_columns]
        )
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = self._open(layout)

    @abstractmethod
    def _open(self, layout: FileLayout) -> Any: ...

    def _to_storage_types(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [batch.column(f.name).cast(f.type) for f in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def size(self) -> int:
        return int(self._sink.tell())

    def close(self) -> None:
        try:
            self.flush()
            self._writer.close()
        finally:
            self._sink.close()

    def abandon(self) -> None:
        self._sink.close()


class _ParquetWriter(_ArrowWriter):
    def _open(self, layout: FileLayout) -> Any:
        import pyarrow.parquet as pq

        self._rows: list[pa.RecordBatch] = []
        self._count = 0
        compression = _COMPRESSION[layout.compression]
        return pq.ParquetWriter(
            self._sink, self._schema, compression=compression, store_decimal_as_integer=True
        )

    def write(self, batch: pa.RecordBatch) -> None:
        batch = self._to_storage_types(batch)
        self._rows.append(batch)
        self._count += batch.num_rows
        self.buffered_bytes += batch.nbytes
        if self._count >= ROW_GROUP_ROWS or self.buffered_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            groups = max(1, round(self._count / ROW_GROUP_ROWS))
            size = -(-self._count // groups)  # even groups, no small rest
            self._writer.write_table(pa.Table.from_batches(self._rows), row_group_size=size)
            self._rows, self._count, self.buffered_bytes = [], 0, 0


class _OrcWriter(_ArrowWriter):
    def _open(self, layout: FileLayout) -> Any:
        from pyarrow import orc

        return orc.ORCWriter(self._sink, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        self._writer.write(pa.Table.from_batches([self._to_storage_types(batch)]))


class _TextWriter(FileWriter):
    """Writes CSV and JSON lines."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        self._columns, self._dialect = layout.stored_columns, layout.csv
        self._csv = layout.format == "csv"
        self._file: BinaryIO = path.open("wb")
        if self._csv and layout.csv.header:
            self._file.write(text_cells.csv_header(self._columns, self._dialect))

    def write(self, batch: pa.RecordBatch) -> None:
        batch = batch.select([c.name for c in self._columns])
        lines = text_cells.csv_lines(batch, self._columns, self._dialect) if self._csv else None
        for piece in lines if lines is not None else text_cells.json_lines(batch, self._columns):
            self._file.write(piece)

    def size(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        with suppress(OSError):  # the disk is full, and that error is already raised
            self._file.close()


_WRITERS: dict[str, type[_ArrowWriter | _TextWriter]] = {
    "parquet": _ParquetWriter,
    "orc": _OrcWriter,
    "csv": _TextWriter,
    "json_lines": _TextWriter,
}


class _OpenFile:
    """A file that is being written, and the facts to report about it."""

    def __init__(self, folder: Path, name: str, layout: FileLayout) -> None:
        self.path, self.name = folder / name, name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.writer = _WRITERS[layout.format](self.path, layout)
        self.rows = 0
        self.highest: Any = None

    def write(self, batch: pa.RecordBatch, mark: str | None) -> None:
        import pyarrow.compute as pc

        self.writer.write(batch)
        self.rows += batch.num_rows
        if mark is not None:
            highest = pc.max(batch.column(mark)).as_py()
            if self.highest is None or (highest is not None and highest > self.highest):
                self.highest = highest

    def finish(self, mark: ColumnSpec | None) -> WrittenFile:
        self.writer.close()
        flush_to_disk(self.path)
        highest = None
        if mark is not None and self.highest is not None:
            highest = Watermark(mark.name, mark.type, self.highest).encode()
        return WrittenFile(self.name, self.rows, self.path.stat().st_size, highest)


OnFinished = Callable[[Path, str], None]
"""Called with each file that is finished, and its name below the table's folder."""


class RollingFileWriter:
    """Writes the files of one part: one per partition, and a new one when a file reaches its size limit."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        layout: FileLayout,
        mark: str | None = None,
        finished: OnFinished | None = None,
    ) -> None:
        self._folder, self._prefix, self._layout = folder, prefix, layout
        self._finished = finished
        self._mark = layout.column(mark) if mark is not None else None
        self._open: dict[str, _OpenFile] = {}  # by partition folder, the least recently used first
        self._done: list[WrittenFile] = []
        self._started = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that have exactly the layout's columns."""
        for partition, rows in split_by_partition(batch, self._layout.partition_by):
            if not rows.num_rows:
                continue
            file = self._open.pop(partition, None) or self._open_file(partition)
            self._open[partition] = file
            file.write(rows, self._mark.name if self._mark else None)
            if file.writer.size() >= FILE_BYTES:
                self._finish_file(partition)
            self._bound_memory()

    def close(self) -> list[WrittenFile]:
        """Finish every file, and return all files in the order in which they were finished."""
        for partition in list(self._open):
            self._finish_file(partition)
        return self._done

    def abandon(self) -> None:
        """Close the files. Nothing refers to them."""
        for file in self._open.values():
            file.writer.abandon()
        self._open.clear()

    def _open_file(self, partition: str) -> _OpenFile:
        if len(self._open) >= OPEN_FILES:
            self._finish_file(next(iter(self._open)))
        self._started += 1
        name = f"{partition}{self._prefix}-{self._started:05d}{EXTENSIONS[self._layout.format]}"
        return _OpenFile(self._folder, name, self._layout)

    def _finish_file(self, partition: str) -> None:
        file = self._open.pop(partition)
        self._done.append(file.finish(self._mark))
        if self._finished is not None:
            self._finished(file.path, file.name)

    def _bound_memory(self) -> None:
        if sum(file.writer.buffered_bytes for file in self._open.values()) > BUFFERED_BYTES:
            max(self._open.values(), key=lambda file: file.writer.buffered_bytes).writer.flush()


def check_values(batch: pa.RecordBatch, layout: FileLayout, offset: int) -> None:
    """Refuse values that the format can hold but that some readers would misread."""
    if layout.format == "orc":
        for column in layout.columns:
            times = column.type.kind in ("date", "timestamp", "timestamp_tz")
            if times and column.name in batch.schema.names:
                _check_orc_time(batch.column(column.name), column, offset)
    if layout.format == "csv" and layout.csv.null:
        for column in layout.stored_columns:
            if column.name in batch.schema.names:
                _check_null_mark(batch.column(column.name), column, offset, layout.csv.null)


def _check_null_mark(array: pa.Array, column: ColumnSpec, offset: int, null: str) -> None:
    """Refuse a text that equals the null mark: Spark and other readers ignore the quotes around it."""
    import pyarrow.compute as pc

    index = pc.index(text_cells.text_of_values(array, column), null).as_py()
    if index >= 0:
        raise RowRejected(
            f"column {column.name!r}, row {offset + index + 1:,} of what was read: the value {null!r} is "
            "the null mark, and would be read back as a null",
            next_step="choose a csv_null_value= that no value equals (an existing table takes it with "
            "mode='truncate'), or change such values in the SQL",
        )


def _check_orc_time(array: pa.Array, column: ColumnSpec, offset: int) -> None:
    """Refuse times that ORC readers in Java misread: days before the Gregorian calendar, early fractions."""
    import datetime as dt

    import pyarrow as pa
    import pyarrow.compute as pc

    first = dt.date(1582, 10, 15)
    if column.type.kind == "date":
        bad, why = pc.less(array, pa.scalar(first)), "is before 1582-10-15"
        _refuse_values(array, bad, column, offset, why)
        return
    micros = array.cast(pa.timestamp("us")).cast(pa.int64())
    start = int((dt.datetime(1582, 10, 15) - dt.datetime(1970, 1, 1)).total_seconds()) * 1_000_000
    _refuse_values(array, pc.less(micros, start), column, offset, "is before 1582-10-15")
    whole = pc.multiply(pc.divide(micros, 1_000_000), 1_000_000)
    early = pc.and_(pc.less(micros, 0), pc.not_equal(micros, whole))
    _refuse_values(array, early, column, offset, "is before 1970 and has a fraction of a second")


def _refuse_values(array: pa.Array, mask: pa.Array, column: ColumnSpec, offset: int, why: str) -> None:
    import pyarrow.compute as pc

    if pc.any(mask).as_py():
        index = pc.index(mask, True).as_py()
        why += ", which ORC readers read as different times; Parquet has no such limit"
        raise row_rejection(column.name, offset + index, array[index].as_py(), why)
