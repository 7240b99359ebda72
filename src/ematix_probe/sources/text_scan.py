"""Scans of CSV and JSON lines by DuckDB, and errors that name the file and the line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sqlglot import exp

from ematix_probe.errors import SourceFailed
from ematix_probe.sources.duckdb_scan import NO_COLUMN, plain_message
from ematix_probe.sources.duckdb_types import duckdb_type
from ematix_probe.sources.file_paths import DataFile
from ematix_probe.sources.scans import SqlScan
from ematix_probe.sources.text_options import ColumnTypes, CsvOptions, JsonOptions

_DELIMITERS = ",;\t|"
_FIRST_LINE = 1 << 20
_ON_LINE = re.compile(r"CSV Error on Line: (\d+)")
_ORIGINAL = re.compile(r"Original Line: ?(.*)")
_FILE = re.compile(r"^\s*file = (.*)$", re.MULTILINE)
_CONVERTING = re.compile(
    r'Error when converting column "(.*)"\. Could not convert string "(.*)" to \'(.*)\'', re.DOTALL
)
_UNKNOWN_NAMES = re.compile(r"Columns with names: (.*) do not exist in the CSV File", re.DOTALL)
_COUNTS = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")
_FIRST_ROWS = 100
_TIME_WITHOUT_ZONE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
_JSON_PLACE = re.compile(r'in file "(.*?)",.*? in line (\d+)', re.DOTALL)


def csv_scan(
    files: Sequence[DataFile], options: CsvOptions, partitions: dict[str, str], connection: Any
) -> SqlScan:
    """The rows of CSV files. Its types are those that every value of the sample has."""
    import duckdb

    filled = [file for file in files if file.size]
    if not filled:
        return _no_rows(options.columns, partitions)
    delimiter = options.delimiter or find_delimiter(filled[0], options)
    arguments = {
        "delim": delimiter,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        "header": options.header,
        "skip": 0,
        "comment": "",
        "strict_mode": True,
        "null_padding": False,
        "ignore_errors": False,
        "allow_quoted_nulls": False,
        "nullstr": options.null,
        "dateformat": "%Y-%m-%d",  # 01/02/2024 may be one of two days: it stays text
        "encoding": options.encoding,
        "sample_size": -1 if options.sample_rows is None else options.sample_rows,
        "union_by_name": len(filled) > 1,
        **_hive(partitions),
    }
    given = {name: duckdb_type(kind) for name, kind in options.columns if name not in partitions}
    if given and not options.header:
        arguments["names"] = list(given)
    if given:
        arguments["types"] = given
    scan = SqlScan(_select("read_csv", filled, arguments), costly=True, rename=_csv_message)
    try:
        connection.execute(f"DESCRIBE {scan.query.sql(dialect='duckdb')}")
    except duckdb.Error as error:
        raise SourceFailed(_csv_problem(str(error), filled, options, arguments, connection)) from error
    return scan


def json_scan(
    files: Sequence[DataFile], options: JsonOptions, partitions: dict[str, str], connection: Any
) -> SqlScan:
    """The rows of files with one JSON object a line."""
    import duckdb

    filled = [file for file in files if file.size]
    if not filled:
        return _no_rows(options.columns, partitions)
    arguments: dict[str, Any] = {
        "format": "newline_delimited",
        "records": "true",
        "sample_size": -1 if options.sample_rows is None else options.sample_rows,
        "union_by_name": len(filled) > 1,
        **_hive(partitions),
    }
    given = {name: duckdb_type(kind) for name, kind in options.columns if name not in partitions}
    if given:
        arguments["columns"] = given
    scan = SqlScan(_select("read_json", filled, arguments), costly=True, rename=_json_message)
    try:
        described = connection.execute(f"DESCRIBE {scan.query.sql(dialect='duckdb')}").fetchall()
    except duckdb.Error as error:
        found = next(filter(None, (_first_bad_line(file) for file in filled)), None)
        raise SourceFailed(found or _json_message(str(error))) from error
    if not given:  # the types are found once, and not again for each statement
        found_types = {name: kind for name, kind, *_ in described if name not in partitions}
        found_types |= dict.fromkeys(_times_with_fractions(scan, found_types, connection), "TIMESTAMP")
        arguments["columns"] = found_types
        scan = SqlScan(_select("read_json", filled, arguments), costly=True, rename=_json_message)
    return scan


def read_function(name: str, files: Sequence[DataFile], arguments: dict[str, Any]) -> exp.Expression:
    """``read_parquet([…], option = …)``, with paths that hold no wildcard."""
    paths = exp.Array(expressions=[exp.Literal.string(literal_path(file.path)) for file in files])
    named = [
        exp.EQ(this=exp.to_identifier(key), expression=_value(value)) for key, value in arguments.items()
    ]
    return exp.Anonymous(this=name, expressions=[paths, *named])


def literal_path(path: str) -> str:
    """The path as a glob that matches only itself."""
    return re.sub(r"[*?\[]", lambda found: f"[{found[0]}]", path)


def _select(name: str, files: Sequence[DataFile], arguments: dict[str, Any]) -> exp.Select:
    return exp.select("*").from_(read_function(name, files, arguments))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = [
            exp.PropertyEQ(this=exp.Literal.string(key), expression=_value(each))
            for key, each in value.items()
        ]
        return exp.Struct(expressions=pairs)
    if isinstance(value, list):
        return exp.Array(expressions=[_value(each) for each in value])
    return exp.convert(value)


def _hive(partitions: dict[str, str]) -> dict[str, Any]:
    if not partitions:
        return {"hive_partitioning": False}
    types = {name: duckdb_type(kind) for name, kind in partitions.items()}
    return {"hive_partitioning": True, "hive_types_autocast": False, "hive_types": types}


def _no_rows(columns: ColumnTypes, partitions: dict[str, str]) -> SqlScan:
    """A table without rows; without columns too, unless they were declared."""
    types = {**dict(columns), **partitions} or {NO_COLUMN: "boolean"}
    selected = [
        exp.alias_(exp.cast(exp.Null(), duckdb_type(kind), dialect="duckdb"), name, quoted=True)
        for name, kind in types.items()
    ]
    return SqlScan(exp.select(*selected).where(exp.false()))


# ------------------------------------------------------------------ CSV


def find_delimiter(file: DataFile, options: CsvOptions) -> str:
    """The delimiter that the first line has most often outside of quotes; a comma when it has none."""
    line = _first_line(file, options.encoding)
    outside = re.sub(
        f"{re.escape(options.quote)}[^{re.escape(options.quote)}]*{re.escape(options.quote)}", "", line
    )
    best = max(_DELIMITERS, key=outside.count)
    return best if outside.count(best) else ","


def _first_line(file: DataFile, encoding: str) -> str:
    import pyarrow as pa

    try:
        with pa.input_stream(file.path, compression="detect") as stream:
            return bytes(stream.read(_FIRST_LINE)).decode(encoding, errors="replace").partition("\n")[0]
    except (OSError, LookupError):
        return ""


def _csv_problem(
    message: str, files: Sequence[DataFile], options: CsvOptions, arguments: dict[str, Any], connection: Any
) -> str:
    """The reason why CSV files cannot be read: with the line, when a row has too few or too many values."""
    import duckdb

    if _ON_LINE.search(message):
        return _csv_message(message)
    for file in files:
        names = _header(file, options, arguments["delim"])
        rest = {
            key: value for key, value in arguments.items() if key not in ("types", "names", "sample_size")
        }
        plain = {
            **rest,
            "auto_detect": False,
            "columns": dict.fromkeys(names, "VARCHAR"),
            "union_by_name": False,
        }
        query = exp.select(exp.Count(this=exp.Star())).from_(read_function("read_csv", [file], plain))
        try:
            connection.execute(query.sql(dialect="duckdb")).fetchall()
        except duckdb.Error as error:
            if _ON_LINE.search(str(error)):
                return _csv_message(str(error))
    return _csv_message(plain_message(message))


def _header(file: DataFile, options: CsvOptions, delimiter: str) -> list[str]:
    import csv

    line = _first_line(file, options.encoding)
    cells = next(csv.reader([line.rstrip("\r")], delimiter=delimiter, quotechar=options.quote), [])
    return [f"column{i}" for i in range(len(cells) or 1)]


def _csv_message(message: str) -> str:
    """DuckDB's text about a CSV file in one sentence."""
    line, file = _ON_LINE.search(message), _FILE.search(message)
    if line is None:
        if "automatically detect the CSV parsing dialect" in message:
            found = re.search(r'sniffing file "(.*)"', message)
            return (
                f"{found[1] if found else 'a CSV file'} cannot be read as CSV: its rows have different "
                "numbers of values or different line ends, or a quote has no end; "
                "check delimiter=, header= and quote="
            )
        if unknown := _UNKNOWN_NAMES.search(message):
            return f"columns= names {unknown[1]}, and the file has no such column"
        return message
    place = f"{file[1].strip() if file else 'a CSV file'}, line {line[1]}"
    if found := _CONVERTING.search(message):
        column, value, kind = found.groups()
        hint = f'give the type, as in  columns={{"{column}": "text"}}'
        if "auto-detected" in message:
            return f"{place}: {value!r} in column {column!r} is no {kind}, as the rows before it; {hint}"
        return f"{place}: {value!r} in column {column!r} is no {kind}"
    if counts := _COUNTS.search(message):
        return f"{place}: the row has {counts[2]} values, and there are {counts[1]} columns"
    if "unicode" in message:
        return f'{place}: the text is not UTF-8; give its encoding, as in  encoding="latin-1"'
    reason = message[line.end() :].strip().split("\n\n")[0]
    original = _ORIGINAL.search(reason)
    return f"{place}: {' '.join((reason[original.end() :] if original else reason).split())}"


# ------------------------------------------------------------------ JSON lines


def _times_with_fractions(scan: SqlScan, types: dict[str, str], connection: Any) -> list[str]:
    """The columns of times such as ``2026-11-18T16:39:00.000``, which DuckDB takes for texts."""
    import duckdb

    texts = [name for name, kind in types.items() if kind == "VARCHAR"]
    try:
        for limit in (_FIRST_ROWS, None):  # the other rows are read only if the first ones are times
            if not texts:
                break
            rows = scan.query.limit(limit) if limit else scan.query
            tests = [_are_times(name) for name in texts]
            query = exp.select(*tests).from_(rows.subquery("probed")).sql(dialect="duckdb")
            found = connection.execute(query).fetchone()
            texts = [name for name, is_time in zip(texts, found, strict=True) if is_time]
    except duckdb.Error:  # a row that cannot be read is reported when the rows are checked
        return []
    return texts


def _are_times(name: str) -> exp.Expression:
    """Whether all values, and one at least, are times without a zone."""
    value = exp.column(name, quoted=True)
    shaped = exp.Anonymous(
        this="regexp_full_match", expressions=[value, exp.Literal.string(_TIME_WITHOUT_ZONE)]
    )
    is_time = exp.and_(
        shaped, exp.TryCast(this=value.copy(), to=exp.DataType.build("TIMESTAMP")).is_(exp.null()).not_()
    )
    return exp.Anonymous(
        this="bool_and",
        expressions=[exp.case().when(value.copy().is_(exp.null()).not_(), is_time)],
    )


def _json_message(message: str) -> str:
    found = _JSON_PLACE.search(message)
    if found is None:
        return message
    file, line = found[1], int(found[2])
    exact = _first_bad_line(DataFile(file, 1, file), line + 1)
    reason = re.sub(r"\nTry .*", "", message[found.end() :], flags=re.DOTALL).strip(" :\n")
    return exact or f"{file}, line {line}: {reason}"


def _first_bad_line(file: DataFile, limit: int = 1_000_000) -> str | None:
    """Which of the first lines is no JSON object. DuckDB's own number is that of the line or the next."""
    try:
        for number, line in _lines(file):
            if number > limit:
                return None
            if not line.strip():
                continue
            try:
                value = json.loads(line.rstrip())
            except json.JSONDecodeError as error:
                reason = f"{error.msg} at character {error.pos + 1}"
                return f"{file.shown}, line {number}: this is no JSON: {reason}"
            except ValueError as error:  # no UTF-8
                return f"{file.shown}, line {number}: this is no JSON: {error}"
            if not isinstance(value, dict) and value is not None:
                shown = line[:40].decode(errors="replace").strip()
                return f"{file.shown}, line {number}: {shown!r} is not an object"
    except OSError as error:
        return f"cannot read {file.shown}: {error}"
    return None


def _lines(file: DataFile) -> Iterator[tuple[int, bytes]]:
    import io

    import pyarrow as pa

    with pa.input_stream(file.path, compression="detect") as stream:
        yield from enumerate(io.BufferedReader(stream), start=1)
