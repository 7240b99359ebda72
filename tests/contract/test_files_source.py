"""Folders and files as a source of Spark SQL: ours and others', in every format."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.backends.objectstore.target import LocalFilesTarget
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import HOSTILE_NAMES, every_type, every_value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "csv", "json_lines", "orc")
UTC = dt.timezone.utc


def query(spark: SparkSession, root: Path, sql: str, format: str = "parquet") -> list[dict[str, Any]]:
    """The rows as Arrow has them: exact, and without the clock of this machine."""
    found: pa.Table = LocalFilesSource(root, format).frame(spark, sql).toArrow()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def text_rows(format: str) -> list[dict[str, Any]]:
    """Every value that the format can hold; ORC's readers disagree on early times."""
    rows = every_value()
    if format == "orc":
        for row in rows[:3]:
            row["a_date"] = dt.date(1582, 10, 15)
            row["a_timestamp"] = dt.datetime(1960, 1, 1, 12, 0, row["id"])
            row["a_timestamp_tz"] = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    return rows


# ------------------------------------------------------------------ tables that we wrote


@pytest.mark.parametrize("format", FORMATS)
def test_spark_reads_every_value_that_was_loaded(spark: SparkSession, tmp_path: Path, format: str) -> None:
    table = every_type()
    rows = text_rows(format)
    load_rows(LocalFilesTarget(tmp_path, format), new_load(table), rows, parts=2)
    columns = ", ".join(f"`{name}`" for name in table.column_names)
    found = query(spark, tmp_path, f"SELECT {columns} FROM contract.every_type ORDER BY id", format)
    for expected, row in zip(rows, found, strict=True):
        for column, value in expected.items():
            assert row[column] == value, column


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_was_added_is_null_in_older_rows(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    table = TableSpec(None, "t", (ColumnSpec("id", DataType("big_int")),))
    wider = replace(table, columns=(*table.columns, ColumnSpec("extra", DataType("date"), nullable=True)))
    target = LocalFilesTarget(tmp_path, format)
    load_rows(target, new_load(table), [{"id": 1}])
    load_rows(target, new_load(wider), [{"id": 2, "extra": dt.date(2026, 1, 1)}])
    found = query(spark, tmp_path, "SELECT id, extra FROM t ORDER BY id", format)
    assert found == [{"id": 1, "extra": None}, {"id": 2, "extra": dt.date(2026, 1, 1)}]


@pytest.mark.parametrize("format", FORMATS)
def test_partitions_come_back_in_their_declared_types(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    columns = (
        ColumnSpec("code", DataType("text"), nullable=True),
        ColumnSpec("id", DataType("integer")),
        ColumnSpec("day", DataType("date"), nullable=True),
    )
    rows = [
        {"code": "007", "id": 1, "day": dt.date(2026, 1, 1)},
        {"code": "a/b=c:d %é", "id": 2, "day": None},
        {"code": None, "id": 3, "day": dt.date(2026, 1, 2)},
    ]
    load = new_load(TableSpec(None, "t", columns), partition_by=("code", "day"))
    load_rows(LocalFilesTarget(tmp_path, format), load, rows)
    assert query(spark, tmp_path, "SELECT code, id, day FROM t ORDER BY id", format) == rows
    assert list(query(spark, tmp_path, "SELECT * FROM t", format)[0]) == [
        "code",
        "id",
        "day",
        "_loaded_at",
        "_batch_id",
    ]


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_partitions_by_columns_with_a_leading_dot_or_underscore_are_read(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    columns = (ColumnSpec("id", DataType("integer")),)
    columns += tuple(ColumnSpec(name, DataType("text")) for name in (".day", "_kind"))
    table = TableSpec(None, "t", columns)
    rows = [{"id": number, ".day": f"d{number}", "_kind": "k"} for number in range(2)]
    for row in rows:
        load = new_load(table, partition_by=(".day", "_kind"))
        load_rows(LocalFilesTarget(tmp_path, format), load, [row])
    assert query(spark, tmp_path, "SELECT id, `.day`, _kind FROM t ORDER BY id", format) == rows
    assert spark.read.format(format).load(str(tmp_path / "t")).columns[-2:] == [".day", "_kind"]


@pytest.mark.parametrize(
    "options",
    [
        FileOptions(),
        FileOptions(
            csv_delimiter=";", csv_header=False, csv_quote="'", csv_escape="\\", csv_null_value="\\N"
        ),
        FileOptions(csv_delimiter="\t", csv_null_value="NULL"),
    ],
)
def test_spark_reads_csv_by_the_dialect_it_was_written_in(
    spark: SparkSession, tmp_path: Path, options: FileOptions
) -> None:
    table = TableSpec(
        None,
        "t",
        (ColumnSpec("id", DataType("integer")), ColumnSpec("text", DataType("text"), nullable=True)),
    )
    texts = [
        None,
        "",
        " ",
        "a,b;c\td",
        'say "x"',
        "it's",
        "back\\slash\\",
        "two\nlines",
        "win\r\ndows",
        "é☃",
        "N",
    ]
    texts += ["'", '"', "\\'", '\\"', "#hash", "trailing ", "NaN", "null", "nul\x00l"]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    load_rows(LocalFilesTarget(tmp_path, "csv"), new_load(table, files=options), rows)
    assert query(spark, tmp_path, "SELECT id, text FROM t ORDER BY id", "csv") == rows


@pytest.mark.parametrize("first", ["old\rmac", "win\r\ndows", "\r", "\r\n"])
def test_line_ends_in_the_first_record_are_not_those_of_records(
    spark: SparkSession, tmp_path: Path, first: str
) -> None:
    table = TableSpec(
        None, "t", (ColumnSpec("text", DataType("text")), ColumnSpec("id", DataType("integer")))
    )
    rows = [{"text": text, "id": number} for number, text in enumerate([first, "two\nlines", "a\r\nb\rc"])]
    options = FileOptions(csv_header=False)
    load_rows(LocalFilesTarget(tmp_path, "csv"), new_load(table, files=options), rows)
    assert query(spark, tmp_path, "SELECT text, id FROM t ORDER BY id", "csv") == rows


def test_an_empty_table_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    load_rows(LocalFilesTarget(tmp_path, "csv"), new_load(every_type()), [])
    frame = LocalFilesSource(tmp_path, "csv").frame(spark, "SELECT * FROM contract.every_type")
    assert frame.count() == 0
    assert dict(frame.dtypes)["a_numeric"] == "decimal(38,10)"


@pytest.mark.parametrize(
    "name", ["order", "Mixed Case", "we[ird]*{x}?", "back\\slash", "emoji \U0001f600", "_x"]
)
def test_hostile_names_are_read(spark: SparkSession, tmp_path: Path, name: str) -> None:
    root = tmp_path / "la[k]e {x}"
    columns = tuple(ColumnSpec(n, DataType("text"), nullable=True) for n in HOSTILE_NAMES)
    row = {n: f"value of {n}" for n in HOSTILE_NAMES}
    load_rows(LocalFilesTarget(root, "parquet"), new_load(TableSpec("my.schema", name, columns)), [row])
    source = LocalFilesSource(root, "parquet")
    quoted = "`" + name + "`"
    (found,) = source.frame(spark, f"SELECT * FROM `my.schema`.{quoted}").toArrow().to_pylist()
    assert {n: found[n] for n in HOSTILE_NAMES} == row
    foreign = root / "their" / name
    foreign.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), foreign / "x.parquet")
    assert query(spark, root, f"SELECT a FROM their.{quoted}") == [{"a": 1}]


def test_a_query_that_began_is_not_disturbed_by_a_refresh(spark: SparkSession, tmp_path: Path) -> None:
    table = TableSpec(None, "t", (ColumnSpec("id", DataType("big_int")),))
    target = LocalFilesTarget(tmp_path, "parquet")
    load_rows(target, new_load(table), [{"id": 1}])
    frame = LocalFilesSource(tmp_path, "parquet").frame(spark, "SELECT id FROM t")
    load_rows(target, new_load(table, "truncate"), [{"id": 2}])
    assert [row.id for row in frame.collect()] == [1]
    assert query(spark, tmp_path, "SELECT id FROM t") == [{"id": 2}]


# ------------------------------------------------------------------ files of others


def test_tables_are_joined_and_nothing_stays_in_the_catalog(spark: SparkSession, tmp_path: Path) -> None:
    for name, table in (
        ("a", pa.table({"id": [1, 2]})),
        ("shop/b", pa.table({"id": [2, 3], "x": ["p", "q"]})),
    ):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(table, tmp_path / name / "f.parquet")
    before = [t.name for t in spark.catalog.listTables()]
    sql = """
        WITH a AS (SELECT id FROM a WHERE id > 1)   -- the name of a table and of a CTE
        SELECT a.id, shop.b.x, '{kept}' AS braces FROM a JOIN shop.b ON a.id = b.id
    """
    assert query(spark, tmp_path, sql) == [{"id": 2, "x": "p", "braces": "{kept}"}]
    assert [t.name for t in spark.catalog.listTables()] == before


def test_a_new_column_of_foreign_files_is_null_in_old_ones(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t" / "old.parquet")
    pq.write_table(pa.table({"id": [2], "new": ["x"]}), tmp_path / "t" / "new.parquet")
    assert query(spark, tmp_path, "SELECT id, new FROM t ORDER BY id") == [
        {"id": 1, "new": None},
        {"id": 2, "new": "x"},
    ]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.csv").write_text("id\n1\n")
    (tmp_path / "c" / "b.csv").write_text("new,id\nx,2\n")
    assert query(spark, tmp_path, "SELECT id, new FROM c ORDER BY id", "csv") == [
        {"id": 1, "new": None},
        {"id": 2, "new": "x"},
    ]


def test_types_of_foreign_csv_never_cost_a_value(spark: SparkSession, tmp_path: Path) -> None:
    header = "zip,phone,count,price,ratio,big,day,at,utc,flag,note,odd,none"
    times = [
        "2026-01-01,2026-01-01T10:00:00,2026-01-01T10:00:00Z",
        "2026-12-31,2026-01-01 10:00:00.5,2026-01-01T12:00:00+02:00",
    ]
    lines = [
        f'01234,+491,7,1.50,0.5,123456789012345678901,{times[0]},true,"a,b",2026-02-30,',
        f'99999,+492,-3,20.00,1e-3,5,{times[1]},FALSE,"""q""",2026-02-28,',
        ",,,,,,,,,,,,",
    ]
    (tmp_path / "t.csv").write_text("\ufeff" + "\n".join([header, *lines]) + "\n")
    source = LocalFilesSource(tmp_path, "csv")
    frame = source.frame(spark, "SELECT * FROM t")
    assert dict(frame.dtypes) == {
        "zip": "string",
        "phone": "string",
        "count": "bigint",
        "price": "decimal(4,2)",
        "ratio": "double",
        "big": "decimal(21,0)",
        "day": "date",
        "at": "timestamp_ntz",
        "utc": "timestamp",
        "flag": "boolean",
        "note": "string",
        "odd": "string",
        "none": "string",
    }
    first, second, third = frame.toArrow().to_pylist()
    assert (first["zip"], first["phone"], first["price"], first["note"]) == (
        "01234",
        "+491",
        Decimal("1.50"),
        "a,b",
    )
    assert first["utc"] == second["utc"] == dt.datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert first["at"] == dt.datetime(2026, 1, 1, 10)
    assert (second["note"], second["flag"], second["ratio"]) == ('"q"', False, 0.001)
    assert set(third.values()) == {None}


def test_a_word_or_an_exponent_makes_no_double_of_numbers_that_it_cannot_hold(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = ["big,money,huge,tiny,ratio", "9007199254740993,12345678901234567.89,1e400,1e-400,0e-999"]
    lines += ["NaN,1e3,1,1e1,123456789012345e2"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    frame = LocalFilesSource(tmp_path, "csv").frame(spark, "SELECT * FROM t")
    assert [kind for _, kind in frame.dtypes] == ["string", "string", "string", "string", "double"]
    assert list(frame.toArrow().to_pylist()[0].values()) == [*lines[1].split(",")[:4], 0.0]


def test_foreign_csv_of_other_shapes_is_read(spark: SparkSession, tmp_path: Path) -> None:
    import gzip

    (tmp_path / "semi.csv").write_text('a;b\n1;"x;\ny"\n')
    (tmp_path / "tabs.tsv").write_text("a\tb\n1\t2,3\n")
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    (tmp_path / "p" / "day=2026-01-01").mkdir(parents=True)
    (tmp_path / "p" / "day=2026-01-01" / "f.csv").write_text("a\n1\n")
    assert query(spark, tmp_path, "SELECT * FROM semi", "csv") == [{"a": 1, "b": "x;\ny"}]
    assert query(spark, tmp_path, "SELECT * FROM tabs", "csv") == [{"a": 1, "b": "2,3"}]
    assert query(spark, tmp_path, "SELECT * FROM packed", "csv") == [{"a": 1, "b": 2}]
    assert query(spark, tmp_path, "SELECT * FROM p", "csv") == [{"a": 1, "day": dt.date(2026, 1, 1)}]


def test_foreign_json_lines_and_orc_are_read(spark: SparkSession, tmp_path: Path) -> None:
    from pyarrow import orc

    (tmp_path / "j.jsonl").write_text('{"id": 1, "at": "2026-01-01"}\n{"id": 2, "new": {"x": 1}}\n')
    orc.write_table(pa.table({"id": [1]}), tmp_path / "o.orc")
    rows = query(spark, tmp_path, "SELECT id, at, new.x FROM j ORDER BY id", "json_lines")
    assert rows == [{"id": 1, "at": "2026-01-01", "x": None}, {"id": 2, "at": None, "x": 1}]
    assert query(spark, tmp_path, "SELECT id FROM o", "orc") == [{"id": 1}]


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,b\n1,2\n3,4,5\n"])
def test_a_ragged_csv_file_is_an_error_not_a_null(spark: SparkSession, tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(Exception, match="MALFORMED"):
        query(spark, tmp_path, "SELECT * FROM t", "csv")


@pytest.mark.parametrize(("text", "words"), [("", "have no header"), ("a,A\n1,2\n", "more than once")])
def test_a_csv_file_without_a_usable_header_says_so(
    spark: SparkSession, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(SourceFailed, match=words):
        query(spark, tmp_path, "SELECT * FROM t", "csv")


# ------------------------------------------------------------------ errors


def test_unknown_tables_and_wrong_sql_are_distinguished(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException, ParseException

    (tmp_path / "events").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "events" / "f.parquet")
    with pytest.raises(SourceFailed, match="Did you mean 'events'"):
        query(spark, tmp_path, "SELECT * FROM evnts")
    with pytest.raises(AnalysisException, match="nope"):
        query(spark, tmp_path, "SELECT nope FROM events")
    with pytest.raises(ParseException) as caught:
        query(spark, tmp_path, "SELECT id FROM events WHERE id == == 1")
    assert "_pyspark" not in str(caught.value)
    with pytest.raises(ParseException):
        query(spark, tmp_path, "SELEC id FROM events")
    with pytest.raises(SourceFailed, match="the SQL cannot be read"):  # Spark takes WHERE for a name here
        query(spark, tmp_path, "SELECT id FROM events WHERE")


def test_nothing_is_written_by_reading(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    query(spark, tmp_path, "SELECT * FROM t", "csv")
    assert os.listdir(tmp_path) == ["t.csv"]
