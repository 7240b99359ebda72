"""Generated contents of files, and what Python's csv, its json and pyarrow find in them."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc


class Unreadable(Exception):
    """The file must be refused: no rows would be correct."""


@dataclass(frozen=True)
class Content:
    """One file, and how it was made, for the message of a failed test."""

    name: str
    data: bytes
    made: str

    @property
    def format(self) -> str:
        ending = self.name.split(".")[1]
        return {"json": "json_lines"}.get(ending, ending)


# --- what happens to any text ----------------------------------------------------------------------

_ANY_TEXT = ["cut", "not utf-8", "utf-16", "bom", "empty", "zeros", "packed", "packed and cut", "blank lines"]


def _every_other(number: int, changes: Sequence[str]) -> str:
    """Half of the files as they are, the others with each of the changes in turn."""
    return "as it is" if number % 2 else changes[number // 2 % len(changes)]


def _changed(chance: Random, data: bytes, change: str) -> bytes:
    place = chance.randint(0, len(data))
    if change == "cut":
        return data[:place]
    if change == "not utf-8":
        return data[:place] + chance.choice([b"\xff", b"\xe4", b"\xc3", b"\xed\xa0\x80"]) + data[place:]
    if change == "utf-16":
        return data.decode().encode("utf-16")
    if change == "zeros":
        return data[:place] + b"\0" * 3 + data[place:]
    if change == "blank lines":
        return b"\n\n" + data + b"\n\n"
    if change.startswith("packed"):
        packed = gzip.compress(data, mtime=0)
        return packed[: len(packed) // 2] if change.endswith("cut") else packed
    return {"bom": b"\xef\xbb\xbf" + data, "empty": b""}[change]


def _text(content: Content) -> str:
    try:
        data = gzip.decompress(content.data) if content.name.endswith(".gz") else content.data
        return data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise Unreadable from error


# --- CSV -------------------------------------------------------------------------------------------

_POOLS = [
    ["1", "-5", "0", "42", "9223372036854775807", "-9223372036854775808"],
    ["1", "9223372036854775808", "1" * 38, "1" * 39],
    ["1.50", "2.25", "-0.01", "12345678901234567.89"],
    ["1.5", "2.25", "1e3", "-1E-3", "NaN", "Infinity", "1e400", "0.1234567890123456789"],
    ["true", "FALSE", "True"],
    ["2026-01-01", "1600-02-29", "9999-12-31"],
    ["2026-01-01", "2026-02-30"],
    ["2026-01-01T10:00:00", "2026-01-01 23:59:59.123456"],
    ["2026-01-01T10:00:00Z", "2026-06-01T10:00:00+02:00"],
    ["007", "042"],
    ["+1", "+2"],
    ["007", "+1", "1_000", "0x10", ".5", "5.", "1,000", "-0", "--1"],
    ["x", "é☃", "a,b;c\td|e", 'say "x"', "it's", "two\nlines", "win\r\ndows", " lead", "trail ", "\\", "#c"],
    ["null", "NULL", "\\N", "NaN", "=1+1", "\u2028", "nul\x00l", "\U0001f600", "\u202e", "'", '"', "\ufeff"],
]
_CSV_CHANGES = [
    *_ANY_TEXT,
    "cell more",
    "cell fewer",
    "header twice",
    "quote open",
    "after quote",
    "header only",
]
_NAMES = ["a", "b", "c", "id", "ä", "a b", "a.b", "select", "x`y", "", "_c0", "a,b", 'q"q']


def _quoted(cell: str | None, delimiter: str, always: bool) -> str:
    if cell is None:
        return ""
    if always or not cell or any(mark in cell for mark in (delimiter, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def csv_content(number: int, chance: Random) -> Content:
    names = chance.sample(_NAMES, chance.randint(2, 4))
    pools = [_POOLS[number % len(_POOLS)], *(chance.choice(_POOLS) for _ in names[1:])]
    rows: list[list[str | None]] = [
        [chance.choice([*pool, *pool, None, ""]) for pool in pools] for _ in range(chance.randint(1, 4))
    ]
    delimiter, end = chance.choice(",;\t|"), chance.choice(["\n", "\n", "\r\n"])
    change = _every_other(number, _CSV_CHANGES)
    if change == "header twice":
        names[-1] = names[0].upper() or "_c0"
    if change == "header only":
        rows = []
    if change in ("cell more", "cell fewer") and rows:
        rows[-1] = [*rows[-1], "x"] if change == "cell more" else rows[-1][:-1]
    always = chance.choice([True, False])
    lines = [delimiter.join(_quoted(cell, delimiter, always) for cell in row) for row in [names, *rows]]
    if change in ("quote open", "after quote"):
        lines.append(delimiter.join(['"x' if change == "quote open" else '"x"y'] * len(names)))
    data = (end.join(lines) + chance.choice([end, ""])).encode()
    data = _changed(chance, data, change) if change in _ANY_TEXT else data
    return Content("t.csv.gz" if change.startswith("packed") else "t.csv", data, change)


def _records(text: str, delimiter: str, *, strict: bool = False) -> Iterator[list[str]]:
    yield from csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=strict)


def csv_rows(content: Content) -> list[dict[str, str]]:
    """The cells as text. Which empty ones are null is not known to this reader."""
    text = _text(content)
    headers = {mark: next(filter(None, _records(text, mark)), []) for mark in ",;\t|"}
    delimiter = max(headers, key=lambda mark: len(headers[mark]))
    try:
        records = [record for record in _records(text, delimiter, strict=True) if record]
    except csv.Error as error:
        raise Unreadable from error
    if not records:
        return []
    header = [name or f"_c{number}" for number, name in enumerate(records[0])]
    if len({name.lower() for name in header}) < len(header) or any("\0" in name for name in header):
        raise Unreadable
    if any(len(record) != len(header) for record in records):
        raise Unreadable
    return [dict(zip(header, record, strict=True)) for record in records[1:]]


def _is_number(text: str) -> bool:
    """Whether the text of a number is kept: a leading zero or a plus sign would be lost."""
    return re.fullmatch(r"-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?", text) is not None


def means(text: str, value: Any) -> bool:
    """Whether a loaded value of any type equals the text of a cell, with all its digits."""
    if value is None:
        return text == ""
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(float(text)) == str(value) and text.lstrip("-") in ("NaN", "Infinity")
        return _is_number(text) and Decimal(text) == Decimal(repr(value))
    if isinstance(value, (int, Decimal)):
        return _is_number(text) and Decimal(text) == value
    if isinstance(value, dt.datetime):
        said = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (said.tzinfo is None) == (value.tzinfo is None) and said == value
    return isinstance(value, dt.date) and value.isoformat() == text


# --- lines of JSON ---------------------------------------------------------------------------------

_TOKENS = [
    ["1", "-5", "9007199254740993", "9223372036854775807"],
    ["1", "9223372036854775808", "1" * 30, "1" * 40],
    ["1.5", "-0.25", "1e3", "0.1", "1E-7"],
    ["1.5", "9007199254740993", "12345678901234567890"],
    ["1e400", "-1E+999", "1e-400", "1.5", "1" * 400],
    ["true", "false"],
    ['"x"', '"é☃"', '""', r'"\u00e9"', r'"a\nb"', r'"\ud83d\ude00"', r'"\u0000"', '"2026-01-01"', '"1"'],
    [r'"\ud800"', '"x"'],
    ['{"x": 1}', '{"x": 2, "y": [1, null]}', '{"x": null}', "{}"],
    ["[1, 2]", "[]", "[null]", "[3.5]"],
    ['[{"y": "z"}]', '[{"y": null, "n": {"d": [[1]]}}]'],
    ["1", '"x"', "true", "null", "[1]", '{"x": 1}'],
]
_KEYS = ["a", "b", "c", "ä", "a b", "a.b", "select", "x`y"]
_WRONG_LINES = [
    *["5", '"x"', "null", "[1]", "{", '{"a": }', '{"a": 1', '{"a": 1,}', '{"a": 1} {"a": 2}'],
    *[
        '{"a": 1, "a": 2}',
        '{"a": 1, "A": 2}',
        '{"": 1}',
        '{"a": 01}',
        '{"a": tru}',
        "// x",
        '{"a": "\t"}',
        "x",
    ],
]


def json_content(number: int, chance: Random) -> Content:
    keys = chance.sample(_KEYS, chance.randint(1, 3))
    pools = {key: chance.choice(_TOKENS) for key in keys}
    pools[keys[0]] = _TOKENS[number % len(_TOKENS)]
    lines = []
    for _ in range(chance.randint(1, 4)):
        given = [key for key in keys if chance.randint(0, 4)]
        pairs = [f"{json.dumps(key)}: {chance.choice([*pools[key], *pools[key], 'null'])}" for key in given]
        lines.append("{" + ", ".join(pairs) + "}")
    change = _every_other(number, [*_ANY_TEXT, *["wrong line"] * 4, "array", "windows"])
    if change == "wrong line":
        lines.insert(chance.randint(0, len(lines)), chance.choice(_WRONG_LINES))
    if change == "array":
        lines = [f"[{', '.join(lines)}]"]
    data = (("\r\n" if change == "windows" else "\n").join(lines) + "\n").encode()
    data = _changed(chance, data, change) if change in _ANY_TEXT else data
    return Content("t.json.gz" if change.startswith("packed") else "t.json", data, change)


def json_rows(content: Content) -> list[dict[str, Any]]:
    """The objects of all lines, numbers as they are written."""
    rows: list[dict[str, Any]] = []
    for line in _text(content).split("\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object, parse_float=Decimal, parse_int=Decimal)
            json.dumps(value, default=str, ensure_ascii=False).encode()
        except (ValueError, UnicodeEncodeError) as error:
            raise Unreadable from error
        for row in value if isinstance(value, list) else [value]:
            if not isinstance(row, dict):
                raise Unreadable
            rows.append(row)
    names = {key for row in rows for key in row}
    if len({name.lower() for name in names}) < len(names):
        raise Unreadable
    return rows


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key.lower() for key, _ in pairs]
    if len(set(keys)) < len(keys) or "" in keys:
        raise ValueError("a key twice, or without a name")
    return dict(pairs)


def says(written: Any, value: Any) -> bool:
    """Whether a loaded value is the written one; what has several types in a column is its text, as JSON."""
    if written is None:
        return value is None
    if isinstance(value, str):
        if written == value:
            return True
        try:
            inner = json.loads(value, parse_float=Decimal, parse_int=Decimal)
        except ValueError:
            return False
        return not isinstance(inner, str) and says(written, inner)
    if written == {} and value is None:  # as documented of an object that has no key
        return True
    if isinstance(written, dict):
        return (
            isinstance(value, dict)
            and all(says(each, value.get(key)) for key, each in written.items())
            and all(value[key] is None for key in set(value) - set(written))
        )
    if isinstance(written, list):
        return isinstance(value, list) and len(value) == len(written) and all(map(says, written, value))
    if isinstance(written, bool) or isinstance(value, bool):
        return written is value
    if isinstance(written, Decimal) and isinstance(value, float):
        return abs(value) != float("inf") and (not value) == (not written) and float(written) == value
    return bool(written == value)


# --- Parquet and ORC -------------------------------------------------------------------------------

_DAY, _NOON = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 12, 0, 0, 123456)
_UTC = dt.timezone.utc
_COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [1, -128, 127]),
    (pa.int32(), [1, -(2**31)]),
    (pa.int64(), [2**63 - 1, -(2**63)]),
    (pa.float32(), [1.5, float("inf")]),
    (pa.float64(), [0.1, 1e308, 5e-324]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["x", "", "é☃", "a\nb", "nul\x00l", "\U0001f600"]),
    (pa.large_string(), ["x", "y"]),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.date32(), [_DAY, dt.date(9999, 12, 31), dt.date(1583, 1, 1)]),
    (pa.timestamp("us"), [_NOON, dt.datetime(1970, 1, 1)]),
    (pa.timestamp("us", "UTC"), [_NOON.replace(tzinfo=_UTC)]),
    (pa.decimal128(38, 10), [Decimal("1.5"), Decimal("-1234567890123456789012345678.0123456789")]),
    (pa.list_(pa.int64()), [[1, None], []]),
    (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": None}, {"x": None, "y": "z"}]),
]
_PARQUET_ONLY: list[tuple[pa.DataType, list[Any]]] = [
    (pa.uint8(), [255]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.dictionary(pa.int8(), pa.string()), ["x", "y"]),
    (pa.null(), [None]),
    (pa.timestamp("ms"), [dt.datetime(2026, 1, 1, 12)]),
]
_DAMAGES = ["cut", "empty", "no end", "cut", "no beginning", "text", "other format"]


def columnar_content(number: int, chance: Random) -> Content:
    ending = ("parquet", "orc")[number // 2 % 2]
    names = chance.sample(["a", "b", "ä", "a.b", "select"], chance.randint(1, 4))
    change = _every_other(number, _DAMAGES)
    count = chance.randint(0 if change == "as it is" else 1, 3)
    pools = _COLUMNS + (_PARQUET_ONLY if ending == "parquet" else [])
    columns = {}
    for name in names:
        kind, values = chance.choice(pools)
        columns[name] = pa.array([chance.choice([*values, *values, None]) for _ in range(count)], kind)
    written = {"parquet": "orc", "orc": "parquet"}[ending] if change == "other format" else ending
    if written == "orc" and ending == "parquet":
        columns = {"a": pa.array([1])}
    sink = pa.BufferOutputStream()
    if written == "parquet":
        codec = chance.choice(["snappy", "zstd", "gzip", "none"])
        pq.write_table(pa.table(columns), sink, compression=codec)
    else:
        orc.write_table(pa.table(columns), sink)
    data = bytes(sink.getvalue())
    if change == "cut":
        data = data[: chance.randint(1, len(data) - 1)]
    elif change in ("empty", "no end", "no beginning", "text"):
        data = {"empty": b"", "no end": data[:-4] + b"XXXX", "no beginning": data[8:], "text": b"a,b\n1,2\n"}[
            change
        ]
    return Content(f"t.{ending}", data, change)


def columnar_rows(content: Content) -> list[dict[str, Any]]:
    """What pyarrow reads; a damaged file has no right rows, however much of it one could read."""
    if content.made != "as it is":
        raise Unreadable
    source = pa.BufferReader(content.data)
    table = pq.read_table(source) if content.format == "parquet" else orc.read_table(source)
    return [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    """A timestamp of pandas, which pyarrow makes of nanoseconds, as Python's own."""
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def equals(stored: Any, value: Any) -> bool:
    """Whether a loaded value is the stored one; nested ones land as JSON."""
    if isinstance(stored, (list, dict)):
        return isinstance(value, str) and bool(json.loads(value) == stored)
    if isinstance(stored, dt.datetime) and isinstance(value, dt.datetime):
        return stored.replace(tzinfo=None) == value.replace(tzinfo=None)
    return bool(stored == value)
