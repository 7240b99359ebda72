"""JSON lines of all kinds against Python's own reader: equal rows, or an error that names file and line."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.objectstore.spark import LocalFilesSource, json_frames
from ematix_flow.backends.objectstore.stream import FilesStream
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.errors import FlowError, SourceFailed
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = [
    *("0", "-0", "7", "-12", "0.5", "1e3", "1.25", "-0.1", "1E-7", "9007199254740992", "9007199254740993"),
    *("12345678901234567", "-12345678901234567", "9223372036854775807", "9223372036854775808"),
    *("123456789012345678901234567890", "100000000000000000000", "1" + "0" * 40, "9" * 50, "1e300"),
]
TEXTS = [
    *(
        '"x"',
        '""',
        '"ü"',
        '"\\u00fc"',
        '"\\ud83d\\ude00"',
        '"😀"',
        '"\\\\ud800"',
        '"\\\\\\\\udc00"',
        '"\\u0000"',
    ),
    *('"12345678901234567"', '"a\\nb\\t\\"\\\\"', '"\\ufffd"', '"null"', '"{}"'),
]
OTHERS = ["null", "true", "false"]
KEYS = ["a", "b c", "ü", "select", "x-y", "1", "é\u0301", "k" * 300]
HALVES = [
    *("\\ud800", "\\udc00", "\\ud800x", "\\ud800\\ud83d\\ude00", "\\\\\\ud800", "\\udc00\\ud800"),
    "\\\\ud83d\\ude00",
]


def value(chosen: random.Random, kind: str, depth: int = 0) -> str:
    """A value in JSON; all of one column are of one kind, so that most have a type."""
    if chosen.random() < 0.1:
        return "null"
    if kind == "object":
        names = chosen.sample(KEYS[:4], chosen.randint(0, 3))
        inside = (f"{json.dumps(n)}: {value(chosen, KINDS[KEYS.index(n)], depth + 1)}" for n in names)
        return "{" + ", ".join(inside) + "}"
    if kind == "list":
        return "[" + ", ".join(value(chosen, "numbers") for _ in range(chosen.randint(0, 3))) + "]"
    pool = {"small": NUMBERS[:9], "numbers": NUMBERS, "texts": TEXTS, "mixed": [*NUMBERS, *TEXTS, *OTHERS]}
    return chosen.choice(pool.get(kind, OTHERS))


KINDS = ["numbers", "small", "texts", "mixed", "object", "list", "others", "numbers"]


def lines_of(chosen: random.Random) -> list[str]:
    kinds = dict(zip(KEYS, chosen.sample(KINDS, len(KINDS)), strict=True))
    lines = []
    for number in range(chosen.randint(1, 30)):
        names = [name for name in KEYS if chosen.random() < 0.7]
        cells = [f'"id": {number}', *(f"{json.dumps(n)}: {value(chosen, kinds[n])}" for n in names)]
        lines.append("{" + ", ".join(cells) + "}")
    return lines


def same(ours: Any, theirs: Any) -> bool:
    """Whether a value is that of Python's reader: a number by its value, a nested one also as its text.

    An object without a key in any line has no columns: Spark reads it as null.
    """
    if theirs == {} and ours is None:
        return True
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if isinstance(theirs, bool):
        return ours is theirs or ours == json.dumps(theirs)
    if isinstance(theirs, (int, Decimal)):
        if isinstance(ours, float):
            return ours == float(theirs) and (not isinstance(theirs, int) or int(ours) == theirs)
        return not isinstance(ours, bool) and Decimal(ours) == Decimal(theirs)
    if isinstance(theirs, str) or not isinstance(ours, str):
        if isinstance(theirs, dict) and isinstance(ours, dict):
            return all(same(ours.get(name), theirs.get(name)) for name in {*ours, *theirs})
        if isinstance(theirs, list) and isinstance(ours, list):
            return len(ours) == len(theirs) and all(map(same, ours, theirs))
        return bool(ours == theirs)
    return bool(json.loads(ours, parse_float=Decimal) == theirs)


def source(root: Path, **options: Any) -> LocalFilesSource:
    return LocalFilesSource(root, "json_lines", FileOptions(json_read_options=tuple(options.items())))


def rows(spark: SparkSession, root: Path, **options: Any) -> list[dict[str, Any]]:
    try:
        frame = source(root, **options).frame(spark, "SELECT * FROM t")
        found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    except FlowError:
        raise
    except Exception as error:
        raise translate_spark_error(error, what="the query", source=True) from error
    return found


def streamed(spark: SparkSession, root: Path, columns: tuple[ColumnSpec, ...] | None) -> list[dict[str, Any]]:
    backend = open_backend(ObjectStoreLocalConnection(name="lake", path=str(root), format="json_lines"))
    stream = backend.stream_source()
    assert isinstance(stream, FilesStream)
    paths = [str(path.relative_to(root)) for path in sorted((root / "t").iterdir())]
    try:
        found: list[dict[str, Any]] = (
            stream.read_files(spark, paths, ReadRequest("t/"), columns).toArrow().to_pylist()
        )
    except FlowError:
        raise
    except Exception as error:
        raise translate_spark_error(error, what="the query", source=True) from error
    return found


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 60))]
)
def test_rows_are_those_of_pythons_reader(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = random.Random(seed)
    if seed % 2:  # as for tables that are too large for this process
        monkeypatch.setattr(json_frames, "_LOOKED_AT_BY_DRIVER", 0)
    lines = lines_of(chosen)
    (tmp_path / "t").mkdir()
    middle = len(lines) // 2
    (tmp_path / "t" / "1.json").write_text("\n".join(lines[:middle]))
    (tmp_path / "t" / "2.json").write_text("\n".join(lines[middle:]) + "\n")
    expected = [json.loads(line, parse_float=Decimal) for line in lines]
    for found in (rows(spark, tmp_path), streamed(spark, tmp_path, None)):
        for ours, theirs in zip(sorted(found, key=lambda row: row["id"]), expected, strict=True):
            for name in {*ours, *theirs}:
                assert same(ours.get(name), theirs.get(name)), (name, ours.get(name), theirs.get(name))


def test_whole_numbers_among_fractions_keep_their_digits(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.json").write_text(
        '{"n": 12345678901234567, "o": {"x": [12345678901234567]}, "p": 9007199254740992, "q": 1e3}\n'
        '{"n": 0.5, "o": {"x": [0.5]}, "p": 0.5, "q": 12345678901234567}\n'
    )
    assert sorted(rows(spark, tmp_path), key=str) == [
        {"n": Decimal("0.5"), "o": {"x": ["0.5"]}, "p": 0.5, "q": "12345678901234567"},
        {
            "n": Decimal("12345678901234567.0"),
            "o": {"x": ["12345678901234567"]},
            "p": 9007199254740992.0,
            "q": "1e3",
        },
    ]
    wanted = (ColumnSpec("n", DataType("double"), nullable=True),)
    with pytest.raises(
        SourceFailed, match=r"column 'n' of .*/t/1\.json: '12345678901234567' is not of type Double"
    ):
        streamed(spark, tmp_path, wanted)


def test_whole_numbers_among_fractions_keep_their_digits_under_a_folder_without_a_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    for folder, line in {"p=": '{"n": 12345678901234567}', "p=Z%C3%BCrich": '{"n": 0.5}'}.items():
        (tmp_path / "t" / folder).mkdir(parents=True)
        (tmp_path / "t" / folder / "1.json").write_text(line + "\n")
    assert sorted(rows(spark, tmp_path), key=str) == [
        {"n": Decimal("0.5"), "p": "Zürich"},
        {"n": Decimal("12345678901234567.0"), "p": ""},
    ]


def test_a_key_that_comes_twice_is_found_also_where_only_the_first_lines_are_looked_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.json").write_text('{"a": 1}\n{"a": 1, "a": 2}\n')
    with pytest.raises(SourceFailed, match=r"line 2 of .*the key 'a' twice"):
        rows(spark, tmp_path, schema_infer_max_records=5)


BAD = {
    "half a pair": ([f'{{"a": "x{half}"}}' for half in HALVES], "holds half of a surrogate pair"),
    "half a pair in a key": (['{"\\udc00": 1}'], "holds half of a surrogate pair"),
    "one key twice": (['{"a": 1, "a": 2}', '{"o": [{"b": 1, "b": 1}]}'], "the key '[ab]' twice"),
    "keys of two cases": (['{"a": 1, "A": 2}', '{"o": {"b": 1, "B": 1}}'], "the keys '[ab]' and '[AB]'"),
    "keys of two cases in two lines": (
        ['{"ID": 1}', '{"o": [{"y": 1}, {"Y": 2}]}'],
        "Spark SQL does not distinguish",
    ),
    "an empty key": (['{"": 1}', '{"o": {"": 1}}'], "a key that is empty"),
    "a long key": (['{"' + "k" * 60_000 + '": 1}'], r"a key of 60,000 characters"),
    "a second object": (
        ['{"id": 3}{"id": 4}', '{"id": 3} {"id": 4}', '{"id": 3},{"id": 4}', '[{"id": 3}] {"id": 4}'],
        "more than one value",
    ),
    "something after the object": (['{"id": 3} garbage', '{"id": 3} 5', '{"id": 3}}'], "more than one value"),
    "a number without end": (['{"id": 3, "n": ' + "9" * 5_000 + "} x"], "a number of thousands of digits"),
    "no object": (["null", "5", '"{}"', '[[{"id": 3}]]', "[null]"], "is not a JSON object"),
    "no JSON": (["\x0c", "{", '{"id": 3', "nul"], "is not JSON: "),
    "deep": (['{"o": ' + "[" * 5_000 + "]" * 5_000 + "}"], "nested too deeply"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_line_that_would_be_misread_is_refused_with_its_file_and_number(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, words = BAD[kind]
    for number, line in enumerate(lines):
        (tmp_path / str(number) / "t").mkdir(parents=True)
        (tmp_path / str(number) / "t" / "1.json").write_text('{"id": 1}\n{"id": 2}\n' + line + "\n")
        monkeypatch.setattr(json_frames, "_LOOKED_AT_BY_DRIVER", 1 << 24 if number % 2 else 0)
        for read in (rows, lambda spark, root: streamed(spark, root, None)):
            with pytest.raises(SourceFailed, match=words) as told:
                read(spark, tmp_path / str(number))
            assert f"line 3 of {tmp_path}/{number}/t/1.json" in told.value.what
