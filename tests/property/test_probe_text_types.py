"""Guessed types of random columns of CSV and JSON lines against plain Python.

Every value that is read is the written one, exactly; different values are counted as different ones; and the
type of a column of CSV is the one that a pipeline infers, but for doubles.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlglot import exp

from ematix_flow.backends.objectstore.formats.text_types import infer_type_of_texts
from ematix_probe import probe, source

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

NUMBERS = (
    *("0", "1", "-1", "7", "31", "100000", "9007199254740992", "9007199254740993", "123456789012345678"),
    *("1234567890123456789", "9223372036854775808", "12345678901234567890123", "12345678901234567890124"),
    *("0.1", "0.2", "0.25", "1.5", "1.50", "-0.5", "0.1234567890123456", "123456.78901234567", "2.00"),
)
FLOATS = (
    *("1e5", "1E-7", "9.9e-05", "1.5e300", "1e22", "0.5", "-2.25", "123456.75", "2.2250738585072014e-308"),
    *("0.30000000000000004", "1.2345678901234567e-3"),
)
ODD = ("007", "+1", "-0", "1e400", "1e-400", ".5", "5.", " 1", "1 ", "1_000", "0x1F", "inf", "nan", "1,5")
LONG = ("1" * 38, "1" * 39, "12345678901234567890.1234567890123456789", "1.2345678901234567891e-3")
WORDS = ("true", "false", "TRUE", "False")
MORE_WORDS = ("yes", "NO", "t", "F", "on", "y", "n")
DAYS = ("2024-01-01", "2024-02-29", "0001-01-01", "9999-12-31")
TIMES = (
    *("2024-01-01 10:00:00", "2024-01-01T10:00:00.5", "2024-01-01 10:00", "1969-12-31T23:59:59.999999"),
    "2024-06-15 10:00:00.000001",
)
ODD_TIMES = (
    *("2024-02-30", "01/02/2024", "2024-1-1", "12:00:00", "12:00:00.1234567", "2024-01-01 24:00:00"),
    *("2024-01-01 10:00:00.1234567", "2024-01-01 10:00:00.1234568", "20240101", "2024-01-01 10:00:60"),
)
TEXTS = (
    "a",
    "A",
    "",
    " ",
    "null",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
)
POOLS = (NUMBERS, NUMBERS, FLOATS, (*NUMBERS, *FLOATS), WORDS, DAYS, TIMES, TEXTS)
OTHERS = (*ODD, *LONG, *MORE_WORDS, *ODD_TIMES, *TEXTS)
COLUMNS = 30  # of a file: a file costs more time than a column
ALIKE = {"STRING": "VARCHAR", "TIMESTAMP_NTZ": "TIMESTAMP"}


def random_column(rng: Random) -> list[str | None]:
    pool = rng.choice(POOLS)
    cells: list[str | None] = [rng.choice(pool) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.4:
        cells.append(rng.choice(OTHERS))
    if rng.random() < 0.2:
        cells.append(None)
    rng.shuffle(cells)
    return cells


def read_rows(given: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    with given.open(given.default_subject) as rows:
        native = [str(each.native) for each in rows.columns()]
        return native, rows.fetch(exp.select("*").from_(rows.rows()))


def exact(text: str) -> Any:
    """What a text means as a number."""
    return text if text in ("NaN", "Infinity", "-Infinity") else Decimal(text)


def is_same(text: str, value: Any) -> bool:
    """Whether a value is what a cell of CSV says, with nothing lost."""
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, (int, Decimal)):
        return Decimal(text) == value
    if isinstance(value, float):
        return str(exact(text)) == str(value).replace("nan", "NaN") or exact(text) == Decimal(repr(value))
    if isinstance(value, dt.datetime):
        written = text if "." not in text else text.ljust(text.index(".") + 7, "0")
        return dt.datetime.fromisoformat(written) == value
    return isinstance(value, dt.date) and value.isoformat() == text


def check_different(given: Any, expected: dict[str, int]) -> None:
    @probe.data(source=given)
    def counted(t: Any) -> None:
        for name, number in expected.items():
            t.column(name).cardinality_between(number, number)

    failed = [(each.message, each.verdict) for each in counted.run().assertions if each.verdict != "pass"]
    assert not failed, (failed, expected)


def cells_of(columns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The rows of columns, with missing cells at the end of the shorter ones."""
    longest = max(map(len, columns))
    return [[column[i] if i < len(column) else None for column in columns] for i in range(longest)]


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 1_000), marks=pytest.mark.long)])
def test_csv_is_read_exactly(tmp_path: Path, seeds: range) -> None:
    path = tmp_path / "a.csv"
    for seed in seeds:
        rng = Random(seed)
        columns = [random_column(rng) for _ in range(COLUMNS)]
        rows = cells_of(columns)
        lines = [",".join("" if cell is None else f'"{cell}"' for cell in row) for row in rows]
        path.write_text("\n".join((",".join(f"c{i}" for i in range(COLUMNS)), *lines)) + "\n")
        given = source.csv(path, delimiter=",", sample_rows=rng.choice((None, 2, 100)))
        native, found = read_rows(given)
        numbers = {}
        for i, column in enumerate(columns):
            written = [row[i] for row in rows if row[i] is not None]
            values = [row[i] for row in found]
            kept = [value for value in values if value is not None]
            assert len(kept) == len(written), (seed, written, native[i])
            assert all(any(is_same(text, value) for text in written) for value in kept), (seed, written, kept)
            assert all(any(is_same(text, value) for value in kept) for text in written), (seed, written, kept)
            check_type(seed, column, native[i])
            if not any(isinstance(value, float) and math.isnan(value) for value in kept):
                numbers[f"c{i}"] = len({_meaning(text, native[i]) for text in written})
        check_different(given, numbers)


def check_type(seed: int, column: Sequence[str | None], native: str) -> None:
    inferred = infer_type_of_texts(column)
    if inferred == "DOUBLE":  # decimals with different places are decimals here
        assert native == "DOUBLE" or native.startswith("DECIMAL") or native == "VARCHAR", (
            seed,
            column,
            native,
        )
    elif native == "DOUBLE":  # of more than 15 digits
        assert inferred == "STRING", (seed, column)
    elif native != "VARCHAR":
        assert native == ALIKE.get(inferred, inferred), (seed, column, inferred)
    elif inferred != "STRING":
        assert any(cell is None for cell in column) or len(column) > 2, (seed, column, inferred)


def _meaning(text: str, native: str) -> Any:
    if native == "VARCHAR":
        return text
    if native == "BOOLEAN":
        return text.lower()
    if native.startswith(("DATE", "TIMESTAMP")):
        return dt.datetime.fromisoformat(text.ljust(text.index(".") + 7, "0") if "." in text else text)
    return exact(text)


JSON_NUMBERS = tuple(each for each in (*NUMBERS, *FLOATS, "1e400") if not each.startswith("1.2345678901"))


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 1_000), marks=pytest.mark.long)])
def test_json_lines_are_read_exactly(tmp_path: Path, seeds: range) -> None:
    path = tmp_path / "a.jsonl"
    for seed in seeds:
        rng = Random(seed)
        columns: list[list[Any]] = []
        for _ in range(COLUMNS):
            if rng.random() < 0.5:
                columns.append([rng.choice(JSON_NUMBERS) for _ in range(rng.randint(1, 5))])
            else:
                cells = [cell for cell in random_column(rng) if cell is not None]
                columns.append([json.dumps(cell) for cell in cells])
        rows = cells_of(columns)
        lines = [", ".join(f'"c{i}": {cell or "null"}' for i, cell in enumerate(row)) for row in rows]
        path.write_text("".join(f"{{{line}}}\n" for line in lines))
        given = source.jsonl(path)
        native, found = read_rows(given)
        numbers = {}
        for i in range(COLUMNS):
            written = [row[i] for row in rows if row[i] is not None]
            kept = [row[i] for row in found if row[i] is not None]
            assert len(kept) == len(written), (seed, written, native[i])
            assert all(any(_is_json(token, value) for value in kept) for token in written), (
                seed,
                written,
                kept,
            )
            assert all(any(_is_json(token, value) for token in written) for value in kept), (
                seed,
                written,
                kept,
            )
            meanings = {
                _meaning(json.loads(token), native[i]) if token[0] == '"' else _json_number(token)
                for token in written
            }
            if native[i] != "VARCHAR":
                numbers[f"c{i}"] = len(meanings)
            else:
                assert len(set(kept)) >= len(meanings), (seed, written, kept)
        if numbers:
            check_different(given, numbers)


def _json_number(token: str) -> Decimal:
    """A whole number as written, any other as its double."""
    if token.lstrip("-").isdigit() or math.isinf(float(token)):
        return Decimal(token)
    return Decimal(float(token))


def _is_json(token: str, value: Any) -> bool:
    if token[0] == '"':
        return is_same(json.loads(token), value)
    if isinstance(value, float):
        return _json_number(token) == Decimal(value)
    return Decimal(token) == Decimal(value)
