"""Values as text: exact, and different for every reader."""

from __future__ import annotations

import csv
import io
import json
import string
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ematix_flow.backends.objectstore.formats.text_cells import csv_header, csv_lines, json_lines
from ematix_flow.backends.objectstore.layout.file_layout import CsvDialect
from ematix_flow.backends.objectstore.layout.partition_folders import (
    parse_partition_value,
    partition_folder_name,
    partition_values,
    split_by_partition,
)
from ematix_flow.backends.objectstore.layout.table_paths import is_hidden
from ematix_flow.errors import RowRejected
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.samples import every_type, every_value

DIALECTS = [
    CsvDialect(),
    CsvDialect(delimiter=";", header=False, quote="'", escape="\\", null="\\N"),
    CsvDialect(delimiter="|", null="NULL"),
    CsvDialect(delimiter="\t", quote='"', escape="\\"),
    CsvDialect(delimiter="-", null="0"),
]
TEXTS = st.text(
    st.one_of(st.sampled_from("\"'\\,;|\t\n\r N0-é☃\U0001f600"), st.sampled_from(string.ascii_letters)),
    max_size=8,
)
_TEXT = ColumnSpec("a", DataType("text"), nullable=True)


def _batch(columns: list[ColumnSpec], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema([(c.name, c.type.arrow()) for c in columns]))


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.none() | TEXTS, st.none() | TEXTS), min_size=1, max_size=5),
    dialect=st.sampled_from(DIALECTS),
)
def test_any_text_and_null_comes_back_from_csv(rows: list[tuple[Any, Any]], dialect: CsvDialect) -> None:
    columns = [
        _TEXT,
        ColumnSpec("b", DataType("text"), nullable=True),
        ColumnSpec("end", DataType("big_int")),
    ]
    batch = _batch(columns, [{"a": a, "b": b, "end": 1} for a, b in rows])
    data = csv_header(columns, dialect) + b"".join(
        bytes(piece) for piece in csv_lines(batch, columns, dialect)
    )
    doubled = dialect.escape == dialect.quote
    found = pyarrow.csv.read_csv(
        io.BytesIO(data),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote,
            double_quote=doubled,
            escape_char=False if doubled else dialect.escape,
            newlines_in_values=True,
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={"a": pa.string(), "b": pa.string()},
            null_values=[dialect.null, dialect.null_unescaped],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert list(zip(found["a"].to_pylist(), found["b"].to_pylist(), strict=True)) == rows


@settings(max_examples=30)
@given(rows=st.lists(TEXTS, min_size=1, max_size=5))
def test_the_csv_module_reads_the_default_dialect(rows: list[str]) -> None:
    columns = [_TEXT, ColumnSpec("end", DataType("big_int"))]
    batch = _batch(columns, [{"a": text, "end": 1} for text in rows])
    data = b"".join(bytes(piece) for piece in csv_lines(batch, columns, CsvDialect()))
    assert [row[0] for row in csv.reader(io.StringIO(data.decode(), newline=""))] == rows


@settings(max_examples=30)
@given(rows=st.lists(st.none() | st.text(max_size=10), min_size=1, max_size=5))
def test_any_text_comes_back_from_json(rows: list[str | None]) -> None:
    batch = _batch([_TEXT], [{"a": text} for text in rows])
    data = b"".join(bytes(piece) for piece in json_lines(batch, [_TEXT]))
    assert [json.loads(line)["a"] for line in data.decode().split("\n")[:-1]] == rows


def test_numbers_that_json_lacks_are_words_and_decimals_are_exact() -> None:
    columns = [
        ColumnSpec("f", DataType("double")),
        ColumnSpec("d", DataType("numeric", precision=38, scale=12)),
    ]
    rows = [
        {"f": float(f), "d": d} for f, d in (("nan", "1e-12"), ("inf", "0"), ("-inf", "-12.5"), ("1e22", "3"))
    ]
    from decimal import Decimal

    batch = _batch(columns, [{**row, "d": Decimal(str(row["d"]))} for row in rows])
    lines = b"".join(bytes(piece) for piece in json_lines(batch, columns)).decode().splitlines()
    assert lines == [
        '{"f":"NaN","d":0.000000000001}',
        '{"f":"Infinity","d":0.000000000000}',
        '{"f":"-Infinity","d":-12.500000000000}',
        '{"f":1e+22,"d":3.000000000000}',
    ]


def test_a_large_batch_is_rendered_in_bounded_pieces() -> None:
    columns = [_TEXT, ColumnSpec("end", DataType("big_int"))]
    rows = pa.RecordBatch.from_arrays([pa.repeat("x" * 10_000, 7_000), pa.repeat(1, 7_000)], ["a", "end"])
    sizes = [len(piece) for piece in csv_lines(rows.slice(3), columns, CsvDialect())]
    assert len(sizes) > 2
    assert sum(sizes) == 6_997 * 10_003


# ------------------------------------------------------------------ partitions


def test_rows_are_split_by_every_combination_of_their_partition_columns() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {"a": a, "b": b, "n": n}
            for n, (a, b) in enumerate([("x", 1), (None, 1), ("x", 2), ("x", 1), (None, 1)])
        ]
    )
    found = {folder: rows.column("n").to_pylist() for folder, rows in split_by_partition(batch, ["a", "b"])}
    assert found == {
        "a=x/b=1/": [0, 3],
        "a=x/b=2/": [2],
        "a=__HIVE_DEFAULT_PARTITION__/b=1/": [1, 4],
    }


@pytest.mark.parametrize("number", range(3))
def test_partition_values_come_back_from_folder_names(number: int) -> None:
    for column in every_type().columns:
        value = every_value()[number][column.name]
        if column.type.kind in ("float", "double", "json", "jsonb", "bytes") or value == "":
            continue
        name = partition_folder_name(column.name, value)
        assert "/" not in name
        texts = partition_values(f"{name}/file", [column.name])
        assert parse_partition_value(texts[column.name], column) == value


@settings(max_examples=50)
@given(text=st.text(min_size=1, max_size=20).filter(lambda t: t.isprintable()))
def test_any_text_is_one_folder_and_comes_back(text: str) -> None:
    name = partition_folder_name("a", text)
    assert "/" not in name
    assert unquote(name.partition("=")[2]) == text


@pytest.mark.parametrize(("column", "folder"), [(".x", "%2Ex=.1"), ("_x", "_x=.1"), ("a.b", "a.b=.1")])
def test_no_name_of_a_column_hides_its_folders(column: str, folder: str) -> None:
    assert partition_folder_name(column, ".1") == folder
    assert not is_hidden(folder)
    assert partition_values(f"{folder}/file", [column]) == {column: ".1"}


def test_an_empty_text_cannot_be_a_partition() -> None:
    with pytest.raises(RowRejected, match="cannot be distinguished from a null"):
        partition_folder_name("a", "")
