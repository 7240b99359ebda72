"""CSV files that others wrote, as a DataFrame: columns by their headers, types by what their cells are.

Spark's reader divides the cells; everything else is an expression over them as text, so that the types
are those which were found, a pattern may say what a null is, and an error can name the file.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.objectstore import csvtypes
from ematix_flow.backends.objectstore.catalog import ReadableTable
from ematix_flow.backends.objectstore.csvheaders import (
    CsvShape,
    csv_shape,
    is_counted,
    is_utf8,
    not_utf8,
    quotes_pair,
    require_closed,
)
from ematix_flow.backends.objectstore.packing import is_hadoops
from ematix_flow.backends.objectstore.sourcefiles import SourceFile
from ematix_flow.backends.objectstore.spark.reading import (
    FILE_COLUMN,
    SAMPLED_FILES,
    load,
    odd_files,
    partition_types,
    refuse_names,
    require_columns,
    union,
)
from ematix_flow.backends.query_tables import quoted
from ematix_flow.backends.refusals import FILE, refusal, text
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.files import CsvReading, null_pattern
from ematix_flow.spec.naming import own_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

NO_NULL = "\x01\x02null"  # a mark that no file holds: an empty cell is null, an empty text in quotes is not
_RAGGED = own_name("ragged")
_HIDDEN = own_name("hidden")
_SAMPLED_BYTES = 32 * 1024 * 1024  # of larger tables, a sample says first which columns are text anyway
_SAMPLE_ROWS = 10_000
_REMEMBERED = 256

_found: OrderedDict[object, dict[str, str]] = OrderedDict()  # a query is planned and run: look once


def csv_frame(
    spark: SparkSession, table: ReadableTable, reading: CsvReading, texts: Collection[str] = ()
) -> DataFrame:
    """``texts``: columns, in lower case, that stay text, whatever their cells look like."""
    shapes = _shapes(spark, table, reading)
    if not shapes:
        raise SourceFailed(
            f"the files of {table.name!r} in {table.folder} are empty: they have no "
            + ("header" if reading.has_header else "record"),
            next_step="put a header with the columns' names into them" if reading.has_header else None,
        )
    _require_closed_quotes(spark, table, shapes, reading)
    partitions = partition_types(table, texts)
    frames = [_cells(spark, table, files, shape, reading, partitions) for shape, files in shapes.items()]
    cells = union(frames)
    names = [name for name in cells.columns if name != FILE_COLUMN and name not in partitions]
    if reading.schema_infer_max_records is not None:
        shape_of = {file: shape for shape, files in shapes.items() for file in files}
        first = [file for file in table.files if file in shape_of][:SAMPLED_FILES]
        sampled = [_cells(spark, table, [file], shape_of[file], reading, partitions) for file in first]
        types = _types(table, union(sampled).limit(reading.schema_infer_max_records), names, reading)
    else:
        types = _types(table, cells, names, reading)
    types = {name: "STRING" if name.lower() in texts else types[name] for name in names}
    checked = reading.schema_infer_max_records is not None
    chosen = [f"{_typed(name, types[name], checked)} AS {quoted(name)}" for name in names]
    typed = (f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in partitions.items())
    return cells.selectExpr(*chosen, *typed)


def csv_cells(
    spark: SparkSession, table: ReadableTable, reading: CsvReading, names: Collection[str]
) -> DataFrame | None:
    """All cells and partitions as text, and `FILE_COLUMN`; None when no file has a header or a record.

    SourceFailed names a file that has none of the columns ``names``.
    """
    shapes = _shapes(spark, table, reading)
    if not shapes:
        return None
    for shape, files in shapes.items():
        require_columns(files[0], shape.names, names)
    _require_closed_quotes(spark, table, shapes, reading)
    partitions = dict.fromkeys(partition_types(table), "STRING")
    frames = [_cells(spark, table, files, shape, reading, partitions) for shape, files in shapes.items()]
    cells = union(frames)
    texts = dict.fromkeys(cells.columns, "STRING")
    if table.size <= _SAMPLED_BYTES or csvtypes.look(cells, list(texts), texts).undecoded:
        _require_utf8(table.files)
    return cells


def _shapes(
    spark: SparkSession, table: ReadableTable, reading: CsvReading
) -> dict[CsvShape, list[SourceFile]]:
    """The files that are read alike; one without any record is in none."""
    shapes: dict[CsvShape, list[SourceFile]] = defaultdict(list)
    for file in table.files:
        shape = csv_shape(spark, file, reading)
        if shape.names:
            if shape not in shapes:
                refuse_names(file, shape.names)
            shapes[shape].append(file)
    return shapes


def _require_closed_quotes(
    spark: SparkSession,
    table: ReadableTable,
    shapes: Mapping[CsvShape, Sequence[SourceFile]],
    reading: CsvReading,
) -> None:
    """Of files that the driver has not seen the whole of, Spark counts the quotes."""
    if (table.fingerprint, reading) in _found or not quotes_pair(reading):
        return
    if reading.schema_infer_max_records is not None:  # not to look at all of it is what was asked for
        return
    spanning = {file: shape for shape, files in shapes.items() if shape.spans_lines for file in files}
    uncounted = [file for file in spanning if not is_counted(file) and not is_hadoops(file)]
    for file in odd_files(spark, uncounted, reading.quote) if uncounted else ():
        require_closed(file, spanning[file], reading)


# ------------------------------------------------------------------ cells


def _cells(
    spark: SparkSession,
    table: ReadableTable,
    files: Sequence[SourceFile],
    shape: CsvShape,
    reading: CsvReading,
    partitions: dict[str, str],
) -> DataFrame:
    """All cells as text, nulls made null; beside them the file, for errors.

    Where a header names a partition column too, the folder's value is the column. Spark would leave its
    cells out of the schema and shift those after them: they have another name, and nobody asks for them.
    """
    outside = {name.lower() for name in partitions}
    hidden = [name.lower() in outside for name in shape.names]
    names = [f"{_HIDDEN}{n}" if hidden[n] else name for n, name in enumerate(shape.names)]
    shape = replace(shape, names=tuple(names))
    fields = [f"{quoted(name)} STRING" for name in names]
    if reading.truncated_rows_ok:
        fields.append(f"{quoted(_RAGGED)} STRING")
    frame = load(spark, _reader(spark, shape, reading), table, files, fields, partitions)
    if reading.truncated_rows_ok:
        frame = frame.where(_not_too_long(shape, reading))
    shown = [name for name, is_hidden in zip(names, hidden, strict=True) if not is_hidden]
    chosen = [f"{_cell(name, shape, reading)} AS {quoted(name)}" for name in shown]
    return frame.selectExpr(*chosen, *map(quoted, partitions), f"{FILE} AS {quoted(FILE_COLUMN)}")


def _reader(spark: SparkSession, shape: CsvShape, reading: CsvReading) -> DataFrameReader:
    options: dict[str, str | bool] = {
        "sep": shape.delimiter,
        "header": reading.has_header,
        "quote": reading.quote,
        "escape": reading.escape or reading.quote,
        "nullValue": NO_NULL,
        "emptyValue": "",
        "multiLine": shape.spans_lines,
        "mode": "FAILFAST",
        "unescapedQuoteHandling": "RAISE_ERROR",
        "columnPruning": False,  # a record of another length is told, whichever columns are asked for
    }
    if shape.spans_lines or reading.terminator is not None:  # else Spark knows all three line ends
        options["lineSep"] = shape.line_end
    if reading.comment is not None:
        options["comment"] = reading.comment
    if reading.truncated_rows_ok:
        # a record with a stray quote would be one of nulls here: its text is taken as it stands
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAGGED}
        options["unescapedQuoteHandling"] = "STOP_AT_DELIMITER"
    return spark.read.format("csv").options(**options)


def _cell(name: str, shape: CsvShape, reading: CsvReading) -> str:
    cell = quoted(name)
    ends = name == shape.names[-1] or reading.truncated_rows_ok  # a record may end with any cell then
    if ends and shape.spans_lines and shape.line_end == "\n":
        # told of one line end, Spark leaves the other half of Windows' in the last cell, an empty one too
        stripped = f"CASE WHEN endswith({cell}, '\\r') THEN left({cell}, length({cell}) - 1) ELSE {cell} END"
        cell = f"CASE WHEN {cell} <> '\\r' THEN {stripped} END"
    if reading.null_regex is not None:
        pattern = text(null_pattern(reading.null_regex, "java"))
        cell = f"CASE WHEN {cell} RLIKE {pattern} THEN NULL ELSE {cell} END"
    return cell


def _not_too_long(shape: CsvShape, reading: CsvReading) -> str:
    """A short record is filled up with nulls; one with a cell too many is still an error."""
    ragged = quoted(_RAGGED)
    fields = ", ".join(f"c{number} STRING" for number in range(len(shape.names) + 1))
    marks = {
        "sep": shape.delimiter,
        "quote": reading.quote,
        "escape": reading.escape or reading.quote,
        "mode": "PERMISSIVE",
    }
    options = ", ".join(f"{text(key)}, {text(value)}" for key, value in marks.items())
    beyond = f"from_csv({ragged}, {text(fields)}, map({options})).c{len(shape.names)}"
    refused = refusal(
        FILE,
        text(f": a record has more than the {len(shape.names)} cells of the header: "),
        f"left({ragged}, 80)",
        next_step="mend the record: truncated_rows_ok lets cells be missing, not be left over",
    )
    seen = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in shape.names)  # or Spark reads no record
    return f"({ragged} IS NULL) OR ({beyond} IS NULL) OR ({refused} IS NULL AND ({seen}))"


# ------------------------------------------------------------------ types


def _types(
    table: ReadableTable, cells: DataFrame, names: Sequence[str], reading: CsvReading
) -> dict[str, str]:
    key = (table.fingerprint, reading)
    if key not in _found:
        _found[key] = _look(table, cells, names, reading)
        while len(_found) > _REMEMBERED:
            _found.popitem(last=False)
    return _found[key]


def _look(
    table: ReadableTable, cells: DataFrame, names: Sequence[str], reading: CsvReading
) -> dict[str, str]:
    if reading.schema_infer_max_records is not None:  # the cells are the sample
        there = [name for name in names if name in cells.columns]
        return {**dict.fromkeys(names, "STRING"), **csvtypes.look(cells, there).types}
    known: dict[str, str] = {}
    if table.size > _SAMPLED_BYTES:
        sample = csvtypes.look(cells.limit(_SAMPLE_ROWS), names)
        known = {name: sample.types[name] for name in sample.seen}
    found = csvtypes.look(cells, names, known)
    fell = [name for name in known if found.types[name] == "STRING" != known[name]]
    if found.undecoded or (fell and csvtypes.look(cells, fell, dict.fromkeys(fell, "STRING")).undecoded):
        _require_utf8(table.files)
    return found.types


def _require_utf8(files: Sequence[SourceFile]) -> None:
    """Spark reads bytes of another encoding as U+FFFD, which may also stand in a file of its own right."""
    for file in files:
        if not is_hadoops(file) and not is_utf8(file):
            raise not_utf8(file)


def _typed(name: str, spark_type: str, checked: bool) -> str:
    """The cell as its type; where only a sample was looked at, with an error of its own."""
    cell = quoted(name)
    if spark_type == "STRING":
        return cell
    if not checked:
        return f"CAST({cell} AS {spark_type})"
    refused = refusal(
        text(f"column {name!r} of "),
        quoted(FILE_COLUMN),
        text(": '"),
        f"left({cell}, 80)",
        text(f"' is no {spark_type}, which the first records were"),
        next_step="raise schema_infer_max_records in csv_read_options=, or leave it out to look at all",
    )
    typed = f"try_cast({cell} AS {spark_type})"
    return f"CASE WHEN {cell} IS NOT NULL AND {typed} IS NULL THEN {refused} ELSE {typed} END"
