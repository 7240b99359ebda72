"""Generated CSV files that tasks read by DuckDB: the types and rows are those of Spark's reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from ematix_flow.backends.base import BatchSource, SourceQuery
from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.pipelines import FileOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

KINDS = (
    ("1", "0", "-1", "100", "7"),
    ("1.5", "2.25", "-0.5", "10"),
    ("1.50", "2.25"),
    ("true", "false", "TRUE"),
    ("2024-01-01", "2023-12-31"),
    ("2024-01-01 10:00:00", "2024-01-01T10:00", "1969-12-31 23:59:59.999999"),
    ("2024-01-01T10:00:00Z", "2024-01-01 10:00:00+0200", "2024-01-01 10:00:00.5-18:00"),
    ("1e5", "2.5", "1e-7", "NaN"),
    ("a", "b", '"c,d"', '"e""f"', '"g\nh"'),
    ("1234567890123456789", "5"),
)
NUMBERS = (
    *(
        "007",
        "+1",
        "-0",
        "-0.0",
        "-00.1",
        "0.00",
        "1.50",
        "1e5",
        "1E-7",
        "1e400",
        "1e-400",
        "1e-310",
        ".5",
        "5.",
    ),
    *("2.2250738585072014e-308", "NaN", "nan", "Infinity", "-Infinity", "inf", "1_000", "0x1F", "--1", "1,5"),
    *("123456789012345678", "1234567890123456789", "9223372036854775808", "1" * 38, "1" * 39),
    *("0.1234567890123456", "1.2345678901234567", "123456.78901234567", "100000000000000000000", "1.0e+05"),
)
TIMES = (
    *("2024-02-30", "0001-01-01", "0000-01-01", "9999-12-31", "1582-10-10", "2024-01-01 24:00:00"),
    *("2024-01-01 10:60:00", "2024-01-01 10:00:00.1234567", "2024-01-01 10:00:00+15:00", "20240101"),
    *("2024-01-01 10:00:00+18:30", "2024-01-01 10:00:00-18:00", "2024-01-01 10:00:00+00:60"),
    *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59-10:00"),
)
TEXTS = (
    *(
        "",
        "a",
        "A b",
        " x",
        "x ",
        "1 ",
        " 1",
        "é",
        "日本",
        "\ufffd",
        "𝄞",
        "a\u2028b",
        "a\x0bb",
        "\x0c",
        "\x1a",
        "\x7f",
    ),
    *("null", "NULL", "\\N", "#c", "'", "t", "yes", "FALSE", "-"),
)
QUOTES = (
    *('""', '"a"', '"a,b"', '"a\nb"', '"a\r\nb"', '"a""b"', '""""', 'x"y', '"x" ', ' "x"', '"x"y', '"x'),
    *('\t"q"', '"q"\t', '\\"', '"a\\"', '"a\\","b"', "a\x00b", "a\rb"),
)
HEADERS = (("a", "b", "c", "d"), ("Id", "näme", "x y", '"q""q"'), ("a", "b.c", "`d`", "_e"))


def random_cell(rng: Random, kind: Sequence[str]) -> str:
    chance = rng.random()
    if chance < 0.1:
        return ""
    if chance < 0.16:
        return rng.choice(rng.choice((NUMBERS, TIMES, TEXTS)))
    if chance < 0.18:
        return rng.choice(QUOTES)
    cell = rng.choice(kind)
    return f'"{cell}"' if chance < 0.3 and '"' not in cell else cell


def random_file(rng: Random) -> bytes:
    width = rng.choice((1, 2, 2, 3, 3, 4, 4))
    kinds = [rng.choice(KINDS) for _ in range(width)]
    delimiter = rng.choice(",,,;\t|")
    line_end = rng.choice(("\n", "\n", "\n", "\n", "\r\n", "\r\n", "\r"))
    lines = [delimiter.join(rng.choice(HEADERS)[:width])]
    for _ in range(rng.randint(0, 8)):
        row = [random_cell(rng, kind) for kind in kinds]
        if rng.random() < 0.02:
            row = rng.choice((row[:-1], [*row, "z"]))
        lines.append(delimiter.join(row))
        if rng.random() < 0.02:
            lines.append(rng.choice(("", " ", "\t")))
    text = line_end.join(lines) + (line_end if rng.random() < 0.8 else "")
    data = text.replace("\n", "\r\n", 1).encode() if rng.random() < 0.03 else text.encode()
    if rng.random() < 0.05:
        data = b"\xef\xbb\xbf" + data
    if rng.random() < 0.02:
        data = data.replace(b"a", b"\xff", 1)
    return b"\n" + data if rng.random() < 0.02 else data


def rows_of(table: pa.Table) -> list[str]:
    """The rows in one order. Values are texts: Python has no year 0."""
    columns = [column.cast(pa.string()).to_pylist() for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True)))


def copied(source: BatchSource) -> pa.Table | None:
    with source.split(SourceQuery(""), {}, 2) as splits:
        batches = [batch for split in splits for batch in split.read()]
    return pa.Table.from_batches(batches) if batches else None


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 4_000), marks=pytest.mark.long)])
def test_tasks_read_the_rows_that_spark_reads(spark: SparkSession, tmp_path: Path, seeds: range) -> None:
    read = 0
    for seed in seeds:
        rng = Random(seed)
        folder = tmp_path / f"t{seed}"
        folder.mkdir()
        contents = [random_file(rng)]
        if rng.random() < 0.2:
            contents.append(contents[0])
        for number, content in enumerate(contents):
            (folder / f"{number}.csv").write_bytes(content)
        options = FileOptions(csv_read_options=(("has_header", rng.random() < 0.85),))
        source = LocalFilesSource(tmp_path, "csv", options)
        sql = f"SELECT * FROM t{seed}"
        try:
            batches = source.as_batches(sql)
        except SourceFailed:
            continue
        if batches is None:
            continue
        read += 1
        frame = source.frame(spark, sql)
        described = [(column.name, column.native) for column in batches.describe(sql)]
        assert described == frame.dtypes, (seed, contents[0])
        expected = frame.toArrow()
        found = copied(batches)
        if found is None:
            assert expected.num_rows == 0, (seed, contents[0])
        else:
            assert found.column_names == expected.column_names, (seed, contents[0])
            assert rows_of(found) == rows_of(expected), (seed, contents[0])
    assert read > len(seeds) // 3
