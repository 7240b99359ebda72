"""CSV files of other programs as a DataFrame: columns by their headers, types inferred from all cells.

Spark's reader splits the cells. Everything else is an expression over their text, so that the types are those
that were inferred, a pattern can define nulls, and an error can name the file.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.objectstore.formats import text_types
from ematix_flow.backends.objectstore.formats.compression import is_hadoop_codec
from ematix_flow.backends.objectstore.formats.csv_headers import (
    CsvShape,
    are_quotes_counted,
    find_csv_shape,
    is_utf8,
    not_utf8_error,
    quotes_come_in_pairs,
    require_closed_quotes,
)
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.backends.objectstore.reading.catalog import ReadableTable
from ematix_flow.backends.objectstore.spark.file_readers import (
    FILE_COLUMN,
    SAMPLED_FILES,
    files_with_odd_count,
    load_files,
    partition_types,
    refuse_hidden_names,
    require_columns,
    union_frames,
)
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import FILE_PATH_SQL, raise_error_sql, text_literal
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.file_options import CsvReadOptions, null_pattern
from ematix_flow.spec.generated_names import internal_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

NEVER_A_NULL = (
    "\x01\x02null"  # a mark that no file holds: an empty cell is null, an empty text in quotes is not
)
_RAGGED = internal_name("ragged")
_HIDDEN = internal_name("hidden")
_SAMPLED_BYTES = 32 * 1024 * 1024  # in larger tables, a sample finds columns that are text first
_SAMPLE_ROWS = 10_000
_REMEMBERED = 256

_known_types: OrderedDict[object, dict[str, str]] = OrderedDict()  # a query is planned and run: infer once


def csv_frame(
    spark: SparkSession, table: ReadableTable, reading: CsvReadOptions, texts: Collection[str] = ()
) -> DataFrame:
    """``texts``: columns, in lower case, that stay text."""
    shapes = _files_by_shape(spark, table, reading)
    if not shapes:
        raise SourceFailed(
            f"the files of {table.name!r} in {table.folder} are empty: they have no "
            + ("header" if reading.has_header else "record"),
            next_step="put a header with the columns' names into them" if reading.has_header else None,
        )
    _require_closed_quotes(spark, table, shapes, reading)
    partitions = partition_types(table, texts)
    frames = [_read_cells(spark, table, files, shape, reading, partitions) for shape, files in shapes.items()]
    cells = union_frames(frames)
    names = [name for name in cells.columns if name != FILE_COLUMN and name not in partitions]
    if reading.schema_infer_max_records is not None:
        shape_of = {file: shape for shape, files in shapes.items() for file in files}
        first = [file for file in table.files if file in shape_of][:SAMPLED_FILES]
        sampled = [_read_cells(spark, table, [file], shape_of[file], reading, partitions) for file in first]
        types = _column_types(
            table, union_frames(sampled).limit(reading.schema_infer_max_records), names, reading
        )
    else:
        types = _column_types(table, cells, names, reading)
    types = {name: "STRING" if name.lower() in texts else types[name] for name in names}
    checked = reading.schema_infer_max_records is not None
    chosen = [f"{_cast_cell_sql(name, types[name], checked)} AS {quote_name(name)}" for name in names]
    typed = (f"CAST({quote_name(name)} AS {kind}) AS {quote_name(name)}" for name, kind in partitions.items())
    return cells.selectExpr(*chosen, *typed)


def csv_cells(
    spark: SparkSession, table: ReadableTable, reading: CsvReadOptions, names: Collection[str]
) -> DataFrame | None:
    """All cells and partitions as text, and `FILE_COLUMN`; None if no file has a header or a record.

    SourceFailed names a file that has none of the columns ``names``.
    """
    shapes = _files_by_shape(spark, table, reading)
    if not shapes:
        return None
    for shape, files in shapes.items():
        require_columns(files[0], shape.names, names)
    _require_closed_quotes(spark, table, shapes, reading)
    partitions = dict.fromkeys(partition_types(table), "STRING")
    frames = [_read_cells(spark, table, files, shape, reading, partitions) for shape, files in shapes.items()]
    cells = union_frames(frames)
    texts = dict.fromkeys(cells.columns, "STRING")
    if table.size <= _SAMPLED_BYTES or text_types.infer_types(cells, list(texts), texts).has_undecodable_text:
        _require_utf8(table.files)
    return cells


def _files_by_shape(
    spark: SparkSession, table: ReadableTable, reading: CsvReadOptions
) -> dict[CsvShape, list[SourceFile]]:
    """The files grouped by how they are read. Files without a record are left out."""
    shapes: dict[CsvShape, list[SourceFile]] = defaultdict(list)
    for file in table.files:
        shape = find_csv_shape(spark, file, reading)
        if shape.names:
            if shape not in shapes:
                refuse_hidden_names(file, shape.names)
            shapes[shape].append(file)
    return shapes


def _require_closed_quotes(
    spark: SparkSession,
    table: ReadableTable,
    shapes: Mapping[CsvShape, Sequence[SourceFile]],
    reading: CsvReadOptions,
) -> None:
    """Let Spark count the quotes of files that the driver has not read completely."""
    if (table.fingerprint, reading) in _known_types or not quotes_come_in_pairs(reading):
        return
    if reading.schema_infer_max_records is not None:  # the user limits the inspection
        return
    spanning = {file: shape for shape, files in shapes.items() if shape.spans_lines for file in files}
    uncounted = [file for file in spanning if not are_quotes_counted(file) and not is_hadoop_codec(file)]
    for file in files_with_odd_count(spark, uncounted, reading.quote) if uncounted else ():
        require_closed_quotes(file, spanning[file], reading)


# ------------------------------------------------------------------ cells


def _read_cells(
    spark: SparkSession,
    table: ReadableTable,
    files: Sequence[SourceFile],
    shape: CsvShape,
    reading: CsvReadOptions,
    partitions: dict[str, str],
) -> DataFrame:
    """All cells as text, with nulls, and the file of each row for errors.

    If a header also names a partition column, the folder's value is used. Spark would drop those cells from
    the schema and shift the ones after them, so they get another name that nothing selects.
    """
    outside = {name.lower() for name in partitions}
    hidden = [name.lower() in outside for name in shape.names]
    names = [f"{_HIDDEN}{n}" if hidden[n] else name for n, name in enumerate(shape.names)]
    shape = replace(shape, names=tuple(names))
    fields = [f"{quote_name(name)} STRING" for name in names]
    if reading.truncated_rows_ok:
        fields.append(f"{quote_name(_RAGGED)} STRING")
    frame = load_files(spark, _reader(spark, shape, reading), table, files, fields, partitions)
    if reading.truncated_rows_ok:
        frame = frame.where(_record_length_sql(shape, reading))
    shown = [name for name, is_hidden in zip(names, hidden, strict=True) if not is_hidden]
    chosen = [f"{_cell_sql(name, shape, reading)} AS {quote_name(name)}" for name in shown]
    return frame.selectExpr(
        *chosen, *map(quote_name, partitions), f"{FILE_PATH_SQL} AS {quote_name(FILE_COLUMN)}"
    )


def _reader(spark: SparkSession, shape: CsvShape, reading: CsvReadOptions) -> DataFrameReader:
    options: dict[str, str | bool] = {
        "sep": shape.delimiter,
        "header": reading.has_header,
        "quote": reading.quote,
        "escape": reading.escape or reading.quote,
        "nullValue": NEVER_A_NULL,
        "emptyValue": "",
        "multiLine": shape.spans_lines,
        "mode": "FAILFAST",
        "unescapedQuoteHandling": "RAISE_ERROR",
        "columnPruning": False,  # a record of another length is an error, also when few columns are read
    }
    if shape.spans_lines or reading.terminator is not None:  # else Spark knows all three line ends
        options["lineSep"] = shape.line_end
    if reading.comment is not None:
        options["comment"] = reading.comment
    if reading.truncated_rows_ok:
        # a record with a stray quote would otherwise become nulls: keep its text unchanged
        options |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAGGED}
        options["unescapedQuoteHandling"] = "STOP_AT_DELIMITER"
    return spark.read.format("csv").options(**options)


def _cell_sql(name: str, shape: CsvShape, reading: CsvReadOptions) -> str:
    cell = quote_name(name)
    ends = name == shape.names[-1] or reading.truncated_rows_ok  # a record may end with any cell then
    if ends and shape.spans_lines and shape.line_end == "\n":
        # with an explicit line end, Spark leaves the carriage return of Windows in the last cell
        stripped = f"CASE WHEN endswith({cell}, '\\r') THEN left({cell}, length({cell}) - 1) ELSE {cell} END"
        cell = f"CASE WHEN {cell} <> '\\r' THEN {stripped} END"
    if reading.null_regex is not None:
        pattern = text_literal(null_pattern(reading.null_regex, "java"))
        cell = f"CASE WHEN {cell} RLIKE {pattern} THEN NULL ELSE {cell} END"
    return cell


def _record_length_sql(shape: CsvShape, reading: CsvReadOptions) -> str:
    """SQL: an error for a record with too many cells. A short record is filled up with nulls."""
    ragged = quote_name(_RAGGED)
    fields = ", ".join(f"c{number} STRING" for number in range(len(shape.names) + 1))
    marks = {
        "sep": shape.delimiter,
        "quote": reading.quote,
        "escape": reading.escape or reading.quote,
        "mode": "PERMISSIVE",
    }
    options = ", ".join(f"{text_literal(key)}, {text_literal(value)}" for key, value in marks.items())
    beyond = f"from_csv({ragged}, {text_literal(fields)}, map({options})).c{len(shape.names)}"
    refused = raise_error_sql(
        FILE_PATH_SQL,
        text_literal(f": a record has more than the {len(shape.names)} cells of the header: "),
        f"left({ragged}, 80)",
        next_step="fix the record: truncated_rows_ok allows missing cells, not extra ones",
    )
    seen = " OR ".join(f"{quote_name(name)} IS NOT NULL" for name in shape.names)  # or Spark reads no record
    return f"({ragged} IS NULL) OR ({beyond} IS NULL) OR ({refused} IS NULL AND ({seen}))"


# ------------------------------------------------------------------ types


def _column_types(
    table: ReadableTable, cells: DataFrame, names: Sequence[str], reading: CsvReadOptions
) -> dict[str, str]:
    key = (table.fingerprint, reading)
    if key not in _known_types:
        _known_types[key] = _infer_types(table, cells, names, reading)
        while len(_known_types) > _REMEMBERED:
            _known_types.popitem(last=False)
    return _known_types[key]


def _infer_types(
    table: ReadableTable, cells: DataFrame, names: Sequence[str], reading: CsvReadOptions
) -> dict[str, str]:
    if reading.schema_infer_max_records is not None:  # the cells are the sample
        there = [name for name in names if name in cells.columns]
        return {**dict.fromkeys(names, "STRING"), **text_types.infer_types(cells, there).types}
    known: dict[str, str] = {}
    if table.size > _SAMPLED_BYTES:
        sample = text_types.infer_types(cells.limit(_SAMPLE_ROWS), names)
        known = {name: sample.types[name] for name in sample.columns_with_values}
    found = text_types.infer_types(cells, names, known)
    fell = [name for name in known if found.types[name] == "STRING" != known[name]]
    if found.has_undecodable_text or (
        fell and text_types.infer_types(cells, fell, dict.fromkeys(fell, "STRING")).has_undecodable_text
    ):
        _require_utf8(table.files)
    return found.types


def _require_utf8(files: Sequence[SourceFile]) -> None:
    """Refuse files that are not UTF-8. Spark reads bad bytes as U+FFFD, which a valid file may contain."""
    for file in files:
        if not is_hadoop_codec(file) and not is_utf8(file):
            raise not_utf8_error(file)


def _cast_cell_sql(name: str, spark_type: str, checked: bool) -> str:
    """SQL: the cell as its type; if only a sample was inspected, an error for a cell that does not fit."""
    cell = quote_name(name)
    if spark_type == "STRING":
        return cell
    if not checked:
        return f"CAST({cell} AS {spark_type})"
    refused = raise_error_sql(
        text_literal(f"column {name!r} of "),
        quote_name(FILE_COLUMN),
        text_literal(": '"),
        f"left({cell}, 80)",
        text_literal(f"' is not of type {spark_type}, as in the first records"),
        next_step="raise schema_infer_max_records in csv_read_options=, or leave it out to inspect all rows",
    )
    typed = f"try_cast({cell} AS {spark_type})"
    return f"CASE WHEN {cell} IS NOT NULL AND {typed} IS NULL THEN {refused} ELSE {typed} END"
