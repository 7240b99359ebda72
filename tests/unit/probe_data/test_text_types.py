"""Guessed types of CSV and JSON lines: no value loses anything that an assertion can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ematix_probe import probe, source

BIG = (12345678901234567890123, 12345678901234567890124)
EXACT = 2**53  # from here on a double does not hold every whole number


def csv(folder: Path, cells: Sequence[str], header: str = "x", **options: Any) -> Any:
    (folder / "a.csv").write_text("".join(f"{cell}\n" for cell in (header, *cells)))
    return source.csv(folder / "a.csv", delimiter=",", **options)


def jsonl(folder: Path, values: Sequence[str], **options: Any) -> Any:
    (folder / "a.jsonl").write_text("".join(f'{{"x": {value}}}\n' for value in values))
    return source.jsonl(folder / "a.jsonl", **options)


def results(given: Any, declare: Callable[[Any], None]) -> list[tuple[str, str]]:
    @probe.data(source=given)
    def rows(t: Any) -> None:
        declare(t)

    return [(each.verdict, each.message) for each in rows.run().assertions]


def verdicts(given: Any, *assertions: Callable[[Any], Any]) -> list[str]:
    """The verdict of each assertion in a separate probe, as those of one probe need different labels."""
    return [results(given, lambda t, each=each: each(t.column("x")))[0][0] for each in assertions]  # type: ignore[misc]


def type_of(given: Any) -> str:
    with given.open(given.default_subject) as rows:
        return str(rows.columns()[0].native)


def test_whole_numbers_of_json_beyond_64_bits_are_exact(tmp_path: Path) -> None:
    given = jsonl(tmp_path, [str(each) for each in BIG])
    assert verdicts(
        given,
        lambda x: x.unique(),
        lambda x: x.is_in([BIG[1]]),
        lambda x: x.between(None, BIG[0]),
        lambda x: x.between(*BIG),
    ) == ["pass", "fail", "fail", "pass"]


@pytest.mark.parametrize("write", [csv, jsonl])
def test_long_whole_numbers_with_a_fraction_among_them_are_exact(tmp_path: Path, write: Any) -> None:
    given = write(tmp_path, [str(EXACT), str(EXACT + 1), "0.5"])
    assert verdicts(
        given,
        lambda x: x.unique(),
        lambda x: x.is_in([EXACT, 0.5]),
        lambda x: x.is_in([EXACT, EXACT + 1, 0.5]),
    ) == ["pass", "fail", "pass"]


@pytest.mark.parametrize("cells", [("0.1", "0.2"), ("0.1", "0.20"), ("0.05", "0.25")])
def test_the_sum_of_decimals_of_csv_is_exact(tmp_path: Path, cells: tuple[str, str]) -> None:
    assert verdicts(
        csv(tmp_path, cells), lambda x: x.sum_between(Decimal("0.3"), Decimal("0.3")), lambda x: x.unique()
    ) == ["pass", "pass"]


def test_words_of_csv_other_than_true_and_false_are_texts(tmp_path: Path) -> None:
    assert verdicts(csv(tmp_path, ["NO", "NO"]), lambda x: x.is_in(["NO", "SE"])) == ["pass"]
    assert verdicts(
        csv(tmp_path, ["yes", "YES", "no", "t"]), lambda x: x.cardinality_between(4, 4), lambda x: x.unique()
    ) == ["pass", "pass"]
    assert verdicts(csv(tmp_path, ["true", "yes", "TRUE", "t"]), lambda x: x.unique()) == ["pass"]


@pytest.mark.parametrize(
    "cells",
    [
        ("12:00:00.1234567", "12:00:00.1234568"),
        ("2024-01-01 12:00:00.1234567", "2024-01-01 12:00:00.1234568"),
        ("1e5", "100000"),
        ("1e400", "1e401"),
        (" 1", "1 "),
        ("007", "7"),
        ("+1", "1"),
        ("0x1F", "31"),
        ("1_000", "1000"),
        ("1.2345678901234567891e-3", "1.2345678901234567892e-3"),
    ],
)
def test_different_texts_of_csv_stay_different(tmp_path: Path, cells: tuple[str, str]) -> None:
    given = csv(tmp_path, cells)
    assert verdicts(given, lambda x: x.unique(), lambda x: x.is_in(list(cells))) == ["pass", "pass"]


@pytest.mark.parametrize(
    "values",
    [
        ('"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"', '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
        ('"12:00:00.1234567"', '"12:00:00.1234568"'),
        ('"2024-01-01T12:00:00.1234567"', '"2024-01-01T12:00:00.1234568"'),
        ('"01-02-2024"', '"2024-01-02"'),
        ('{"id": 12345678901234567890123}', '{"id": 12345678901234567890124, "y": 0.5}'),
        ('{"DATE": "01-02-2024"}', '{"DATE": "2024-01-02"}'),
        ("[9007199254740992, 0.5]", "[9007199254740993, 0.5]"),
        ("1e400", "1e401"),
    ],
)
def test_different_values_of_json_stay_different(tmp_path: Path, values: tuple[str, str]) -> None:
    assert verdicts(jsonl(tmp_path, values), lambda x: x.unique()) == ["pass"]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-20"], "BIGINT"),
        (["123456789012345678"], "BIGINT"),
        (["1234567890123456789"], "DECIMAL(19,0)"),
        (["1.5", "100"], "DECIMAL(4,1)"),
        (["1" * 39], "VARCHAR"),
        (["1e-07", "0.5", "-3.25"], "DOUBLE"),
        (["0.1234567890123456", "9.9e-05"], "DOUBLE"),
        (["1e+22", "1.0E7", "0.5"], "DOUBLE"),
        (["1" * 30 + ".5", "0.0000000000001"], "VARCHAR"),
        (["100000000000000000000.0", "0.00000000000000000025"], "DOUBLE"),
        (["1e5", "2e5"], "VARCHAR"),
        (["-0.0", "1.5"], "DOUBLE"),
        (["NaN", "1.5", "-Infinity"], "DOUBLE"),
        (["true", "FALSE"], "BOOLEAN"),
        (["2024-02-29"], "DATE"),
        (["2023-02-29"], "VARCHAR"),
        (["01/02/2024"], "VARCHAR"),
        (["2024-1-02"], "VARCHAR"),
        (["12024-01-02"], "VARCHAR"),
        (["2024-01-01 24:00:00"], "VARCHAR"),
        (["2024-01-01 10:00", "2024-01-01T10:00:00.123456"], "TIMESTAMP"),
        (["2024-01-01T10:00:00Z", "2024-01-01 10:00:00+0200"], "TIMESTAMP WITH TIME ZONE"),
        (["2024-01-01T10:00:00Z", "2024-01-01 10:00:00"], "VARCHAR"),
        (["12:00:00"], "VARCHAR"),
        (["", ""], "VARCHAR"),
    ],
)
def test_the_type_of_a_column_of_csv(tmp_path: Path, cells: list[str], kind: str) -> None:
    assert type_of(csv(tmp_path, [*cells, ""])) == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "null"], "BIGINT"),
        (["9223372036854775807"], "BIGINT"),
        (["18446744073709551615", "1"], "DECIMAL(20,0)"),
        (["1" * 39], "VARCHAR"),
        (["0.1", "100", "null"], "DOUBLE"),
        (["9007199254740993", "0.25"], "DECIMAL(18,2)"),
        (["true", "false"], "BOOLEAN"),
        (['"true"'], "VARCHAR"),
        (['"2024-02-29"'], "DATE"),
        (['"12:00:00"'], "VARCHAR"),
    ],
)
def test_the_type_of_a_column_of_json(tmp_path: Path, values: list[str], kind: str) -> None:
    assert type_of(jsonl(tmp_path, values)) == kind


@pytest.mark.parametrize(
    ("write", "later", "kind"),
    [
        (csv, "0.25", "DECIMAL(3,2)"),
        (csv, "x", "VARCHAR"),
        (csv, "NO", "VARCHAR"),
        (jsonl, "0.25", "DOUBLE"),
        (jsonl, "true", "VARCHAR"),
    ],
)
def test_rows_after_the_sample_lose_nothing(tmp_path: Path, write: Any, later: str, kind: str) -> None:
    given = write(tmp_path, ["1", "2", "3", later], sample_rows=2)
    assert type_of(given) == kind
    assert verdicts(given, lambda x: x.unique()) == ["pass"]


def test_a_given_type_is_taken(tmp_path: Path) -> None:
    assert type_of(csv(tmp_path, ["1", "2"], columns={"x": "text"})) == "VARCHAR"
    assert type_of(csv(tmp_path, ["1e5", "100000"], columns={"x": "double"})) == "DOUBLE"
    assert type_of(jsonl(tmp_path, ['"12:00:00"'], columns={"x": "time"})) == "TIME"


@pytest.mark.parametrize("header", ["id,id,ID", '"id\n2",x,"ID\n2"', "id, ID,x"])
def test_names_of_csv_that_differ_only_in_case_are_refused(tmp_path: Path, header: str) -> None:
    ((verdict, message),) = results(csv(tmp_path, ["1,2,3"], header), lambda t: t.row_count(at_least=1))
    assert verdict == "error"
    assert f"{tmp_path / 'a.csv'} has columns whose names are equal or differ only in case: 'id" in message
    assert "next: rename all but one of them in the first line of the file" in message


@pytest.mark.parametrize("lines", ['{"id": 1, "ID": 2}\n', '{"id": 1}\n{"ID": 2}\n'])
def test_keys_of_json_that_differ_only_in_case_are_refused(tmp_path: Path, lines: str) -> None:
    (tmp_path / "a.jsonl").write_text(lines)

    def declare(t: Any) -> None:
        t.column("id").not_null()

    ((verdict, message),) = results(source.jsonl(tmp_path / "a.jsonl"), declare)
    assert verdict == "error"
    assert "has columns whose names are equal or differ only in case: 'ID' and 'id'" in message
    assert 'give the columns to read, as in  columns={"id": "bigint"}' in message


def test_a_key_that_ends_in_a_number_is_no_repeated_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "id_1": 2}\n')
    given = source.jsonl(tmp_path / "a.jsonl")
    assert results(given, lambda t: t.schema_match({"id": "bigint", "id_1": "bigint"}))[0][0] == "pass"
