"""Scans of CSV and JSON lines by DuckDB, and errors that name the file and the line.

An error names the value too, if failing rows may be shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from sqlglot import exp

from ematix_probe.errors import SourceFailed
from ematix_probe.failing_values import are_samples_wanted
from ematix_probe.sources.duckdb_scan import NO_COLUMN, plain_message
from ematix_probe.sources.duckdb_types import duckdb_type
from ematix_probe.sources.file_paths import DataFile
from ematix_probe.sources.scans import SqlScan
from ematix_probe.sources.text_options import ColumnTypes, CsvOptions, JsonOptions
from ematix_probe.sources.text_types import csv_types, json_types, run

_DELIMITERS = ",;\t|"
_FIRST_LINE = 1 << 20
_ON_LINE = re.compile(r"CSV Error on Line: (\d+)")
_ORIGINAL = re.compile(r"Original Line: ?(.*)")
_FILE = re.compile(r"^\s*file = (.*)$", re.MULTILINE)
_CONVERTING = re.compile(
    r'Error when converting column "(.*)"\. Could not convert string "(.*)" to \'([^\']*)\'', re.DOTALL
)
_UNKNOWN_NAMES = re.compile(r"Columns with names: (.*) do not exist in the CSV File", re.DOTALL)
_COUNTS = re.compile(r"Expected Number of Columns: (\d+) Found: (\d+)")
_JSON_PLACE = re.compile(r'in file "(.*?)",.*? in line (\d+)', re.DOTALL)


def csv_scan(
    files: Sequence[DataFile], options: CsvOptions, partitions: dict[str, str], connection: Any
) -> SqlScan:
    """The rows of CSV files. Its types are those that no value loses anything in."""
    import duckdb

    filled = [file for file in files if file.size]
    if not filled:
        return _no_rows(options.columns, partitions)
    delimiter = options.delimiter or find_delimiter(filled[0], options)
    if options.header:
        for file in filled:
            names = [name.strip() for name in _first_record(file, options, delimiter)]
            _refuse_equal_names(names, file.shown, "rename all but one of them in the first line of the file")
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
    query = _select("read_csv", filled, arguments)
    texts = {name: value for name, value in arguments.items() if name != "types"} | {"all_varchar": True}
    try:
        described = connection.execute(f"DESCRIBE {query.sql(dialect='duckdb')}").fetchall()
        proposed = {
            name: kind for name, kind, *_ in described if name not in given and name not in partitions
        }
        guessed = csv_types(_select("read_csv", filled, texts), proposed, run(connection))
    except duckdb.Error as error:
        raise SourceFailed(_csv_problem(str(error), filled, options, arguments, connection)) from error
    if guessed:
        arguments["types"] = {**given, **guessed}
    return SqlScan(_select("read_csv", filled, arguments), costly=True, rename=_csv_message)


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
    query = _select("read_json", filled, arguments)
    try:
        described = connection.execute(f"DESCRIBE {query.sql(dialect='duckdb')}").fetchall()
        proposed = {name: kind for name, kind, *_ in described if name not in partitions}
        if not given:  # the types are found once, and not again for each statement
            _refuse_equal_keys(filled, list(proposed), connection)
            query = _typed_json(filled, arguments, proposed, connection)
    except duckdb.Error as error:
        found = next(filter(None, (_first_bad_line(file) for file in filled)), None)
        raise SourceFailed(found or _json_message(str(error))) from error
    return SqlScan(query, costly=True, rename=_json_message)


def _typed_json(
    files: Sequence[DataFile], arguments: dict[str, Any], proposed: dict[str, str], connection: Any
) -> exp.Select:
    """The rows with types that lose nothing. A decimal is read as text, as DuckDB would round its double."""

    def texts(names: Sequence[str]) -> exp.Query:
        return _select("read_json", files, {**arguments, "columns": dict.fromkeys(names, "VARCHAR")})

    is_sample = arguments["sample_size"] != -1
    found = json_types(texts, proposed, is_sample, run(connection))
    decimals = {name: kind for name, kind in found.items() if kind.startswith("DECIMAL")}
    columns = {**found, **dict.fromkeys(decimals, "VARCHAR")}
    query = _select("read_json", files, {**arguments, "columns": columns})
    if decimals:
        casts = [
            exp.alias_(exp.cast(exp.column(name, quoted=True), kind, dialect="duckdb"), name, quoted=True)
            for name, kind in decimals.items()
        ]
        query.selects[0].set("replace", casts)
    return query


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
    return _first_text(file, encoding).partition("\n")[0]


def _first_text(file: DataFile, encoding: str) -> str:
    import pyarrow as pa

    try:
        with pa.input_stream(file.path, compression="detect") as stream:
            return bytes(stream.read(_FIRST_LINE)).decode(encoding, errors="replace").removeprefix("\ufeff")
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
        cells = _first_record(file, options, arguments["delim"])
        names = [f"column{i}" for i in range(len(cells) or 1)]
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


def _first_record(file: DataFile, options: CsvOptions, delimiter: str) -> list[str]:
    import csv
    import io

    doubled = options.escape in (None, options.quote)
    text = io.StringIO(_first_text(file, options.encoding), newline="")
    reader = csv.reader(
        text,
        delimiter=delimiter,
        quotechar=options.quote,
        doublequote=doubled,
        escapechar=None if doubled else options.escape,
    )
    try:
        return next(reader, [])
    except csv.Error:
        return []


def _refuse_equal_names(names: Sequence[str], place: str, next_step: str) -> None:
    """SourceFailed for names that SQL cannot tell apart. DuckDB would give one of them another name."""
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(name.lower(), []).append(name)
    for found in same.values():
        if len(found) > 1 and found[0]:
            shown = f"{', '.join(map(repr, found[:-1]))} and {found[-1]!r}"
            raise SourceFailed(
                f"{place} has columns whose names are equal or differ only in case: {shown}",
                next_step=next_step,
            )


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
        shown = repr(value) if are_samples_wanted() else "a value"
        return f"{place}: {shown} in column {column!r} is no {kind}"
    if counts := _COUNTS.search(message):
        return f"{place}: the row has {counts[2]} values, and there are {counts[1]} columns"
    if "unicode" in message:
        return f'{place}: the text is not UTF-8; give its encoding, as in  encoding="latin-1"'
    if not are_samples_wanted():
        return f"{place}: the row cannot be read"
    reason = message[line.end() :].strip().split("\n\n")[0]
    original = _ORIGINAL.search(reason)
    return f"{place}: {' '.join((reason[original.end() :] if original else reason).split())}"


# ------------------------------------------------------------------ JSON lines


def _refuse_equal_keys(files: Sequence[DataFile], names: Sequence[str], connection: Any) -> None:
    """SourceFailed for keys that differ only in case: DuckDB calls ``ID`` next to ``id`` ``ID_1``."""
    known = {name.lower() for name in names}
    suspects = [found for name in names if (found := re.fullmatch(r"(.+)_\d+", name))]
    if not any(found[1].lower() in known for found in suspects):
        return
    lines = read_function("read_json_objects", files, {"format": "newline_delimited"})
    keys = exp.Anonymous(
        this="unnest", expressions=[exp.Anonymous(this="json_keys", expressions=[exp.column("json")])]
    )
    query = exp.select(exp.alias_(keys, "key")).distinct().from_(lines).sql(dialect="duckdb")
    found_keys = sorted(key for (key,) in connection.execute(query).fetchall())
    _refuse_equal_names(
        found_keys,
        files[0].shown if len(files) == 1 else "one table of these files",
        'rename one of them, or give the columns to read, as in  columns={"id": "bigint"}',
    )


def _json_message(message: str) -> str:
    found = _JSON_PLACE.search(message)
    if found is None:
        return message
    file, line = found[1], int(found[2])
    exact = _first_bad_line(DataFile(file, 1, file), line + 1)
    if exact is not None or not are_samples_wanted():
        return exact or f"{file}, line {line}: a value cannot be read"
    reason = re.sub(r"\nTry .*", "", message[found.end() :], flags=re.DOTALL).strip(" :\n")
    return f"{file}, line {line}: {reason}"


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
                shown = repr(line[:40].decode(errors="replace").strip()) if are_samples_wanted() else "this"
                return f"{file.shown}, line {number}: {shown} is not an object"
    except OSError as error:
        return f"cannot read {file.shown}: {error}"
    return None


def _lines(file: DataFile) -> Iterator[tuple[int, bytes]]:
    import io

    import pyarrow as pa

    with pa.input_stream(file.path, compression="detect") as stream:
        yield from enumerate(io.BufferedReader(stream), start=1)
