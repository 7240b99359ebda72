"""Reads data files with pyarrow: their columns, row counts, and rows in declared types.

Used where no Spark is needed: to inspect files of other programs, to count the rows of adopted files, and to
find the rows at a watermark.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.exact_casts import cast_exactly
from ematix_flow.backends.objectstore.layout.file_layout import CsvDialect, FileLayout
from ematix_flow.backends.objectstore.layout.partition_folders import parse_partition_value, partition_values
from ematix_flow.backends.objectstore.layout.table_paths import DataFile, FilePath
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 32_768
_BLOCK_BYTES = 16 * 1024 * 1024  # also the longest line of CSV that can be read


def file_schema(path: FilePath, format: str, dialect: CsvDialect) -> pa.Schema:
    """The columns of a file. For a text format they are inferred from the beginning of the file."""
    import pyarrow.parquet as pq
    from pyarrow import orc

    with _name_file_in_errors(path):
        if format == "parquet":
            return pq.read_schema(_arrow_input(path))
        if format == "orc":
            return orc.ORCFile(_arrow_input(path)).schema
        if format == "csv":
            with _open_csv(path, dialect) as reader:
                return reader.schema
        return _json_schema(path)


def count_rows(path: FilePath, format: str, dialect: CsvDialect) -> int:
    import pyarrow.parquet as pq
    from pyarrow import orc

    with _name_file_in_errors(path):
        if format == "parquet":
            return int(pq.read_metadata(_arrow_input(path)).num_rows)
        if format == "orc":
            return int(orc.ORCFile(_arrow_input(path)).nrows)
        if format == "csv":
            with _open_csv(path, dialect, as_text=True) as reader:
                return sum(batch.num_rows for batch in reader)
        with _open_text(path) as lines:
            return sum(1 for line in lines if line.strip())


def read_rows(file: DataFile, layout: FileLayout, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the types of ``columns``; a missing column is null."""
    import pyarrow as pa

    inside = [c for c in columns if c.name not in layout.partition_by]
    outside = partition_values(file.name, layout.partition_by)
    with _name_file_in_errors(file.path):
        for batch in _READERS[layout.format](file.path, layout, inside):
            arrays = []
            for column in columns:
                if column.name in layout.partition_by:
                    value = parse_partition_value(outside[column.name], column)
                    array = pa.repeat(pa.scalar(value, column.type.arrow()), batch.num_rows)
                elif column.name in batch.schema.names:
                    array = _cast_values(batch.column(column.name), column)
                else:
                    array = pa.nulls(batch.num_rows, column.type.arrow())
                arrays.append(array)
            yield pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])


def _cast_values(array: pa.Array, column: ColumnSpec) -> pa.Array:
    import pyarrow as pa
    import pyarrow.types as t

    wanted = column.type.arrow()
    if array.type == wanted:
        return array
    if t.is_timestamp(array.type) and t.is_timestamp(wanted) and array.type.tz != wanted.tz:
        return array.cast(pa.timestamp("us", tz=array.type.tz)).cast(pa.int64()).cast(wanted)
    if column.type.kind == "bytes" and t.is_string(array.type):
        decoded = (None if v is None else base64.b64decode(v) for v in array.to_pylist())
        return pa.array(decoded, pa.binary())
    return cast_exactly(array, wanted)


# ------------------------------------------------------------------ one reader a format


def _read_parquet(
    path: FilePath, layout: FileLayout, columns: Sequence[ColumnSpec]
) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(_arrow_input(path)) as file:
        names = [c.name for c in columns if c.name in file.schema_arrow.names]
        yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=names)


def _read_orc(path: FilePath, layout: FileLayout, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
    from pyarrow import orc

    file = orc.ORCFile(_arrow_input(path))
    names = [c.name for c in columns if c.name in file.schema.names]
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe, columns=names)


def _read_csv(path: FilePath, layout: FileLayout, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
    with _open_csv(path, layout.csv, stored=layout.stored_columns) as reader:
        yield from reader


def _read_json(path: FilePath, layout: FileLayout, columns: Sequence[ColumnSpec]) -> Iterator[pa.RecordBatch]:
    """Read line by line, because Arrow's reader rejects NaN and DuckDB's rounds decimals."""
    with _open_text(path) as lines:
        rows: list[dict[str, Any]] = []
        for line in lines:
            if line.strip():
                rows.append(json.loads(line, parse_float=str))
            if len(rows) >= _BATCH_ROWS:
                yield _json_batch(rows, columns)
                rows = []
        if rows:
            yield _json_batch(rows, columns)


def _json_batch(rows: list[dict[str, Any]], columns: Sequence[ColumnSpec]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = []
    for column in columns:
        values = [row.get(column.name) for row in rows]
        if column.type.kind == "boolean":
            arrays.append(pa.array(values, pa.bool_()))
        else:  # a number keeps the text it has in the file
            texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
            arrays.append(pa.array(texts, pa.string()))
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])


_READERS = {"parquet": _read_parquet, "orc": _read_orc, "csv": _read_csv, "json_lines": _read_json}


def _open_csv(
    path: FilePath, dialect: CsvDialect, *, stored: Sequence[ColumnSpec] | None = None, as_text: bool = False
) -> Any:
    """A streaming reader. ``stored`` are the table's columns; older files have only the first of them."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    parsing = arrow_csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote,
        double_quote=dialect.escape == dialect.quote,
        escape_char=False if dialect.escape == dialect.quote else dialect.escape,
        newlines_in_values=True,
    )
    converting = arrow_csv.ConvertOptions(
        null_values=[dialect.null, dialect.null_unescaped],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    reading = arrow_csv.ReadOptions(block_size=_BLOCK_BYTES)
    if not dialect.header:
        reading.autogenerate_column_names = True
    if stored is not None:
        if not dialect.header:
            reading.autogenerate_column_names = False
            reading.column_names = [c.name for c in stored[: count_csv_columns(path, dialect)]]
        converting.column_types = {c.name: _csv_type(c) for c in stored}
    if as_text:
        converting.column_types = {}
        converting.default_column_type = pa.string()
    return arrow_csv.open_csv(
        _open_decompressed(path), read_options=reading, parse_options=parsing, convert_options=converting
    )


def _csv_type(column: ColumnSpec) -> pa.DataType:
    import pyarrow as pa

    return pa.string() if column.type.kind == "bytes" else column.type.arrow()


def count_csv_columns(path: FilePath, dialect: CsvDialect) -> int:
    """The number of columns in the first record of a file."""
    return len(read_first_record(path, dialect))


def read_first_record(path: FilePath, dialect: CsvDialect) -> list[str]:
    """The cells of a file's first record (the header, if there is one); empty for an empty file."""
    doubled = dialect.escape == dialect.quote
    with (
        _name_file_in_errors(path),
        _open_text(path) as stream,
        io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text,
    ):
        reader = csv.reader(
            text,
            delimiter=dialect.delimiter,
            quotechar=dialect.quote,
            doublequote=doubled,
            escapechar=None if doubled else dialect.escape,
        )
        return next(reader, [])


def _open_text(path: FilePath) -> io.BufferedReader:
    """Open a file, decompressed if its name has a compression extension."""
    return io.BufferedReader(_open_decompressed(path))


def _open_decompressed(path: FilePath) -> Any:
    import pyarrow as pa

    if isinstance(path, Path):
        return pa.input_stream(str(path), compression="detect")
    stream = path.open("rb")
    try:
        packed = pa.Codec.detect(path.name).name
    except (TypeError, ValueError):  # its name says nothing
        return pa.input_stream(stream)
    return pa.input_stream(stream, compression=packed)


def _arrow_input(path: FilePath) -> Any:
    """A path that Arrow can open, or an open file."""
    return path if isinstance(path, Path) else path.open("rb")


def _json_schema(path: FilePath) -> pa.Schema:
    """Infer the columns from the beginning of the file."""
    import pyarrow.dataset as ds
    from pyarrow import json

    if isinstance(path, Path):
        return ds.dataset(path, format="json").schema
    with json.open_json(_open_decompressed(path), json.ReadOptions(block_size=_BLOCK_BYTES)) as reader:
        return reader.schema


@contextmanager
def _name_file_in_errors(path: FilePath) -> Iterator[None]:
    """Name the file in errors of the block."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise TargetFailed(
            f"cannot read {path}: it is not UTF-8",
            next_step=f"convert it, as in  iconv -f WINDOWS-1252 -t UTF-8 '{path}'  if Windows wrote it",
        ) from error
    except (OSError, ValueError, TypeError, NotImplementedError, csv.Error) as error:
        raise TargetFailed(
            f"cannot read {path}: {error}",
            next_step="fix or remove the file, or choose another folder for the table",
        ) from error
