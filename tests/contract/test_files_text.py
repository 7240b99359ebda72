"""CSV and JSON lines that others wrote: every read option, packed files, and what is wrong with a file."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ematix_flow.backends.objectstore.layout.source_files import LocalFile
from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.backends.objectstore.target import LocalFilesTarget
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.errors import FlowError, SchemaMismatch, SourceFailed
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(
    spark: SparkSession, root: Path, format: str = "csv", sql: str = "SELECT * FROM t", **options: Any
) -> DataFrame:
    key = "csv_read_options" if format == "csv" else "json_read_options"
    return LocalFilesSource(root, format, FileOptions(**{key: tuple(options.items())})).frame(spark, sql)


def rows(spark: SparkSession, root: Path, *args: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame(spark, root, *args, **options).toArrow().to_pylist()
    return found


def refused(spark: SparkSession, root: Path, *args: str, **options: Any) -> FlowError:
    """The error of a query, as a user sees it."""
    with pytest.raises(Exception) as caught:
        rows(spark, root, *args, **options)
    error = caught.value
    return (
        error if isinstance(error, FlowError) else translate_spark_error(error, what="the query", source=True)
    )


def packed(codec: str, text: bytes) -> bytes:
    if codec == "gz":
        return gzip.compress(text, mtime=0)
    if codec == "bz2":
        return bz2.compress(text)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {"zst": "zstd", "zstd": "zstd", "lz4": "lz4"}[codec]) as out:
        out.write(text)
    return bytes(sink.getvalue())


# ------------------------------------------------------------------ options of CSV

A1B2 = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("1,x\n2,y\n", {"has_header": False}, [{"_c0": 1, "_c1": "x"}, {"_c0": 2, "_c1": "y"}]),
        ("a~b\n1~x\n2~y\n", {"delimiter": "~"}, A1B2),
        ("a,b\n1,'x,z'\n2,'it''s'\n", {"quote": "'"}, [{"a": 1, "b": "x,z"}, {"a": 2, "b": "it's"}]),
        ('a,b\n1,"x\\"y"\n2,"\\\\"\n', {"escape": "\\"}, [{"a": 1, "b": 'x"y'}, {"a": 2, "b": "\\"}]),
        ("a,b|1,x|2,y|", {"terminator": "|"}, A1B2),
        ("a,b\r\n1,x\r\n2,y\r\n", {"terminator": "\r\n"}, A1B2),
        ('a,b|1,"x|z"|2,y', {"terminator": "|"}, [{"a": 1, "b": "x|z"}, {"a": 2, "b": "y"}]),
        ('# made by hand\na,b\n1,x\n#2,gone\n"2",y\n', {"comment": "#"}, A1B2),
        ('a,b\n1,"#x"\n2,y#\n', {"comment": "#"}, [{"a": 1, "b": "#x"}, {"a": 2, "b": "y#"}]),
        ("a,b\nNA,x\n2,NULL\n", {"null_regex": r"^(NA|NULL)$"}, [{"a": None, "b": "x"}, {"a": 2, "b": None}]),
        ("a,b\n-,\\N\n2,NAN\n", {"null_regex": r"^(-|\\N)$"}, [{"a": None, "b": None}, {"a": 2, "b": "NAN"}]),
        ("a,b\nna,x\n2,y\n", {"null_regex": "(?i)^NA$"}, [{"a": None, "b": "x"}, {"a": 2, "b": "y"}]),
        ("a,b\n1\n2,y\n", {"truncated_rows_ok": True}, [{"a": 1, "b": None}, {"a": 2, "b": "y"}]),
        (
            "\ufeffa;b;c\n1;x\n\n2;y;2026-01-01\n",
            {"truncated_rows_ok": True, "schema_infer_max_records": 2},
            [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": "y", "c": dt.date(2026, 1, 1)}],
        ),
        ("\n\na,b\n1,x\n\n2,y\n", {}, A1B2),
        ("a,b\r\n1,x\n2,y\r\n", {}, A1B2),
        ('a,b\n1,x\r\n2,"y"\r\n', {}, A1B2),
        ('a,b\r\n1,"x\r\nz"\r\n2,""\r\n', {}, [{"a": 1, "b": "x\r\nz"}, {"a": 2, "b": ""}]),
        ("a,b\r1,x\r2,y\r", {}, A1B2),
        ('a,b\r\n1,\r\n2,""\r\n', {}, [{"a": 1, "b": None}, {"a": 2, "b": ""}]),
        ("a,b\r\n1,NA\r\n2,y\r\n", {"null_regex": "^NA$"}, [{"a": 1, "b": None}, {"a": 2, "b": "y"}]),
        ("a,b\r\n1\r\n2,y\r\n", {"truncated_rows_ok": True}, [{"a": 1, "b": None}, {"a": 2, "b": "y"}]),
        ("a,b\n", {}, []),
        ('a,b\n1,""\n2,\n', {}, [{"a": 1, "b": ""}, {"a": 2, "b": None}]),
        ("ORC,PAR1\n1,x\n", {}, [{"ORC": 1, "PAR1": "x"}]),
        ('a,b\n1,5" nail\n2,y\n', {}, [{"a": 1, "b": '5" nail'}, {"a": 2, "b": "y"}]),
    ],
)  # fmt: skip
def test_csv_is_read_as_its_options_say(
    spark: SparkSession, tmp_path: Path, text: str, options: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert rows(spark, tmp_path, **options) == expected


def test_short_records_are_counted_and_long_ones_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1\n2,y\n")
    (tmp_path / "long.csv").write_text('a,b\n1,2\n3,"x,y",z\n')
    count = "SELECT count(*) AS n FROM "
    assert rows(spark, tmp_path, "csv", f"{count}t", truncated_rows_ok=True) == [{"n": 2}]
    error = refused(spark, tmp_path, "csv", f"{count}long", truncated_rows_ok=True)
    assert error.what == (
        f'{tmp_path / "long.csv"}: a record has more than the 2 cells of the header: 3,"x,y",z'
    )


def test_a_record_of_another_length_is_reported_for_any_selected_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3\n4,5\n")
    error = refused(spark, tmp_path, "csv", "SELECT a FROM t")
    assert isinstance(error, SourceFailed)
    assert error.what.startswith(
        f"cannot read {tmp_path / 't.csv'}: the record '4,5' does not have as many cells"
    )


def test_a_value_beyond_the_records_that_were_looked_at_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.csv").write_text("id,n\n1,1\n2,2\n")
    (tmp_path / "t" / "b c.csv").write_text("id,n\n3,three\n")
    options = {"schema_infer_max_records": 2}
    assert dict(frame(spark, tmp_path, **options).dtypes)["n"] == "bigint"
    error = refused(spark, tmp_path, **options)
    assert error.what == (
        f"column 'n' of {tmp_path / 't' / 'b c.csv'}: 'three' is not of type BIGINT, as in the first records"
    )
    assert rows(spark, tmp_path, "csv", "SELECT sum(id) AS s FROM t", **options) == [{"s": 6}]
    assert dict(frame(spark, tmp_path).dtypes)["n"] == "string"


def test_files_with_other_columns_and_types_are_looked_at_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.csv").write_text("id,n\n1,1\n")
    (tmp_path / "t" / "b.csv").write_text("n;id;new\nx;2;2026-01-01\n")
    assert rows(spark, tmp_path, "csv", "SELECT id, n, new FROM t ORDER BY id") == [
        {"id": 1, "n": "1", "new": None},
        {"id": 2, "n": "x", "new": dt.date(2026, 1, 1)},
    ]


def test_partitions_of_csv_keep_their_zeros(spark: SparkSession, tmp_path: Path) -> None:
    for code in ("007", "12"):
        folder = tmp_path / "t" / f"code={code}" / "day=2026-01-01"
        folder.mkdir(parents=True)
        (folder / "f.csv").write_text(f"id\n{int(code)}\n")
    assert rows(spark, tmp_path, "csv", "SELECT * FROM t ORDER BY id") == [
        {"id": 7, "code": "007", "day": dt.date(2026, 1, 1)},
        {"id": 12, "code": "12", "day": dt.date(2026, 1, 1)},
    ]


@pytest.mark.parametrize("options", [{}, {"truncated_rows_ok": True}])
@pytest.mark.parametrize(
    ("header", "record"), [("id,day,v", "1,x,2"), ("Day,id,v", "x,1,2"), ("id,v,day", "1,2,x")]
)
def test_the_folder_of_a_partition_wins_over_a_column_of_its_name_in_the_file(
    spark: SparkSession, tmp_path: Path, header: str, record: str, options: dict[str, Any]
) -> None:
    folder = tmp_path / "t" / "day=2026-01-01"
    folder.mkdir(parents=True)
    (folder / "f.csv").write_text(f"{header}\n{record}\n")
    assert rows(spark, tmp_path, **options) == [{"id": 1, "v": 2, "day": dt.date(2026, 1, 1)}]


# ------------------------------------------------------------------ options of JSON lines


def test_json_is_typed_by_all_lines_and_nested_values_are_read_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.json").write_text('{"id": 1, "o": {"x": [{"y": 1.5}]}, "n": 1}\n\n')
    (tmp_path / "t" / "b.ndjson").write_text('{"id": 2, "n": "x", "big": 123456789012345678901}\n')
    sql = "SELECT id, o.x[0].y AS y, n, CAST(big AS STRING) AS big FROM t ORDER BY id"
    assert rows(spark, tmp_path, "json_lines", sql) == [
        {"id": 1, "y": 1.5, "n": "1", "big": None},
        {"id": 2, "y": None, "n": "x", "big": "123456789012345678901"},
    ]


def test_json_columns_come_from_the_first_lines_if_so_asked(spark: SparkSession, tmp_path: Path) -> None:
    lines = ['{"a": 1, "o": {"x": 1}}', '{"a": 2.5, "l": [1, "x"]}', '{"a": "three", "late": true}']
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    found = frame(spark, tmp_path, "json_lines", schema_infer_max_records=2)
    assert dict(found.dtypes) == {"a": "double", "o": "struct<x:bigint>", "l": "array<string>"}
    error = refused(spark, tmp_path, "json_lines", schema_infer_max_records=2)
    assert isinstance(error, SourceFailed)
    assert f"cannot read {tmp_path / 't.jsonl'}: column 'a': three is not of type Double" in error.what


def test_a_batch_size_is_in_force_while_the_rows_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    from ematix_flow.backends.base import SourceQuery
    from ematix_flow.engine.execution.source_frames import source_frame

    (tmp_path / "t.jsonl").write_text('{"a": 1}\n' * 100)
    source = LocalFilesSource(tmp_path, "json_lines", FileOptions(json_read_options=(("batch_size", 7),)))

    def sizes(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    with source_frame(spark, source, SourceQuery("SELECT * FROM t"), (), [], 1) as found:
        counted = [row.rows for row in found.coalesce(1).mapInArrow(sizes, "rows bigint").collect()]
    assert max(counted) == 7
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "10000"


# ------------------------------------------------------------------ packed files


@pytest.mark.parametrize("codec", ["gz", "bz2", "zst", "zstd"])
def test_packed_text_is_read(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    (tmp_path / f"t.csv.{codec}").write_bytes(packed(codec, b'a,b\n1,"x\ny"\n'))
    assert rows(spark, tmp_path) == [{"a": 1, "b": "x\ny"}]
    (tmp_path / f"j.jsonl.{codec}").write_bytes(packed(codec, b'{"a": 1}\n'))
    assert rows(spark, tmp_path, "json_lines", "SELECT * FROM j") == [{"a": 1}]


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_what_spark_packs_itself_is_read(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    spark.range(3).coalesce(1).write.option("header", True).csv(str(tmp_path / "t"), compression=codec)
    assert [row["id"] for row in rows(spark, tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "words", "step"),
    [
        ("t.csv", gzip.compress(b"a\n1\n", mtime=0), "it begins like gzip", "a name that ends in .gz"),
        ("t.csv.gz", b"a\n1\n", "its name says gzip, and its first bytes do not match", "or not at all"),
        ("t.csv.lz4", packed("lz4", b"a\n1\n"), "it begins like an lz4 frame", "gzip, bz2 or zstd"),
        ("t.csv.snappy", b"a\n1\n", "Spark finds no line in it", "gzip, bz2 or zstd"),
        ("t.csv", b"PK\x03\x04", "it begins like zip", "gzip, bz2 or zstd"),
        ("t.csv", b"PAR1\x15\x04", "it begins like Parquet", "format='parquet'"),
        ("t.csv.gz", b"", "are empty", "put a header"),
        ("t.csv", "a,b\n1,é\n".encode("utf-16"), "UTF-16 text", "iconv -f UTF-16"),
        ("t.csv", "a,b\n1,x\n".encode("utf-16-le"), "its header contains zero bytes", "iconv -f UTF-16LE"),
        ("t.csv", "a,b\n1,x\n2,é\n".encode("latin-1"), "line 3 is not UTF-8", "iconv -f WINDOWS-1252"),
        (
            "t.csv.gz",
            gzip.compress(b"a,b\n" + b"1,2\n" * 9, mtime=0)[:-12],
            "damaged or incomplete",
            "write it again",
        ),
    ],
)
def test_a_text_file_that_is_not_what_it_seems_says_so(
    spark: SparkSession, tmp_path: Path, name: str, content: bytes, words: str, step: str
) -> None:
    (tmp_path / name).write_bytes(content)
    error = refused(spark, tmp_path)
    assert isinstance(error, SourceFailed)
    assert error.what.startswith(f"cannot read {tmp_path / name}: ") or not content
    assert words in error.what
    assert step in str(error.next_step)


def test_text_in_another_encoding_is_found_wherever_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    lines = ["a,b", *(f"{n},x" for n in range(60_000)), "1,café"]
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode("latin-1"))
    assert "line 60,002 is not UTF-8" in refused(spark, tmp_path).what
    (tmp_path / "u.csv").write_text("a,b\n1,\ufffd\n")  # a character like any other, if it is in the file
    assert rows(spark, tmp_path, "csv", "SELECT b FROM u") == [{"b": "\ufffd"}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2 of {file} is not JSON: "),
        (b'[\n{"a": 1},\n{"a": 2}\n]\n', "line 1 of {file} is not JSON: "),
        (b'{"a": 1}\n7\n', "line 2 of {file} is not a JSON object"),
        ('{"a": "é"}\n'.encode("latin-1"), "cannot read {file}: line 1 is not UTF-8"),
        (b"", "are empty: no line holds a column"),
        (
            b'{"a": 1}\n{"A": 2}\n',
            "columns 'A' (line 2 of {file}) and 'a' (line 1 of {file}), which Spark SQL",
        ),
    ],
)
def test_what_is_no_json_lines_is_named_by_its_line(
    spark: SparkSession, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    error = refused(spark, tmp_path, "json_lines")
    assert isinstance(error, SourceFailed)
    assert words.format(file=tmp_path / "t.jsonl") in error.what
    limited = refused(spark, tmp_path, "json_lines", schema_infer_max_records=10)
    assert isinstance(limited, SourceFailed)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "are empty: they have no header"),
        ("a,A\n1,2\n", {}, "names the column 'a' more than once"),
        ("a,b\n1,2\n", {"delimiter": ";"}, "is one column, 'a,b'"),
        ('a,b\n"1,2\n3,4\n', {}, "the quote that opens in line 2 is never closed"),
        ("a" * 200_000, {}, "cannot be read as CSV: field larger than field limit"),
        ('a,b\n1,x\n2,"y\n3,z\n', {}, "the quote that opens in line 3 is never closed"),
        ('a,b\n1,"x"y\n', {}, "a cell goes on after its closing quote"),
        ('a,b\n1,"x""y"\n', {"escape": "\\"}, "a cell goes on after its closing quote"),
    ],
)
def test_csv_that_makes_no_sense_says_why(
    spark: SparkSession, tmp_path: Path, text: str, options: dict[str, Any], words: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    error = refused(spark, tmp_path, **options)
    assert isinstance(error, SourceFailed)
    assert words in error.what
    assert error.next_step


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.zst", "far/t.csv", "far/t.csv.bz2"])
def test_a_quote_that_is_never_closed_is_found_in_packed_and_in_far_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(LocalFile, "is_local", not name.startswith("far"))
    codec = name.rpartition(".")[2]
    folder = tmp_path / "t" / "day=a b%25"
    folder.mkdir(parents=True)
    texts = {"good": b'a,b\n1,"x\n"\n2,5" nail\n', "bad": b'a,b\n1,x\n2,"y\n3,z\n'}
    for each, content in texts.items():
        file = folder / f"{each}-{Path(name).name}"
        file.write_bytes(content if codec == "csv" else packed(codec, content))
        if each == "good":
            assert len(rows(spark, tmp_path)) == 2
    error = refused(spark, tmp_path)
    assert isinstance(error, SourceFailed)
    assert error.what.endswith(f"bad-{Path(name).name}: the quote that opens in line 3 is never closed")


# ------------------------------------------------------------------ files of others in a target's folder


def orders() -> TableSpec:
    columns = (ColumnSpec("id", DataType("big_int")), ColumnSpec("note", DataType("text"), nullable=True))
    return TableSpec(None, "t", columns)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("id~note\n1~'a~b'\n", {"delimiter": "~", "quote": "'"}),
        ("1;x\n", {"has_header": False, "delimiter": ";"}),
        ('id,note\n1,"say \\"x\\""\n', {"escape": "\\"}),
    ],
)
def test_a_folder_is_appended_to_in_the_declared_dialect_of_its_files(
    spark: SparkSession, tmp_path: Path, text: str, read: dict[str, Any]
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "theirs.csv").write_text(text)
    options = FileOptions(csv_read_options=tuple(read.items()))
    target = LocalFilesTarget(tmp_path, "csv").with_files(options)
    live = target.inspect(orders())
    assert live is not None
    assert target.plan_table(orders(), live).differences == ()
    load_rows(target, new_load(orders(), files=options), [{"id": 2, "note": "'~\";\\"}])
    first, second = rows(spark, tmp_path, "csv", "SELECT id, note FROM t ORDER BY id")
    assert (first["id"], second) == (1, {"id": 2, "note": "'~\";\\"})


def test_files_that_we_would_not_write_are_not_appended_to(tmp_path: Path) -> None:
    options = FileOptions(csv_read_options=(("comment", "#"), ("null_regex", "^NA$")))
    target = LocalFilesTarget(tmp_path, "csv").with_files(options)
    load_rows(
        target, new_load(orders(), files=options), [{"id": 1, "note": "#"}]
    )  # a folder of ours has none
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "theirs.csv").write_text("# x\nid,note\n1,NA\n")
    with pytest.raises(SchemaMismatch, match="reads them with comment, null_regex"):
        target.inspect(replace(orders(), name="u"))
