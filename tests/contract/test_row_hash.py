"""``row_hash`` is the same on every backend: of every type at its edges, and as published."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlglot import exp

from ematix_flow import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import canonical_text, row_hash
from ematix_flow.strategies.sql import column, table_as
from ematix_flow.testing.loads import load_rows, new_load

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works" / "strategies.md"
UTC = dt.timezone.utc
DOUBLES = (0.0, -0.0, 1.0, -1.5, 100.0, 0.1, 1 / 3, 2 / 3, 1e15, 1e16, 123456789012345680.0, 1e21, 1e22, 1e23)
DOUBLES += (1e-4, 1e-5, 1e-7, 1.7976931348623157e308, 1e308, -1e308, 5e-324, 2.2250738585072014e-308, 0.3)
# half way between two doubles, where a database may show more digits than it needs
DOUBLES += (5e22, 7e22, -9e22, 3e17 + 100_000, 9007199254740993.0, 1.8e19, 2.0**63, 2.0**100, 1e41, 9e41)
FLOATS = (0.0, 0.5, -1.5, 16777216.0, 0.10000000149011612, 3.4028234663852886e38, 1.401298464324817e-45)
VALUES: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "small_int": (DataType("small_int"), (-32768, 0, 32767)),
    "integer": (DataType("integer"), (-(2**31), 0, 2**31 - 1)),
    "big_int": (DataType("big_int"), (-(2**63), 0, 10, 2**63 - 1)),
    "float": (DataType("float"), FLOATS),
    "double": (DataType("double"), DOUBLES),
    "money": (
        DataType("numeric", precision=12, scale=2),
        tuple(map(Decimal, ("0.00", "1.50", "100.00", "-0.07"))),
    ),
    "fraction": (
        DataType("numeric", precision=4, scale=4),
        tuple(map(Decimal, ("0.5000", "-0.1000", "0.0001"))),
    ),
    "whole": (
        DataType("numeric", precision=38, scale=0),
        (Decimal(9) * 10**37, Decimal(-(10**38) + 1), Decimal(0)),
    ),
    "long": (
        DataType("numeric", precision=38, scale=20),
        (
            Decimal("123456789012345678.01234567890123456789"),
            Decimal("-0.00000000000000000001"),
            Decimal(100),
        ),
    ),
    "boolean": (DataType("boolean"), (True, False)),
    "text": (
        DataType("text"),
        ("", "a", "A", "naïve ☃ 漢字 \U0001f600", "a'b\"c\\d\te\nf", "1:a", " ", "é", "e\u0301"),
    ),
    "string": (DataType("string", length=20), ("x", "ÄÖÜ", " x ")),
    "date": (DataType("date"), (dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31))),
    "timestamp": (
        DataType("timestamp"),
        (
            dt.datetime(1, 1, 1),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
            dt.datetime(9999, 12, 31, 23, 0, 0, 1),
        ),
    ),
    "timestamp_tz": (
        DataType("timestamp_tz"),
        (dt.datetime(1900, 1, 1, tzinfo=UTC), dt.datetime(2026, 10, 25, 0, 30, 0, 120, UTC)),
    ),
    "json": (
        DataType("json"),
        ('{"bb": 1, "a": [true, null, "é\\n"], "aaa": {"z": 1, "y": {}}}', "[]", "12"),
    ),
    "jsonb": (DataType("jsonb"), ('{"b":  [1,2], "a":1.5}', '"text"', "null", "false")),
    "uuid": (
        DataType("uuid"),
        ("12345678-1234-5678-1234-56789ABCDEF0", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ),
    "bytes": (DataType("bytes"), (b"", b"\x00\xff\x10", bytes(range(256)))),
}
NOT_NUMBERS = (float("nan"), float("inf"), float("-inf"))
# never: what a backend refuses to hold, or in one case shows with a digit that is not needed
LACKING: dict[str, tuple[Any, ...]] = {
    "sqlite": ("nan",),
    "mariadb": ("nan", "inf", "-inf", str(FLOATS[5])),
    "mysql": ("nan", "inf", "-inf", str(FLOATS[5]), "2.2250738585072014e-308"),
}
# never: MariaDB keeps JSON as the text that it is given, and has no normal form of it
LACKING["mariadb"] += (VALUES["json"][1][0], VALUES["jsonb"][1][0])


@pytest.fixture(params=["sqlite", "duckdb", "postgres", "mariadb", "mysql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> RelationalTarget:
    connection: Any
    if request.param == "sqlite":
        connection = SQLiteConnection(name="hashes", path=str(tmp_path / "hashes.db"))
    elif request.param == "duckdb":
        connection = DuckDBConnection(name="hashes", path=str(tmp_path / "hashes.duckdb"))
    elif request.param == "postgres":
        connection = PostgresConnection(name="hashes", url=request.getfixturevalue("pg_database"))
    else:
        connection = MySQLConnection(name="hashes", url=request.getfixturevalue(f"{request.param}_database"))
    found = open_backend(connection).target()
    assert isinstance(found, RelationalTarget)
    return found


def hashes(target: RelationalTarget, table: TableSpec, names: list[str]) -> dict[int, bytes]:
    """The hash of the named columns of each row, as the database computes it."""
    dialect = target.dialect
    hashed = dialect.row_hash([(n, table.column(n).type, column(n, "t")) for n in names])
    rows = table_as(dialect.table(table.schema, table.name), "t")
    with target.session() as session:
        found = session.fetch(dialect.render(exp.select(column("n", "t"), hashed).from_(rows)))
    return {n: bytes(digest) for n, digest in found}


def numbered(name: str, *columns: ColumnSpec) -> TableSpec:
    return TableSpec("hashes", name, (ColumnSpec("n", DataType("integer"), primary_key=True), *columns))


def test_values_of_every_type_have_the_same_hash_everywhere(
    target: RelationalTarget, request: pytest.FixtureRequest
) -> None:
    """A column for each type; the rows below its last value have NULL there."""
    lacking = LACKING.get(request.node.callspec.params["target"], ())
    values = {
        kind: [
            value
            for value in (*found, *(NOT_NUMBERS if kind in ("float", "double") else ()))
            if str(value) not in lacking
        ]
        for kind, (_, found) in VALUES.items()
    }
    count = 1 + max(map(len, values.values()))
    filled = {kind: [*found, *([None] * (count - len(found)))] for kind, found in values.items()}
    table = numbered(
        "of_types", *(ColumnSpec(kind, data_type, nullable=True) for kind, (data_type, _) in VALUES.items())
    )
    load_rows(
        target,
        new_load(table),
        [{"n": n, **{kind: found[n] for kind, found in filled.items()}} for n in range(count)],
    )
    for kind, (data_type, _) in VALUES.items():
        stored = hashes(target, table, [kind])
        expected = {n: row_hash({kind: value}, {kind: data_type}) for n, value in enumerate(filled[kind])}
        assert stored == expected, kind


def test_rows_of_several_columns_nulls_and_no_columns(target: RelationalTarget) -> None:
    table = numbered(
        "of_rows",
        ColumnSpec("b", DataType("text"), nullable=True),
        ColumnSpec('A "quoted" ☃', DataType("text"), nullable=True),
        ColumnSpec("extra", DataType("integer"), nullable=True),
    )
    names = [c.name for c in table.columns[1:]]
    texts = (None, "", "a", "1:a")
    rows = [
        {"n": 4 * i + j, "b": one, names[1]: other, "extra": None}
        for i, one in enumerate(texts)
        for j, other in enumerate(texts)
    ]
    load_rows(target, new_load(table), rows)
    types = {c.name: c.type for c in table.columns}
    found = hashes(target, table, names)
    for row in rows:
        assert found[row["n"]] == row_hash({n: row[n] for n in names}, types)
    assert len(set(found.values())) == len(rows)
    assert hashes(target, table, names[:2]) == found  # a column that is added and null changes nothing
    assert set(hashes(target, table, []).values()) == {row_hash({}, {})}


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1.5, "double", "15e0"),
        (-0.0, "double", "0"),
        (5e-324, "double", "5e-324"),
        (1e308, "double", "1e308"),
        (Decimal("-100.50"), "numeric", "-100.5"),
        (Decimal("100"), "numeric", "100"),
        (Decimal("0.00"), "numeric", "0"),
        (dt.datetime(2026, 1, 31, 12), "timestamp", "2026-01-31T12:00:00.000000"),
        ('{"bb": 1, "a": 2}', "json", '{"a": 2, "bb": 1}'),
        ("ABCDEF00-0000-0000-0000-000000000000", "uuid", "abcdef00-0000-0000-0000-000000000000"),
    ],
)
def test_the_text_that_is_hashed_is_as_documented(value: Any, kind: str, text: str) -> None:
    data_type = DataType(kind, precision=20, scale=2) if kind == "numeric" else DataType(kind)
    assert canonical_text(value, data_type) == text


def test_the_published_vectors_are_those_of_the_code() -> None:
    """The page's table: column, type, value, hash."""
    kinds = {"Text": "text", "BigInt": "big_int", "Double": "double", "Boolean": "boolean", "Date": "date"}
    read = {"Text": str, "BigInt": int, "Double": float, "Date": dt.date.fromisoformat}
    shown = re.findall(r"^\| `(.*?)` \| `([0-9a-f]{64})` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) >= 6
    for written, digest in shown:
        values: dict[str, Any] = {}
        types: dict[str, DataType] = {}
        for piece in filter(None, written.split(", ")):
            match = re.fullmatch(r"(\w+): (\w+) = (.*)", piece)
            assert match is not None, piece
            name, kind, text = match.groups()
            types[name] = DataType(kinds[kind])
            values[name] = (
                None if text == "null" else text == "true" if kind == "Boolean" else read[kind](text)
            )
        assert row_hash(values, types).hex() == digest, written
