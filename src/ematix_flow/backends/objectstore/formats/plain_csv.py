"""Reads plain CSV files with DuckDB: infers the types of their columns, and returns their rows.

Plain are files that DuckDB reads to the same cells as Spark: on a disk, without compression, with one shape,
and without the marks that the two treat differently. `find_csv_scan` returns None for all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.objectstore.formats.compression import codec_of
from ematix_flow.backends.objectstore.formats.csv_headers import CsvShape, inspect_csv_file
from ematix_flow.backends.objectstore.formats.csv_structure import find_csv_structure
from ematix_flow.backends.objectstore.formats.text_types import type_from_facts
from ematix_flow.backends.objectstore.layout.source_files import SourceFile
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.file_options import CsvReadOptions
from ematix_probe.sources.interrupting import run_interruptibly

if TYPE_CHECKING:
    import duckdb

_SAMPLE_ROWS = 10_000
_REMEMBERED = 256
_MEMORY = "512MB"
_BUFFER = 4_000_000  # bytes that a thread reads at once; a longer line, of 2 MB, is left to Spark

_TYPES = {"STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}


@dataclass(frozen=True)
class ScannedFile:
    path: str
    size: int
    rows: int


@dataclass(frozen=True)
class CsvScan:
    """Files of one shape."""

    files: tuple[ScannedFile, ...]
    shape: CsvShape
    quote: str
    has_header: bool

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def select(self, chosen: str, limit: int | None = None) -> str:
        """SELECT of SQL over the cells ``c0``, ``c1`` … as texts."""
        from ematix_probe.sources.text_scan import literal_path

        files = ", ".join(text_literal(literal_path(file.path)) for file in self.files)
        columns = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(self.shape.names)))
        rows = (
            f"read_csv([{files}], auto_detect = false, columns = {{{columns}}}, header = {self.has_header}, "
            f"delim = {text_literal(self.shape.delimiter)}, quote = {text_literal(self.quote)}, "
            f"escape = {text_literal(self.quote)}, nullstr = '', allow_quoted_nulls = false, "
            "strict_mode = true, null_padding = false, ignore_errors = false, comment = '', "
            f"hive_partitioning = false, buffer_size = {_BUFFER})"
        )
        rows = rows if limit is None else f"(SELECT * FROM {rows} LIMIT {limit})"
        return f"SELECT {chosen} FROM {rows} AS cells"


def find_csv_scan(files: Sequence[SourceFile], reading: CsvReadOptions) -> CsvScan | None:
    """How DuckDB reads these files; None if it may read other cells than Spark."""
    special = (reading.terminator, reading.comment, reading.null_regex, reading.schema_infer_max_records)
    if any(option is not None for option in special) or reading.truncated_rows_ok:
        return None
    if reading.escape not in (None, reading.quote):
        return None
    if not all(file.is_local and codec_of(file.name) is None for file in files):
        return None
    shapes = {file: inspect_csv_file(file, reading) for file in files}
    filled = [file for file in files if shapes[file].names]
    if not filled or len({(shapes[file].delimiter, shapes[file].names) for file in filled}) > 1:
        return None
    shape = shapes[filled[0]]
    if len(shape.names) < 2 or any(mark in name for name in shape.names for mark in "\r\n"):
        return None  # an empty line may be a record of one column
    if not all(shapes[file].line_end == "\n" for file in filled):
        return None
    found = [find_csv_structure(file, shape.delimiter, reading.quote) for file in filled]
    # a thread that begins within a cell takes its line end for that of a record
    structures = [structure for structure in found if structure is not None and not structure.spans_lines]
    if len(structures) < len(filled):
        return None
    files_read = (
        ScannedFile(file.display_name, file.size, structure.records - reading.has_header)
        for file, structure in zip(filled, structures, strict=True)
    )
    return CsvScan(tuple(files_read), shape, reading.quote, reading.has_header)


@lru_cache(_REMEMBERED)
def infer_csv_types(scan: CsvScan, version: str) -> tuple[str, ...] | None:
    """The Spark type of each column; None if DuckDB cannot read a row.

    ``version`` identifies the contents of the files.
    """
    import duckdb

    columns = [f"c{number}" for number in range(len(scan.shape.names))]
    try:
        with open_engine() as engine:
            if scan.has_header and not all(_has_header(engine, scan, file) for file in scan.files):
                return None
            sample = _find_facts(engine, scan, dict.fromkeys(columns, _FACTS), _SAMPLE_ROWS)
            asked = {column: _facts_to_check(sample[column]) for column in columns}
            facts = _find_facts(engine, scan, asked)
            if facts[_TABLE]["rows"] != scan.rows:
                return None
            again = {
                column: tuple(_FACTS)
                for column in columns
                if facts[column].get("number") is False and "float" not in asked[column]
            }
            if again:
                facts |= _find_facts(engine, scan, again)
    except duckdb.Error:
        return None
    return tuple(type_from_facts(facts[column]) if asked[column] else "STRING" for column in columns)


def _has_header(engine: duckdb.DuckDBPyConnection, scan: CsvScan, file: ScannedFile) -> bool:
    """Whether the first record of a file is its header. DuckDB skips a header without checking its quotes."""
    cells = _read_first(engine, replace(scan, files=(file,), has_header=False).select("*", 1))
    return scan.shape.names == tuple(cell or f"_c{number}" for number, cell in enumerate(cells))


def open_engine(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A database in memory whose times are in UTC."""
    import duckdb

    settings: dict[str, Any] = {"memory_limit": _MEMORY, "autoinstall_known_extensions": False}
    if threads is not None:
        settings["threads"] = threads
    engine = duckdb.connect(config=settings)
    engine.execute("SET TimeZone = 'UTC'")
    return engine


def cast_cell_sql(number: int, spark_type: str) -> str:
    """SQL: the cell as its inferred type."""
    cell = f"cells.c{number}"
    return cell if spark_type == "STRING" else f"CAST({cell} AS {_TYPES.get(spark_type, spark_type)})"


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# ------------------------------------------------------------------ facts

_NUMBER = "-?(0|[1-9][0-9]*)([.][0-9]+)?"
_FLOAT = "-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?"
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = _DATE + "[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?"
_ZONE = "(Z|[+-]((0[0-9]|1[0-7]):?[0-5][0-9]|18:?00))"
_IS_NUMBER = f"(regexp_full_match({{cell}}, '{_NUMBER}') AND NOT regexp_full_match({{cell}}, '-[0.]+'))"
_SIGNIFICANT = "strlen(trim(replace(replace(split_part(lower({cell}), 'e', 1), '.', ''), '-', ''), '0'))"
_SIZE = "abs(TRY_CAST({cell} AS DOUBLE))"


def _casts_sql(pattern: str, kind: str) -> str:
    return (
        f"bool_and({{cell}} IS NULL OR (regexp_full_match({{cell}}, '{pattern}') "
        f"AND TRY_CAST({{cell}} AS {kind}) IS NOT NULL))"
    )


# the facts of `text_types`, in DuckDB's SQL over {cell}
_FACTS: Mapping[str, str] = {
    "cells": "count({cell})",
    "number": f"bool_and({_IS_NUMBER})",
    "float": f"bool_and(CASE WHEN strlen({{cell}}) <= 15 AND {_IS_NUMBER} THEN TRUE "
    f"WHEN regexp_full_match({{cell}}, 'NaN|-?Infinity') THEN TRUE "
    f"WHEN NOT regexp_full_match({{cell}}, '{_FLOAT}') OR {_SIGNIFICANT} > 15 THEN FALSE "
    f"ELSE {_SIGNIFICANT} = 0 OR coalesce({_SIZE} BETWEEN 2.2250738585072014e-308 "
    "AND 1.7976931348623157e308, FALSE) END)",
    "boolean": "bool_and(lower({cell}) IN ('true', 'false'))",
    "date": _casts_sql(_DATE, "DATE"),
    "zoned": _casts_sql(_TIME + _ZONE, "TIMESTAMPTZ"),
    "local": _casts_sql(_TIME, "TIMESTAMP"),
    "whole_digits": "max(strlen(ltrim(split_part({cell}, '.', 1), '-')))",
    "most_places": "max(strlen(split_part({cell}, '.', 2)))",
    "fewest_places": "min(strlen(split_part({cell}, '.', 2)))",
}
_TABLE = "table"
_PLAIN_NUMBERS = ("cells", "number", "whole_digits", "most_places", "fewest_places")
_OF_OTHERS = {
    "BOOLEAN": ("cells", "boolean"),
    "DATE": ("cells", "date"),
    "TIMESTAMP": ("cells", "zoned"),
    "TIMESTAMP_NTZ": ("cells", "local"),
}


def _facts_to_check(sample: Mapping[str, Any]) -> tuple[str, ...]:
    """The facts that the other rows may change. None for a column that is text in the sample."""
    if not sample["cells"]:
        return tuple(_FACTS)
    kind = type_from_facts(sample)
    if kind == "STRING":
        return ()
    if kind in _OF_OTHERS:
        return _OF_OTHERS[kind]
    return _PLAIN_NUMBERS if sample["number"] else (*_PLAIN_NUMBERS, "float")


def _find_facts(
    engine: duckdb.DuckDBPyConnection,
    scan: CsvScan,
    asked: Mapping[str, Iterable[str]],
    limit: int | None = None,
) -> dict[str, dict[str, Any]]:
    """The facts of each column and of the table, in one pass.

    A column without a question is read too, to check its text.
    """
    pairs = [(column, fact) for column, facts in asked.items() for fact in facts]
    chosen = [_FACTS[fact].replace("{cell}", f"cells.{column}") for column, fact in pairs]
    chosen += [f"count(strlen(cells.{column}))" for column, facts in asked.items() if not facts]
    row = _read_first(engine, scan.select(", ".join((*chosen, "count(*)")), limit))
    facts: dict[str, dict[str, Any]] = {_TABLE: {"rows": row[-1]}, **{column: {} for column in asked}}
    for (column, fact), answer in zip(pairs, row, strict=False):
        facts[column][fact] = answer
    return facts


def _read_first(engine: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    """The first row. Ctrl-C ends the statement at once."""
    return run_interruptibly(lambda: engine.execute(sql).fetchone(), engine.interrupt) or ()


def changed_file_error(scan: CsvScan, message: str = "") -> SourceFailed:
    """The error for files that could be read when their types were inferred."""
    line = re.search(r"CSV Error on Line: (\d+)", message)
    return SourceFailed(
        f"cannot read {', '.join(file.path for file in scan.files[:3])}"
        + (f": a cell of line {line[1]} has another type" if line else ""),
        next_step="run it again: the file has changed since its types were inferred",
    )
