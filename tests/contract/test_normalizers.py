"""Every normaliser and pre-transform, on every engine, against plain Python: the same rows everywhere.

The databases' sessions run in another time zone than UTC, to show that it does not matter. Left out,
because engines map case by different tables: letters whose other case is two letters or depends on the
place (``ß``, ``ﬁ``, ``İ``, ``Σ`` at the end of a word).
"""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ematix_flow import normalize as n
from ematix_flow.spec.normalize import Normalizer
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.functions.base import find_rejection
from ematix_flow.strategies.functions.sqlite import read_iso, register
from ematix_flow.strategies.projection import build_projection
from tests.contract.chosen import shared_out

ENGINES = (
    "duckdb",
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    *shared_out("mariadb", "mysql"),  # one dialect
    pytest.param("spark", marks=pytest.mark.spark),
)
UTC = dt.timezone.utc
ELSEWHERE = "America/New_York"

TEXT, BIG_INT, DOUBLE, BOOLEAN = (DataType(k) for k in ("text", "big_int", "double", "boolean"))
DATE, NAIVE, MOMENT = (DataType(k) for k in ("date", "timestamp", "timestamp_tz"))


def numeric(precision: int, scale: int) -> DataType:
    return DataType("numeric", precision=precision, scale=scale)


# --- the engines -----------------------------------------------------------------------------------


class Engine:
    """Holds a table ``inputs (n, v)`` and answers SQL."""

    dialect: str

    def load(self, kind: DataType, values: Sequence[Any]) -> None:
        raise NotImplementedError

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def close(self) -> None:
        """The Spark session is shared, the databases' connections are not."""


class DuckDB(Engine):
    dialect = "duckdb"

    def __init__(self) -> None:
        import duckdb

        self.connection = duckdb.connect()
        self.connection.execute(f"SET TimeZone = '{ELSEWHERE}'")

    def load(self, kind: DataType, values: Sequence[Any]) -> None:
        types = {
            "text": "TEXT",
            "big_int": "BIGINT",
            "double": "DOUBLE",
            "boolean": "BOOLEAN",
            "date": "DATE",
        }
        types |= {"timestamp": "TIMESTAMP", "timestamp_tz": "TIMESTAMPTZ"}
        native = types.get(kind.kind) or f"DECIMAL({kind.precision}, {kind.scale})"
        self.connection.execute(f"CREATE OR REPLACE TABLE inputs (n BIGINT, v {native})")
        self.connection.executemany("INSERT INTO inputs VALUES (?, ?)", [list(p) for p in enumerate(values)])

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.connection.close()


class SQLite(Engine):
    dialect = "sqlite"

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        register(self.connection)

    def load(self, kind: DataType, values: Sequence[Any]) -> None:
        types = {"big_int": "INTEGER", "double": "REAL", "boolean": "INTEGER", "numeric": "NUMERIC"}
        self.connection.execute("DROP TABLE IF EXISTS inputs")
        self.connection.execute(f"CREATE TABLE inputs (n INTEGER, v {types.get(kind.kind, 'TEXT')})")
        self.connection.executemany(
            "INSERT INTO inputs VALUES (?, ?)", [(i, self._stored(v)) for i, v in enumerate(values)]
        )

    def _stored(self, value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.isoformat(" ")
        return str(value) if isinstance(value, (dt.date, Decimal)) else value

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.connection.close()


class Postgres(Engine):
    dialect = "postgres"

    def __init__(self, url: str) -> None:
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(f"SET TIME ZONE '{ELSEWHERE}'")

    def load(self, kind: DataType, values: Sequence[Any]) -> None:
        types = {"big_int": "bigint", "double": "double precision", "timestamp_tz": "timestamptz"}
        native = types.get(kind.kind) or (
            f"numeric({kind.precision}, {kind.scale})" if kind.kind == "numeric" else kind.kind
        )
        self.connection.execute("DROP TABLE IF EXISTS inputs")
        self.connection.execute(f"CREATE TEMPORARY TABLE inputs (n bigint, v {native})")
        with self.connection.cursor() as cursor:
            cursor.executemany("INSERT INTO inputs VALUES (%s, %s)", list(enumerate(values)))

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.connection.close()


class MySQL(Engine):
    """MySQL or MariaDB, in sessions as ours are; the column's own collation ignores case and padding."""

    dialect = "mysql"

    def __init__(self, url: str) -> None:
        from ematix_flow import MySQLConnection
        from ematix_flow.backends.mysql.address import parse_address
        from ematix_flow.backends.mysql.connection import connect

        self.connection = connect(parse_address(MySQLConnection(name="engine", url=url)))
        self.fetch("SET SESSION time_zone = '-05:00'")

    def load(self, kind: DataType, values: Sequence[Any]) -> None:
        types = {"big_int": "bigint", "boolean": "bool", "text": "longtext COLLATE utf8mb4_general_ci"}
        types |= dict.fromkeys(("timestamp", "timestamp_tz"), "datetime(6)")
        native = types.get(kind.kind) or (
            f"decimal({kind.precision}, {kind.scale})" if kind.kind == "numeric" else kind.kind
        )
        self.fetch("DROP TABLE IF EXISTS inputs")
        self.fetch(f"CREATE TABLE inputs (n bigint, v {native}) CHARACTER SET utf8mb4")
        rows = [
            (i, v.astimezone(UTC) if isinstance(v, dt.datetime) and v.tzinfo else v)
            for i, v in enumerate(values)
        ]
        with self.connection.cursor() as cursor:
            cursor.executemany("INSERT INTO inputs VALUES (%s, %s)", rows)

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def close(self) -> None:
        self.connection.close()


class Spark(Engine):
    dialect = "spark"

    def __init__(self, session: Any) -> None:
        self.session = session

    def load(self, kind: DataType, values: Sequence[Any]) -> None:
        import pyarrow as pa

        fields = [("n", pa.int64()), ("v", kind.arrow())]
        rows = [{"n": i, "v": v} for i, v in enumerate(values)]
        self.session.createDataFrame(
            pa.Table.from_pylist(rows, schema=pa.schema(fields))
        ).createOrReplaceTempView("inputs")

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(sql).toArrow().to_pylist() for row in [row.values()]]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made: Engine
    if request.param == "postgres":
        made = Postgres(request.getfixturevalue("pg_database"))
    elif request.param in ("mysql", "mariadb"):
        made = MySQL(request.getfixturevalue(f"{request.param}_database"))
    elif request.param == "spark":
        made = Spark(request.getfixturevalue("spark"))
    else:
        made = DuckDB() if request.param == "duckdb" else SQLite()
    yield made
    made.close()


# --- how a case runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What the markers make of each input: a function, or the expected values one by one."""

    markers: Sequence[Normalizer]
    want: DataType
    expected: Callable[[Any], Any] | Sequence[Any]

    def of(self, inputs: Sequence[Any]) -> list[Any]:
        if callable(self.expected):
            return [None if i is None else self.expected(i) for i in inputs]
        return list(self.expected)


def run(engine: Engine, kind: DataType, inputs: Sequence[Any], cases: Sequence[Case]) -> list[list[Any]]:
    """All cases in one query: each is a column of one table, fed from the same input."""
    engine.load(kind, inputs)
    columns = [ColumnSpec("n", BIG_INT, primary_key=True)]
    columns += [
        ColumnSpec(f"case {i}", c.want, nullable=True, normalizers=tuple(c.markers))
        for i, c in enumerate(cases)
    ]
    sql = build_projection(
        source_sql="SELECT n, v FROM inputs ORDER BY n -- the input;\n;",
        table=TableSpec(None, "results", tuple(columns)),
        source_columns=["n", "v"],
        source_types={"n": BIG_INT, "v": kind},
        column_map={f"case {i}": "v" for i in range(len(cases))},
        dialect=engine.dialect,
    )
    rows = sorted(engine.fetch(sql))
    assert [row[0] for row in rows] == list(range(len(inputs)))
    return [[canonical(row[i + 1], c.want) for row in rows] for i, c in enumerate(cases)]


def canonical(value: Any, kind: DataType) -> Any:
    """The value in its Python type, for every driver."""
    if value is None:
        return None
    if kind.kind in ("timestamp", "timestamp_tz", "date") and isinstance(value, str):
        value = read_iso(value) if kind.kind != "date" else dt.date.fromisoformat(value)
    if kind.kind == "timestamp_tz":
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if kind.kind == "numeric":
        return Decimal(str(value))
    return bool(value) if kind.kind == "boolean" else value


def check(engine: Engine, kind: DataType, inputs: Sequence[Any], cases: Sequence[Case]) -> None:
    for case, got in zip(cases, run(engine, kind, inputs, cases), strict=True):
        wrong = [
            f"{i!r} -> {g!r}, not {w!r}"
            for i, g, w in zip(inputs, got, case.of(inputs), strict=True)
            if g != w or type(g) is not type(w)
        ]
        assert not wrong, f"{list(case.markers)} on {engine.dialect}: " + "; ".join(wrong)


# --- text ------------------------------------------------------------------------------------------

WHITESPACE = " \t\n\v\f\r"
TEXTS = [
    None,
    "",
    " ",
    "\t \n",
    "Hello",
    "  MiXed Case ",
    "ÜBER straÃe",
    "日本 語",
    "a'b\"c\\d",
    "$1 \\1 %s :x ?",
    "+49 (30) 123-45",
    "a1b22c333",
    "line one\nline two",
    "\u00a0padded\u00a0",
    "😀 face",
]


def simple(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda s: "".join(change(c) for c in s)


def test_text_markers_agree(engine: Engine) -> None:
    shouted = "concat(col, '!')" if engine.dialect == "mysql" else "col || '!'"
    check(
        engine,
        TEXT,
        TEXTS,
        [
            Case([n.trim()], TEXT, lambda s: s.strip(WHITESPACE)),
            Case([n.lower()], TEXT, simple(str.lower)),
            Case([n.upper()], TEXT, simple(str.upper)),
            Case([n.empty_to_null()], TEXT, lambda s: s or None),
            Case([n.whitespace_to_null()], TEXT, lambda s: s.strip(WHITESPACE) or None),
            Case([n.replace("a", "\\$'1")], TEXT, lambda s: s.replace("a", "\\$'1")),
            Case([n.truncate(4)], TEXT, lambda s: s[:4]),
            Case([n.truncate(0)], TEXT, lambda s: ""),
            Case([n.email_normalize()], TEXT, lambda s: simple(str.lower)(s.strip(WHITESPACE))),
            Case([n.phone_normalize()], TEXT, lambda s: re.sub("[^0-9+]", "", s)),
            Case(
                [n.lower(), n.trim(), n.empty_to_null()], TEXT, lambda s: s.lower().strip(WHITESPACE) or None
            ),
            Case([n.default("none")], TEXT, [t if t is not None else "none" for t in TEXTS]),
            Case([n.not_null_or(7)], TEXT, [t if t is not None else "7" for t in TEXTS]),
            Case([n.nullif("Hello")], TEXT, lambda s: None if s == "Hello" else s),
            Case([n.sql("CASE WHEN col = 'Hello' THEN 'col' ELSE col END -- col")], TEXT, _col),
            Case([n.trim(), n.sql(shouted), n.lower()], TEXT, lambda s: s.strip(WHITESPACE).lower() + "!"),
        ],
    )


def _col(value: str) -> str:
    return "col" if value == "Hello" else value


def test_regular_expressions_agree(engine: Engine) -> None:
    def like(pattern: str, replacement: str, count: int = 0, flags: int = 0) -> Callable[[str], str]:
        return lambda s: re.sub(pattern, replacement, s, count=count, flags=flags | re.ASCII)

    check(
        engine,
        TEXT,
        TEXTS,
        [
            Case([n.regex_replace(r"\d+", "#")], TEXT, like(r"\d+", "#")),
            Case([n.regex_replace(r"(\w)(\d)", r"<\2\1>")], TEXT, like(r"(\w)(\d)", r"<\2\1>")),
            Case([n.regex_replace(r"\d", r"[\0]", flags="")], TEXT, like(r"\d", r"[\g<0>]", count=1)),
            Case(
                [n.regex_replace(r"(l)(l|i)", r"\2\1", flags="")], TEXT, like(r"(l)(l|i)", r"\2\1", count=1)
            ),
            Case([n.regex_replace("H|b", "x", flags="gi")], TEXT, like("H|b", "x", flags=re.I)),
            Case([n.regex_replace(r"\s+", " ")], TEXT, like(r"\s+", " ")),
            Case([n.regex_replace(r".$", "$")], TEXT, like(r"[^\n]\Z", "$")),
            Case([n.regex_replace(r"^", "> ")], TEXT, like(r"\A", "> ")),
            Case([n.regex_replace(r"\b[a-c]", "_")], TEXT, like(r"\b[a-c]", "_")),
            Case([n.regex_replace(r"[\w.'-]{2,}", "w")], TEXT, like(r"[\w.'-]{2,}", "w")),
            Case([n.regex_replace(r"\\|\$|\"", r"\\")], TEXT, like(r"\\|\$|\"", r"\\")),
            Case([n.regex_replace(r"(x)?1", r"(\1)")], TEXT, like(r"(x)?1", r"(\1)")),
            Case([n.regex_replace(r"(a)1", r"\15")], TEXT, like(r"(a)1", r"\g<1>5")),
            Case([n.regex_replace("[^A-Za-z]+", "")], TEXT, like("[^A-Za-z]+", "")),
        ],
    )


# --- numbers and booleans --------------------------------------------------------------------------

NUMBERS = [
    *(
        None,
        "",
        " ",
        "0",
        "-0",
        "7",
        "+7",
        " -12 ",
        "007",
        "12.0",
        "1.005",
        "-1.005",
        ".5",
        "5.",
        "-.25",
        ".",
        "-",
    ),
    *(
        "1e5",
        "1,234",
        "abc",
        "٣",
        "NaN",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
    ),
    *(
        "-9223372036854775809",
        "00000000000000000000042",
        "99.994",
        "99.995",
        "-99.995",
        "123456789012345678901234567890",
    ),
    "12345678901234567890.123456789",
]


def whole(text: str) -> int | None:
    stripped = text.strip(WHITESPACE)
    if not re.fullmatch(r"[+-]?[0-9]+", stripped):
        return None
    return int(stripped) if -(2**63) <= int(stripped) < 2**63 else None


def decimal_of(precision: int, scale: int) -> Callable[[str], Decimal | None]:
    def read(text: str) -> Decimal | None:
        stripped = text.strip(WHITESPACE)
        if not re.fullmatch(r"[+-]?(?:[0-9]+(?:[.][0-9]*)?|[.][0-9]+)", stripped):
            return None
        with localcontext() as context:
            context.prec = 100
            rounded = Decimal(stripped).quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP)
        return rounded if abs(rounded) < 10 ** (precision - scale) else None

    return read


def test_numbers_in_text_are_read_alike(engine: Engine) -> None:
    read = decimal_of(4, 2)
    check(
        engine,
        TEXT,
        NUMBERS,
        [
            Case([n.parse_int()], BIG_INT, whole),
            Case([n.parse_int("default", -1)], BIG_INT, lambda s: -1 if whole(s) is None else whole(s)),
            Case([n.trim(), n.parse_int(), n.default(5)], BIG_INT, [_or(whole, x, 5) for x in NUMBERS]),
            Case([n.parse_int(), n.clamp(0.5, 10)], BIG_INT, lambda s: _between(whole(s), 1, 10)),
            Case([n.parse_numeric(4, 2)], numeric(4, 2), read),
            Case([n.parse_numeric(30, 9)], numeric(30, 9), decimal_of(30, 9)),
            Case([n.parse_numeric(2, 2)], numeric(2, 2), decimal_of(2, 2)),
            Case([n.parse_numeric(38, 0)], numeric(38, 0), decimal_of(38, 0)),
            Case(
                [n.parse_numeric(4, 2, "default", "1.5")],
                numeric(4, 2),
                lambda s: Decimal("1.50") if read(s) is None else read(s),
            ),
            Case(
                [n.parse_numeric(10, 3), n.round(1), n.clamp(None, Decimal("7.25"))],
                numeric(10, 3),
                lambda s: _rounded(decimal_of(10, 3)(s), 1, Decimal("7.25")),
            ),
            Case(
                [n.parse_numeric(10, 2), n.nullif(7)], numeric(10, 2), lambda s: _not(decimal_of(10, 2)(s), 7)
            ),
        ],
    )


def _or(read: Callable[[str], Any], text: str | None, instead: Any) -> Any:
    got = None if text is None else read(text)
    return instead if got is None else got


def _not(value: Any, other: Any) -> Any:
    return None if value == other else value


def _between(value: Any, low: Any, high: Any) -> Any:
    return None if value is None else min(max(value, low), high)


def _rounded(value: Decimal | None, digits: int, most: Decimal) -> Decimal | None:
    if value is None:
        return None
    return min(value.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP), most)


BOOLEANS = [None, "", "true", "TRUE", " Yes ", "y", "1", "false", "No", "n", "0", "t", "off", "ja", "2"]


def test_booleans_in_text_are_read_alike(engine: Engine) -> None:
    words = {
        "true": True,
        "yes": True,
        "y": True,
        "1": True,
        "false": False,
        "no": False,
        "n": False,
        "0": False,
    }

    def read(text: str) -> bool | None:
        return words.get(text.strip().lower())

    check(
        engine,
        TEXT,
        BOOLEANS,
        [
            Case([n.parse_bool()], BOOLEAN, read),
            Case(
                [n.parse_bool(("JA",), ("nein", "off"))], BOOLEAN, lambda s: {"ja": True, "off": False}.get(s)
            ),
            Case([n.parse_bool(on_failure="default", default=False)], BOOLEAN, lambda s: read(s) or False),
            Case([n.parse_bool(), n.default(True)], BOOLEAN, [_or(read, b, True) for b in BOOLEANS]),
            Case([n.parse_bool()], TEXT, lambda s: None if read(s) is None else str(read(s)).lower()),
        ],
    )


def test_numbers_that_are_numbers_already(engine: Engine) -> None:
    doubles = [None, 0.0, 2.5, -2.5, 1.005, 2.675, 0.1 + 0.2, 12.0, 1e14, 1e20, -7.25]
    check(
        engine,
        DOUBLE,
        doubles,
        [
            Case([n.round(2)], DOUBLE, lambda x: _round_double(x, 2)),
            Case([n.round(0)], DOUBLE, lambda x: _round_double(x, 0)),
            Case([n.round(-1)], DOUBLE, lambda x: _round_double(x, -1)),
            Case([n.clamp(-2, 10.5)], DOUBLE, lambda x: float(min(max(x, -2), 10.5))),
            Case([n.parse_int()], BIG_INT, lambda x: int(x) if x == int(x) and abs(x) < 2**63 else None),
            Case([n.parse_numeric(6, 2)], numeric(6, 2), lambda x: decimal_of(6, 2)(repr(x))),
            Case([n.default(1)], DOUBLE, [1.0 if x is None else x for x in doubles]),
        ],
    )
    decimals = [None, *map(Decimal, ("0.000", "2.500", "-2.500", "12.345", "-12.345", "99.999", "7.000"))]
    check(
        engine,
        numeric(8, 3),
        decimals,
        [
            Case([n.round(2)], numeric(8, 2), lambda x: x.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)),
            Case(
                [n.round(0), n.parse_int()],
                BIG_INT,
                lambda x: int(x.quantize(Decimal(1), rounding=ROUND_HALF_UP)),
            ),
            Case([n.parse_int()], BIG_INT, lambda x: int(x) if x == int(x) else None),
            Case(
                [n.clamp(0, Decimal("12.5"))],
                numeric(8, 3),
                lambda x: min(max(x, Decimal(0)), Decimal("12.5")),
            ),
            Case([], numeric(12, 5), lambda x: x),
        ],
    )
    integers = [None, 0, 1, -15, 15, 12345, 2**62]
    check(
        engine,
        BIG_INT,
        integers,
        [
            Case([n.round(-1)], numeric(20, 0), lambda x: Decimal(_round_int(x, 10))),
            Case([n.clamp(0, 100)], BIG_INT, lambda x: min(max(x, 0), 100)),
            Case([n.parse_int()], BIG_INT, lambda x: x),
            Case([n.replace("1", "2")], TEXT, lambda x: str(x).replace("1", "2")),
            Case([n.nullif(15)], BIG_INT, lambda x: _not(x, 15)),
            Case([], numeric(20, 1), lambda x: Decimal(x)),
        ],
    )


def _round_double(value: float, digits: int) -> float:
    if abs(value) >= 1e15:
        return value
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP))


def _round_int(value: int, step: int) -> int:
    return int((Decimal(value) / step).quantize(Decimal(1), rounding=ROUND_HALF_UP)) * step


# --- dates and times -------------------------------------------------------------------------------


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


MOMENTS: dict[str | None, dt.datetime | None] = {
    None: None,
    "": None,
    "  ": None,
    "2024-01-02": at(2024, 1, 2),
    "2024-1-2": at(2024, 1, 2),
    "2024-01-02T03:04": at(2024, 1, 2, 3, 4),
    "2024-01-02 03:04:05": at(2024, 1, 2, 3, 4, 5),
    " 2024-01-02T03:04:05Z\n": at(2024, 1, 2, 3, 4, 5),
    "2024-01-02t03:04:05.5z": at(2024, 1, 2, 3, 4, 5, 500000),
    "2024-01-02 03:04:05.123456789": at(2024, 1, 2, 3, 4, 5, 123456),
    "2024-01-02T03:04:05+02:00": at(2024, 1, 2, 1, 4, 5),
    "2024-01-02T03:04:05.25 -0530": at(2024, 1, 2, 8, 34, 5, 250000),
    "2024-01-02 03:04:05+14": at(2024, 1, 1, 13, 4, 5),
    "2024-07-01 12:00:00-04": at(2024, 7, 1, 16),
    "2024/03/04 05:06:07": at(2024, 3, 4, 5, 6, 7),
    "2024/3/4": at(2024, 3, 4),
    "12/31/2023 23:59:59": at(2023, 12, 31, 23, 59, 59),
    "12/31/2023 12:00:00 am": at(2023, 12, 31),
    "1/2/2024 1:02:03 PM": at(2024, 1, 2, 13, 2, 3),
    "1/2/2024": at(2024, 1, 2),
    "31.12.2023": at(2023, 12, 31),
    "31.12.2023 1:2:3": at(2023, 12, 31, 1, 2, 3),
    "20240229": at(2024, 2, 29),
    "2000-02-29": at(2000, 2, 29),
    "0002-01-01": at(2, 1, 1),
    "1969-12-31 23:59:59.999999": at(1969, 12, 31, 23, 59, 59, 999999),
    "9998-12-31 23:59:59": at(9998, 12, 31, 23, 59, 59),
    "2023-02-29": None,
    "1900-02-29": None,
    "2024-04-31": None,
    "2024-13-01": None,
    "2024-00-10": None,
    "0000-01-01": None,
    "13/01/2024": None,
    "2024-01-02 24:00:00": None,
    "2024-01-02 23:60:00": None,
    "2024-01-02 23:59:60": None,
    "2024-01-02 03:04:05+15:00": None,
    "2024-01-02T": None,
    "1/2/2024 13:02:03 PM": None,
    "20240230": None,
    "yesterday": None,
    "2024-01-02 03:04:05 Europe/Berlin": None,
}


def test_timestamps_in_text_are_read_alike(engine: Engine) -> None:
    fallback = at(1999, 12, 31)
    check(
        engine,
        TEXT,
        list(MOMENTS),
        [
            Case([n.parse_timestamp()], MOMENT, MOMENTS.get),
            Case([n.parse_timestamp()], NAIVE, lambda s: _naive(MOMENTS[s])),
            Case(
                [n.parse_timestamp(on_failure="default", default="1999-12-31")],
                MOMENT,
                lambda s: MOMENTS[s] or fallback,
            ),
            Case(
                [n.parse_timestamp(), n.default(fallback)], MOMENT, [MOMENTS[s] or fallback for s in MOMENTS]
            ),
            Case(
                [n.parse_timestamp("ISO8601"), n.date_trunc("hour")],
                MOMENT,
                lambda s: _hour(MOMENTS[s]) if re.match(r"\s*\d+-", s) else None,
            ),
        ],
    )


def _naive(moment: dt.datetime | None) -> dt.datetime | None:
    return None if moment is None else moment.replace(tzinfo=None)


def _hour(moment: dt.datetime | None) -> dt.datetime | None:
    return None if moment is None else moment.replace(minute=0, second=0, microsecond=0)


def test_formats_are_read_alike(engine: Engine) -> None:
    inputs = {
        "02-Jan-2024": "DD-Mon-YYYY",
        "2 september 24": "%d %B %y",
        "Feb 29 71": "MON DD YY",
        "feb 29 72": "MON DD YY",
        "240102T030405": 'YYMMDD"T"HH24MISS',
        "2024-01-02 at 11:30 p.m. +0100": 'YYYY-MM-DD "at" HH12:MI AM OF',
        "2024.01.02-03h04": 'YYYY.MM.DD-HH24"h"MI',
        "03:04:05.006 02/01/2024": "%H:%M:%S.%f %d/%m/%Y",
        "2024-01-02T03:04:05.006Z": 'YYYY-MM-DD"T"HH24:MI:SS.MSTZH:TZM',
    }
    expected = [
        at(2024, 1, 2),
        at(2024, 9, 2),
        None,
        at(1972, 2, 29),
        at(2024, 1, 2, 3, 4, 5),
        at(2024, 1, 2, 22, 30),
        at(2024, 1, 2, 3, 4),
        at(2024, 1, 2, 3, 4, 5, 6000),
        at(2024, 1, 2, 3, 4, 5, 6000),
    ]
    forms = list(dict.fromkeys(inputs.values()))
    days = [None if e is None else e.date() for e in expected]
    days[5] = dt.date(2024, 1, 2)  # the day as it is written, in any zone
    check(
        engine,
        TEXT,
        list(inputs),
        [
            Case([n.parse_timestamp(formats=forms)], MOMENT, expected),
            Case([n.parse_date(formats=forms)], DATE, days),
        ],
    )


DAYS: dict[str | None, dt.date | None] = {
    None: None,
    "": None,
    "2024-02-29": dt.date(2024, 2, 29),
    " 2024-2-9 ": dt.date(2024, 2, 9),
    "2024-01-02T23:00:00-05:00": dt.date(2024, 1, 2),
    "2024/03/04": dt.date(2024, 3, 4),
    "12/31/2023": dt.date(2023, 12, 31),
    "31.12.2023": dt.date(2023, 12, 31),
    "20231231": dt.date(2023, 12, 31),
    "2023-02-29": None,
    "31/12/2023": None,
    "soon": None,
}


def test_dates_in_text_are_read_alike(engine: Engine) -> None:
    check(
        engine,
        TEXT,
        list(DAYS),
        [
            Case([n.parse_date()], DATE, DAYS.get),
            Case(
                [n.parse_date(on_failure="default", default="2000-01-01")],
                DATE,
                lambda s: DAYS[s] or dt.date(2000, 1, 1),
            ),
            Case([n.parse_date(), n.date_trunc("month")], DATE, lambda s: DAYS[s] and DAYS[s].replace(day=1)),
            Case([n.parse_date()], MOMENT, lambda s: DAYS[s] and at(*DAYS[s].timetuple()[:3])),
            Case(
                [n.parse_date(), n.clamp(dt.date(2024, 1, 1), None)],
                DATE,
                lambda s: DAYS[s] and max(DAYS[s], dt.date(2024, 1, 1)),
            ),
        ],
    )


def test_times_that_are_times_already(engine: Engine) -> None:
    moments = [
        None,
        at(2024, 1, 2, 3, 4, 5, 678901),
        at(2024, 3, 31, 1, 30),
        at(2024, 11, 3, 6, 30),
        at(2024, 12, 30, 23, 59, 59),
        at(1900, 1, 1),
    ]

    def local(zone: str) -> Callable[[dt.datetime], dt.datetime]:
        return lambda m: m.astimezone(ZoneInfo(zone)).replace(tzinfo=None)

    day = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}
    check(
        engine,
        MOMENT,
        moments,
        [
            Case([n.parse_timestamp()], MOMENT, lambda m: m),
            Case([n.parse_timestamp(formats=["MM/DD/YYYY"], on_failure="error")], MOMENT, lambda m: m),
            Case([n.to_timezone("Europe/Berlin")], NAIVE, local("Europe/Berlin")),
            Case([n.to_timezone(ELSEWHERE)], NAIVE, local(ELSEWHERE)),
            Case([n.parse_date()], DATE, lambda m: m.date()),
            Case([], NAIVE, lambda m: m.replace(tzinfo=None)),
            Case([n.date_trunc("second")], MOMENT, lambda m: m.replace(microsecond=0)),
            Case([n.date_trunc("minute")], MOMENT, lambda m: m.replace(second=0, microsecond=0)),
            Case([n.date_trunc("day")], MOMENT, lambda m: m.replace(**day)),
            Case([n.date_trunc("week")], MOMENT, lambda m: m.replace(**day) - dt.timedelta(m.weekday())),
            Case([n.date_trunc("month")], MOMENT, lambda m: m.replace(day=1, **day)),
            Case(
                [n.date_trunc("quarter")],
                MOMENT,
                lambda m: m.replace(month=(m.month - 1) // 3 * 3 + 1, day=1, **day),
            ),
            Case([n.date_trunc("year")], MOMENT, lambda m: m.replace(month=1, day=1, **day)),
            Case([n.clamp(None, at(2024, 3, 1))], MOMENT, lambda m: min(m, at(2024, 3, 1))),
            Case([n.default(dt.datetime(2020, 5, 5))], MOMENT, [m or at(2020, 5, 5) for m in moments]),
        ],
    )
    naive = [None if m is None else m.replace(tzinfo=None) for m in moments]
    check(
        engine,
        NAIVE,
        naive,
        [
            Case([n.parse_timestamp()], MOMENT, lambda m: m.replace(tzinfo=UTC)),
            Case([n.to_timezone("Asia/Tokyo")], NAIVE, lambda m: local("Asia/Tokyo")(m.replace(tzinfo=UTC))),
            Case([n.date_trunc("day")], NAIVE, lambda m: m.replace(**day)),
            Case([], MOMENT, lambda m: m.replace(tzinfo=UTC)),
            Case([n.parse_date()], DATE, lambda m: m.date()),
        ],
    )
    days = [None, dt.date(2024, 2, 29), dt.date(1969, 12, 31)]
    check(
        engine,
        DATE,
        days,
        [
            Case([n.parse_timestamp()], MOMENT, lambda d: at(d.year, d.month, d.day)),
            Case([n.date_trunc("year")], DATE, lambda d: d.replace(month=1, day=1)),
            Case([n.trim()], TEXT, lambda d: d.isoformat()),
            Case([], NAIVE, lambda d: dt.datetime(d.year, d.month, d.day)),
        ],
    )


# --- casts without markers -------------------------------------------------------------------------


def test_texts_become_the_declared_type(engine: Engine) -> None:
    for text, kind, value in [
        ("12", DataType("integer"), 12),
        (" -3.50", numeric(5, 2), Decimal("-3.50")),
        ("off", BOOLEAN, False),
        ("2024-02-29", DATE, dt.date(2024, 2, 29)),
        ("2024-02-29T01:02:03Z", MOMENT, at(2024, 2, 29, 1, 2, 3)),
        ("2024-02-29 01:02:03", NAIVE, dt.datetime(2024, 2, 29, 1, 2, 3)),
        ("2.5", DOUBLE, 2.5),
    ]:
        check(engine, TEXT, [text, None], [Case([], kind, [value, None])])


# --- values that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "markers", "want", "complaint"),
    [
        (TEXT, "x1", [n.parse_int(on_failure="error")], BIG_INT, "'x1' is not a whole number of 64 bits"),
        (
            TEXT,
            "1e5",
            [n.parse_numeric(5, 2, "error")],
            numeric(5, 2),
            r"'1e5' is not a number of Numeric\[5, 2\]",
        ),
        (TEXT, "MAYBE", [n.parse_bool(on_failure="error")], BOOLEAN, "'maybe' is neither true nor false"),
        (TEXT, "it's", [n.parse_timestamp(on_failure="error")], MOMENT, "'it's' is not a timestamp"),
        (TEXT, "2024-02-30", [n.parse_date(on_failure="error")], DATE, "'2024-02-30' is not a date"),
        (TEXT, "twelve", [], BIG_INT, "'twelve' is not a whole number"),
        (numeric(8, 3), Decimal("1.234"), [], numeric(8, 2), "'1.234' has more digits"),
        (DOUBLE, 0.1 + 0.2, [], numeric(8, 2), "has more digits"),
        (DOUBLE, 1.5, [], BIG_INT, "'1.5' is not a whole number"),
        (BIG_INT, 2, [], BOOLEAN, "'2' is neither 0 nor 1"),
        (NAIVE, dt.datetime(2024, 1, 2, 3), [], DATE, "has a time of day"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", value) if isinstance(value, str) else "",
)
def test_a_value_that_does_not_fit_is_refused_by_name(
    engine: Engine, kind: DataType, value: Any, markers: list[Normalizer], want: DataType, complaint: str
) -> None:
    with pytest.raises(Exception) as caught:  # each driver has its own
        run(engine, kind, [None, value], [Case(markers, want, [])])
    said = find_rejection(str(caught.value))
    assert said is not None, caught.value
    assert re.match(f"column 'case 0': .*{complaint}", said), said


@pytest.mark.parametrize("want", ["small_int", "integer"])
def test_a_number_beyond_its_column_is_refused(engine: Engine, want: str) -> None:
    with pytest.raises(Exception):  # noqa: B017  # the engine's own words
        run(engine, BIG_INT, [2**40], [Case([], DataType(want), [])])


# --- pre-transforms --------------------------------------------------------------------------------

ROWS = TableSpec(
    None,
    "rows",
    (
        ColumnSpec("n", BIG_INT, primary_key=True),
        ColumnSpec("select", TEXT, nullable=True, normalizers=(n.trim(), n.lower())),
    ),
)


def shaped(
    engine: Engine, values: Sequence[str | None], *pre: Any, table: TableSpec = ROWS
) -> list[tuple[Any, ...]]:
    engine.load(TEXT, values)
    sql = build_projection(
        source_sql="SELECT * FROM inputs",
        table=table,
        source_columns=["n", "v"],
        source_types={"n": BIG_INT, "v": TEXT},
        column_map={"select": "v"},
        pre=pre,
        dialect=engine.dialect,
    )
    return sorted(engine.fetch(sql))


def test_duplicates_go_by_the_normalised_key(engine: Engine) -> None:
    values = [" A", "a", "b", None, None, "B "]
    newest = n.deduplicate_by("select", order_by="n desc")
    oldest = n.deduplicate_by(keys=("select",), order_by=["n"])
    assert shaped(engine, values, newest) == [(1, "a"), (4, None), (5, "b")]
    assert shaped(engine, values, oldest) == [(0, "a"), (2, "b"), (3, None)]


def test_nulls_come_last_when_duplicates_are_ordered(engine: Engine) -> None:
    table = TableSpec(None, "rows", (*ROWS.columns, ColumnSpec("same", TEXT, normalizers=(n.derive("'x'"),))))
    values = [None, "b", "c", None]
    quoted = "`select`" if engine.dialect in ("spark", "mysql") else '"select"'
    for order, expected in [("select desc", 2), ("select", 1), (f"{quoted} asc nulls first, n desc", 3)]:
        rows = shaped(engine, values, n.deduplicate_by("same", order_by=order), table=table)
        assert [row[0] for row in rows] == [expected], order


def test_pre_transforms_run_in_their_order(engine: Engine) -> None:
    values = ["a", "b", "a", "c"]
    keep = n.filter_where("n > 0 -- not the first")
    assert shaped(engine, values, keep, n.deduplicate_by("select", order_by="n")) == [
        (1, "b"),
        (2, "a"),
        (3, "c"),
    ]
    assert shaped(engine, values, n.deduplicate_by("select", order_by="n"), keep) == [(1, "b"), (3, "c")]


def test_a_pre_transform_may_use_a_column_that_is_not_loaded(engine: Engine) -> None:
    table = TableSpec(None, "rows", (ColumnSpec("n", BIG_INT, primary_key=True),))
    engine.load(TEXT, ["a", "b"])
    sql = build_projection(
        source_sql="SELECT * FROM inputs",
        table=table,
        source_columns=["n", "v"],
        pre=[n.filter_where("v = 'b'")],
        dialect=engine.dialect,
    )
    assert engine.fetch(sql) == [(1,)]


def test_limits_and_samples(engine: Engine) -> None:
    values = [str(i) for i in range(2000)]
    assert len(shaped(engine, values, n.limit(3))) == 3
    assert shaped(engine, values, n.limit(0)) == []
    assert shaped(engine, values, n.sample_pct(0)) == []
    assert len(shaped(engine, values, n.sample_pct(1))) == 2000
    assert 700 < len(shaped(engine, values, n.sample_pct(0.5))) < 1300


# --- names -----------------------------------------------------------------------------------------


def test_hostile_names_are_only_names(engine: Engine) -> None:
    names = ["select", 'quo"te', "back`tick", "semi;colon", "-- comment", "Größe 名", "a.b", "x' OR '1'='1"]
    table = TableSpec(
        None,
        "t",
        tuple(
            ColumnSpec(name, TEXT, nullable=True, normalizers=(n.trim(), n.parse_bool())) for name in names
        ),
    )
    engine.load(TEXT, [" yes"])
    sql = build_projection(
        source_sql="SELECT v FROM inputs",
        table=table,
        source_columns=["v"],
        source_types={"v": TEXT},
        column_map=dict.fromkeys(names, "v"),
        pre=[n.deduplicate_by(*names)],
        dialect=engine.dialect,
    )
    assert [tuple(str(v).lower() for v in row) for row in engine.fetch(sql)] == [("true",) * len(names)]
