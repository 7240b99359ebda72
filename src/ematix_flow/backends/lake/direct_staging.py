"""Staging whose tasks write the table's own files, into the table's folder.

No reader sees them before a commit names them. A file's name has the attempt and the part, so that the files
of an attempt that did not commit, or of a task that failed, can be found and removed. The folder of the
attempt in the staging area has a marker for each part that a task has begun.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import struct
import tempfile
import uuid
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.lake.direct_table import WrittenFile, WrittenRows
from ematix_flow.backends.lake.staging import BEGUN_MARKER, LakeStaging, RollingParquetFiles
from ematix_flow.backends.lake.watermark_rows import SeenWatermarks, WatermarkRange, split_rows
from ematix_flow.backends.stores.base import Store
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_NAME = re.compile(r"part-[0-9a-f]{12}-[0-9a-f]{8}-.+-\d{5,}\.zstd\.parquet")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True)
class DirectStaging(LakeStaging):
    """``columns`` are those of the files, in the table's order; ``file_schema`` is how the table has them.

    ``version`` is the table's, when it began.
    """

    data_folder: str
    columns: tuple[ColumnSpec, ...]
    run_id: str
    loaded_at: dt.datetime = field(kw_only=True)
    version: int = field(kw_only=True)
    file_schema: pa.Schema = field(kw_only=True, compare=False)
    watermarks: WatermarkRange | None = field(default=None, kw_only=True)

    @property
    def attempt(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def note(self) -> str:
        """What a later run needs to remove the files of this attempt: the content of its markers."""
        return json.dumps({"table": self.data_folder, "version": self.version})

    @classmethod
    def from_note(cls, store: Store, folder: str, note: str) -> DirectStaging:
        """The staging of a dead run, to remove its files."""
        found = json.loads(note)
        spec = TableSpec(None, "left", (ColumnSpec("_", DataType("text")),))
        return cls(
            store,
            folder,
            spec,
            found["table"],
            (),
            "",
            loaded_at=dt.datetime.min,
            version=found["version"],
            file_schema=None,
        )

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        self.require_shared()
        seen = SeenWatermarks()
        with tempfile.TemporaryDirectory(prefix="ematix-flow-") as scratch:
            files, first = self._new_files(part, scratch), self._new_files(first_part(part), scratch)
            for batch in batches:
                if self.watermarks is not None:
                    batch, at_first, found = split_rows(batch, self.watermarks)
                    seen += found
                    first.write(self._with_load_columns(at_first))
                files.write(self._with_load_columns(batch))
            size = files.close() + first.close()
        highest = [seen.highest.encode()] if seen.highest is not None else []
        written = WrittenRows(files.written, first.written, highest, seen.nulls, seen.lower)
        return StagedPart(part, written.count, size, written.to_text())

    def write_first_rows(self, rows: pa.Table) -> tuple[str, Sequence[WrittenFile]]:
        """Write the rows at the first watermark that the table lacks. Returns their part, and its files."""
        part = first_part(uuid.uuid4().hex)
        with tempfile.TemporaryDirectory(prefix="ematix-flow-") as scratch:
            files = self._new_files(part, scratch)
            for batch in rows.to_batches():
                files.write(batch)
            files.close()
        return part, files.written

    def _new_files(self, part: str, scratch: str) -> _PartFiles:
        return _PartFiles(self, part, Path(scratch))

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([pa.field(c.name, c.type.arrow()) for c in self.columns])

    def paths(self, parts: Iterable[StagedPart]) -> list[str]:
        written = WrittenRows.of(part.note for part in parts)
        return [
            self.store.uri(f"{self.data_folder}/{file.name}") for file in (*written.files, *written.first)
        ]

    def file_name(self, part: str, number: int) -> str:
        return f"part-{self.attempt}-{part}-{number:05d}.zstd.parquet"

    def _with_load_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        schema = self.schema
        there, arrays = set(batch.schema.names), []
        for wanted in schema:
            if wanted.name in there:
                arrays.append(batch.column(wanted.name))
            elif wanted.name == LOADED_AT:
                arrays.append(_repeat_time(self.loaded_at, wanted.type, batch.num_rows))
            else:
                assert wanted.name == BATCH_ID
                arrays.append(_repeat_text(self.run_id, batch.num_rows))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    # ------------------------------------------------------------------ files that are not needed

    def begun_parts(self) -> set[str]:
        return set(self.store.names(self.folder)) - {BEGUN_MARKER}

    def remove_files(self, parts: Iterable[str], committed: str = "") -> None:
        """Remove the files of these parts, without those that ``committed`` names."""
        marks = [f"{self.attempt}-{part}-" for part in parts]
        names = self.store.names(self.data_folder) if marks else []
        gone = [name for name in names if any(mark in name for mark in marks) and name not in committed]
        self.store.remove_all([f"{self.data_folder}/{name}" for name in gone])


class _PartFiles:
    """The files of one part. The marker of the part is written before its first row.

    After a loss of power, maintenance removes the files that no marker names.
    """

    def __init__(self, staging: DirectStaging, part: str, scratch: Path) -> None:
        self._staging, self._part, self._has_marker = staging, part, False
        own = scratch / part
        own.mkdir()
        self._files = RollingParquetFiles(
            own,
            staging.store,
            lambda number: f"{staging.data_folder}/{staging.file_name(part, number)}",
            staging.file_schema,
            for_readers=True,
        )

    @property
    def written(self) -> Sequence[WrittenFile]:
        return self._files.written

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if not self._has_marker:
            staging, self._has_marker = self._staging, True
            staging.store.create(f"{staging.folder}/{self._part}", staging.note, durable=False)
        self._files.write(batch)

    def close(self) -> int:
        return self._files.close()


# Arrays from bytes: `pa.array` and `pa.scalar` import pandas, which takes seconds in a new task.


def _repeat_time(moment: dt.datetime, data_type: pa.DataType, rows: int) -> pa.Array:
    import pyarrow as pa

    micros = (moment - _EPOCH) // dt.timedelta(microseconds=1)
    return pa.Array.from_buffers(data_type, rows, [None, pa.py_buffer(struct.pack("=q", micros) * rows)])


def _repeat_text(text: str, rows: int) -> pa.Array:
    import pyarrow as pa

    data = text.encode()
    offsets = array("i", range(0, len(data) * (rows + 1), len(data)))
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(data * rows))


def is_direct_file(name: str) -> bool:
    """Whether a direct load has written a file of this name."""
    return bool(_FILE_NAME.fullmatch(name))


def first_part(part: str) -> str:
    """The part of the rows at the first watermark of an incremental load."""
    return f"first-{part}"
