"""Reads Parquet and ORC files with Arrow inside Spark tasks, for codecs and encodings that Spark lacks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from ematix_flow.backends.arrow.exact_casts import cast_exactly
from ematix_flow.backends.objectstore.formats.stored_types import to_ddl
from ematix_flow.backends.objectstore.layout.partition_folders import partition_values
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 32_768


def arrow_frame(
    spark: SparkSession,
    files: Sequence[SourceFile],
    format: str,
    columns: Sequence[tuple[str, pa.DataType]],
    partitions: Sequence[str],
    file_column: str | None = None,
) -> DataFrame:
    """The rows of the files in query types, one task per file, with partitions as text.

    ``file_column`` is the name of the column that holds the file's name, if any.
    """
    fields = [f"{quote_name(name)} {to_ddl(kind)}" for name, kind in columns]
    fields += [
        f"{quote_name(name)} STRING" for name in (*partitions, *([file_column] if file_column else ()))
    ]
    named, listed = list(columns), list(files)
    folders = list(partitions)

    def task(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from _read_rows(listed[number], format, named, folders, file_column)

    return spark.range(0, len(listed), 1, len(listed)).mapInArrow(task, ", ".join(fields))


def _read_rows(
    file: SourceFile,
    format: str,
    columns: Sequence[tuple[str, pa.DataType]],
    partitions: Sequence[str],
    file_column: str | None,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    outside = partition_values(file.name, partitions)
    if file_column is not None:
        outside[file_column] = file.display_name
    with file.open() as stream:
        for batch in _read_batches(stream, format, file):
            there = {name.lower(): number for number, name in enumerate(batch.schema.names)}
            arrays = []
            for name, wanted in columns:
                number = there.get(name.lower())
                if number is None:
                    arrays.append(pa.nulls(batch.num_rows, _null_as_text(wanted)))
                else:
                    arrays.append(_cast_values(batch.column(number), _null_as_text(wanted), name, file))
            arrays += [pa.repeat(pa.scalar(value, pa.string()), batch.num_rows) for value in outside.values()]
            yield pa.RecordBatch.from_arrays(arrays, names=[*(name for name, _ in columns), *outside])


def _read_batches(stream: BinaryIO, format: str, file: SourceFile) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file; SourceFailed names the file and the column that Arrow cannot read."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import orc

    if format == "parquet":
        pages = pq.ParquetFile(stream)
        try:
            yield from pages.iter_batches(batch_size=_BATCH_ROWS)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable_error(file, "", error) from error
        return
    found = orc.ORCFile(stream)
    for stripe in range(found.nstripes):
        try:
            batch = found.read_stripe(stripe)
        except (pa.ArrowException, OSError) as error:
            for name in found.schema.names:
                try:
                    found.read_stripe(stripe, columns=[name])
                except (pa.ArrowException, OSError) as reason:
                    raise _unreadable_error(file, name, reason) from reason
            raise _unreadable_error(file, "", error) from error
        yield batch


def _unreadable_error(file: SourceFile, column: str, error: Exception) -> SourceFailed:
    message = str(error).splitlines()[0]
    what = f"column {column!r} of {file.display_name}" if column else file.display_name
    if "out of range for nanosecond" in message:
        return SourceFailed(
            f"{what} holds a time before 1677-09-22 or after 2262-04-11, which cannot be read from ORC's "
            "times with a zone",
            next_step="write the file as Parquet, or the column without a zone",
        )
    return SourceFailed(
        f"cannot read {what}: {message}",
        next_step="leave the column out of the query, or write the file again",
    )


def _null_as_text(wanted: pa.DataType) -> pa.DataType:
    """The type for Spark: a column of only nulls is text."""
    import pyarrow as pa

    return pa.string() if pa.types.is_null(wanted) else wanted


def _cast_values(array: pa.Array, wanted: pa.DataType, column: str, file: SourceFile) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array.type, pa.BaseExtensionType):
        if array.type == pa.uuid():
            texts = (
                None if v is None else str(v if isinstance(v, uuid.UUID) else uuid.UUID(bytes=v))
                for v in array.to_pylist()
            )
            return pa.array(texts, pa.string())
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_duration(array.type):
        array = array.cast(pa.int64())
    try:
        if pa.types.is_time(array.type):
            array = array.cast(pa.time64("us")).cast(pa.string())
            return pc.replace_substring_regex(array, r"\.?0+$", "")  # it has six places before
        return cast_exactly(array, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SourceFailed(
            f"column {column!r} of {file.display_name}: {str(error).splitlines()[0]}",
            next_step="leave the column out of the query, or write it with another type",
        ) from error
