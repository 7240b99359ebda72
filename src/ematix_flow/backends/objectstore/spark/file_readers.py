"""Reads files with Spark's own readers: whole folders where possible, with our own types of partitions.

Spark would read the folder ``code=007`` as the number 7. Here the names of all folders decide, as the cells
of CSV do. Where Spark would read other values from the names than were written, an expression over the path
of each file reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ematix_flow.backends.objectstore.formats.text_types import infer_type_of_texts
from ematix_flow.backends.objectstore.layout.partition_folders import (
    partition_columns,
    partition_values,
    spark_reads_partitions,
)
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.objectstore.layout.table_paths import NULL_PARTITION
from ematix_flow.backends.objectstore.reading.catalog import ReadableTable
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import text_literal
from ematix_flow.backends.spark_sql.session_settings import session_settings
from ematix_flow.backends.stores.table_folders import literal_path
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.generated_names import first_reserved_name, internal_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

FILE_COLUMN = internal_name("file")  # an extra column with the file of each row, for errors
SAMPLED_FILES = 16  # the first by name, so that a sample is always the same

_HIDDEN_BY_SPARK = "_metadata"  # where a row comes from, unless a column of the file is called so
_SHOWN = 10  # columns that an error names
_ASKED_FOR_ONE_BY_ONE = 32  # each is a request to a bucket; a folder is listed with one a thousand files

_LOCAL = re.compile("^file:(//)?")  # before the path of a file on a disk

# Above this number of paths Spark lists them with a job of one task each; a driver is quicker by far.
_LISTED_BY_DRIVER = "spark.sql.sources.parallelPartitionDiscovery.threshold"


def load_files(
    spark: SparkSession,
    reader: DataFrameReader,
    table: ReadableTable,
    files: Sequence[SourceFile],
    fields: Sequence[str],
    partitions: Mapping[str, str],
) -> DataFrame:
    """Load the files with a configured reader: as one folder if they are all of it.

    ``fields`` is the DDL of each column in the files; ``partitions`` are the types of the columns in folder
    names, which come last.
    """
    if partitions and not all(spark_reads_partitions(file.name) for file in files):
        frame = load_files_only(spark, reader.schema(", ".join(fields)), files)
        return frame.selectExpr("*", *_partition_values_sql(files[0], partitions))
    typed = [f"{quote_name(name)} {kind}" for name, kind in partitions.items()]
    reader = reader.schema(", ".join([*fields, *typed]))
    with session_settings(spark, {_LISTED_BY_DRIVER: "1000000"}):
        if table.whole_folder and len(files) == len(table.files):
            if not table.nested:
                return reader.load(literal_path(table.folder))
            if not partitions:
                return reader.option("recursiveFileLookup", True).load(literal_path(table.folder))
        if table.may_gain_other_files and len(files) == len(table.files) > _ASKED_FOR_ONE_BY_ONE:
            frame = reader.load(literal_path(table.folder))
            if _holds_exactly(frame, files):
                return frame
        return reader.option("basePath", table.folder).load([file.uri for file in files])


def load_files_only(spark: SparkSession, reader: DataFrameReader, files: Sequence[SourceFile]) -> DataFrame:
    """Load the files without the partition values in their paths."""
    with session_settings(spark, {_LISTED_BY_DRIVER: "1000000"}):
        return reader.option("recursiveFileLookup", True).load([file.uri for file in files])


def _partition_values_sql(example: SourceFile, partitions: Mapping[str, str]) -> list[str]:
    """SQL of each partition column: its value in the path of a row's file, cast to its type."""
    names = [name.lower() for name in partition_columns(example.name)]
    path, strange, folder = _percent_decoded_sql("_metadata.file_path"), "(?:/[^/=]*)*", "/[^/=]*="
    chosen = []
    for name, kind in partitions.items():
        below = len(names) - names.index(name.lower()) - 1  # the path above may have such folders as well
        found = rf"{folder}([^/]*)(?:{strange}{folder}[^/]*){{{below}}}{strange}/[^/]*\z"
        value = f"nullif(regexp_extract({path}, {text_literal(found)}, 1), {text_literal(NULL_PARTITION)})"
        escaped = f"regexp_replace({value}, '%(?![0-9A-Fa-f][0-9A-Fa-f])', '%25')"
        chosen.append(f"CAST({_percent_decoded_sql(escaped)} AS {kind}) AS {quote_name(name)}")
    return chosen


def _percent_decoded_sql(value: str) -> str:
    """SQL: decode percent escapes. `url_decode` is for forms, where a plus sign is a space."""
    return f"url_decode(replace({value}, '+', '%2B'))"


def files_with_odd_count(spark: SparkSession, files: Sequence[SourceFile], mark: str) -> list[SourceFile]:
    """The text files, compressed or not, that contain a character an odd number of times."""
    lines = load_files_only(spark, spark.read.format("text"), files)
    held = f"length(value) - length(replace(value, {text_literal(mark)}, ''))"
    counts = lines.selectExpr("_metadata.file_path AS file", f"{held} AS held").groupBy("file").sum("held")
    odd = {_LOCAL.sub("", unquote(row.file)) for row in counts.where("`sum(held)` % 2 = 1").collect()}
    return [file for file in files if file.display_name in odd]


def _holds_exactly(frame: DataFrame, files: Sequence[SourceFile]) -> bool:
    """Whether Spark's own listing of the frame has exactly these files."""
    return {unquote(uri) for uri in frame.inputFiles()} == {file.display_name for file in files}


def partition_types(table: ReadableTable, texts: Collection[str] = ()) -> dict[str, str]:
    """The Spark types of the columns in folder names; SourceFailed if the files differ in them.

    Columns in ``texts``, in lower case, stay text.
    """
    first = table.files[0]
    names = partition_columns(first.name)
    for file in table.files:
        columns = partition_columns(file.name)
        if columns != names:
            there, here = _partitions_text(names), _partitions_text(columns)
            raise SourceFailed(
                f"{first.name} of {table.name!r} is {there}, and {file.name} is {here}: "
                "the files of one table must have the same partition columns",
                next_step="move the files into folders with the same partitions, "
                "or read the folders as separate tables",
            )
    values = [partition_values(file.name, names) for file in table.files]
    return {
        name: "STRING" if name.lower() in texts else infer_type_of_texts(value[name] for value in values)
        for name in names
    }


def refuse_hidden_names(file: SourceFile, names: Collection[str]) -> None:
    """Refuse column names that Spark's reader or our helper columns would hide."""
    for name in names:
        if name.lower() == _HIDDEN_BY_SPARK or first_reserved_name([name]) is not None:
            raise SourceFailed(
                f"{file.display_name} has a column {name!r}, which is reserved for columns that reading adds",
                state="nothing was touched",
                next_step="give the column another name in the file",
            )


def require_columns(file: SourceFile, there: Sequence[str], names: Collection[str]) -> None:
    """Refuse a file that has none of the wanted columns: all of its rows would be nulls."""
    known = {name.lower() for name in there} | {name.lower() for name in partition_columns(file.name)}
    if not any(name.lower() in known for name in names):
        raise SourceFailed(
            f"{file.display_name} has none of the columns {_display_names(names)}: it "
            f"has {_display_names(there)}",
            next_step="move it to a folder for such files, or rename its columns",
        )


def _display_names(names: Collection[str]) -> str:
    return ", ".join(list(names)[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _partitions_text(columns: Sequence[str]) -> str:
    return f"partitioned by {', '.join(columns)}" if columns else "in no partition"


def union_frames(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames; a missing column is null."""
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole
