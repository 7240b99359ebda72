"""The rows of files that a stream has received: exactly these, typed alike in every batch."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.objectstore.stream import FilesStream
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.errors import FlowError, SourceFailed
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING = ReadRequest("raw/")


def column(name: str, kind: str, **more: int) -> ColumnSpec:
    return ColumnSpec(name, DataType(kind, **more), nullable=True)


def stream(root: Path, format: str) -> FilesStream:
    found = open_backend(ObjectStoreLocalConnection(name="lake", path=str(root), format=format))
    source = found.stream_source()
    assert isinstance(source, FilesStream)
    return source


def put(root: Path, name: str, content: str | bytes | pa.Table) -> str:
    path = root / "raw" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        orc.write_table(content, path) if name.endswith(".orc") else pq.write_table(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return f"raw/{name}"


def read(
    spark: SparkSession,
    root: Path,
    format: str,
    paths: list[str],
    columns: tuple[ColumnSpec, ...] | None = None,
    **options: Any,
) -> list[tuple[Any, ...]]:
    """The rows, sorted; a failure is reported as by the engine."""
    reading = ReadRequest("raw/", files=FileOptions(**options))
    try:
        rows = stream(root, format).read_files(spark, paths, reading, columns).toArrow().to_pylist()
    except FlowError:
        raise
    except Exception as error:
        raise translate_spark_error(error, what="reading") from error
    return sorted((tuple(row.values()) for row in rows), key=str)


# ------------------------------------------------------------------ CSV


def test_csv_is_read_as_a_batch_reads_it_when_no_columns_are_given(
    spark: SparkSession, tmp_path: Path
) -> None:
    a = put(tmp_path, "a b.csv", "id;name\n1;x\n2;NULL\n")
    put(tmp_path, "never asked for.csv", "id;name\nnot a number;x\n")
    options: dict[str, Any] = {"csv_read_options": (("null_regex", "^NULL$"),)}
    assert read(spark, tmp_path, "csv", [a], **options) == [(1, "x"), (2, None)]


def test_a_later_batch_of_csv_has_the_given_types(spark: SparkSession, tmp_path: Path) -> None:
    wanted = (
        column("ID", "big_int"),
        column("price", "numeric", precision=10, scale=2),
        column("at", "timestamp_tz"),
        column("seen", "timestamp"),
        column("code", "text"),
        column("ok", "boolean"),
        column("day", "date"),
        column("share", "double"),
        column("added later", "integer"),
    )
    paths = [
        put(tmp_path, "1.csv", "id,price,at,seen,code,ok,day,share\n1,2.50,2026-01-01T10:00:00+02:00,"
            "2026-01-01 10:00,007,TRUE,2026-01-01,1\n"),
        put(tmp_path, "2.csv.gz", gzip.compress(b"price,id,other\n3,2,x\n,,\n")),
        put(tmp_path, "empty.csv", ""),
    ]  # fmt: skip
    utc = dt.datetime(2026, 1, 1, 8, tzinfo=dt.timezone.utc)
    local = dt.datetime(2026, 1, 1, 10)
    assert read(spark, tmp_path, "csv", paths, wanted) == [
        (1, Decimal("2.50"), utc, local, "007", True, dt.date(2026, 1, 1), 1.0, None),
        (2, Decimal("3.00"), None, None, None, None, None, None, None),
        (None,) * 9,
    ]
    assert read(spark, tmp_path, "csv", ["raw/empty.csv"], wanted) == []


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("1.5", DataType("big_int")),
        ("007", DataType("integer")),
        ("40000", DataType("small_int")),
        ("1.505", DataType("numeric", precision=10, scale=2)),
        ("123456789.5", DataType("numeric", precision=5, scale=2)),
        ("2026-02-30", DataType("date")),
        ("2026-01-01T10:00:00Z", DataType("timestamp")),
        ("yes", DataType("boolean")),
        ("1e999", DataType("double")),
    ],
)
def test_a_cell_that_is_not_written_as_its_type_is_refused_and_its_file_named(
    spark: SparkSession, tmp_path: Path, cell: str, kind: DataType
) -> None:
    path = put(tmp_path, "day=1/bad [1] ü.csv", f"id,x\n1,{cell}\n")
    wanted = (column("id", "big_int"), ColumnSpec("x", kind, nullable=True))
    words = r"column 'x' of .*/day=1/bad \[1\] ü.csv: '.*' is not of type "
    with pytest.raises(SourceFailed, match=words) as told:
        read(spark, tmp_path, "csv", [path], wanted)
    assert cell in str(told.value)


def test_partitions_are_columns_and_keep_their_type_when_their_values_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = put(tmp_path, "day=7/a.csv", "id\n1\n")
    later = put(tmp_path, "day=x%2Fy/b=c d.csv", "id\n2\n")
    none = put(tmp_path, "c.csv", "id\n3\n")
    null = put(tmp_path, "day=__HIVE_DEFAULT_PARTITION__/d.csv", "id\n4\n")
    wanted = (column("id", "integer"), column("day", "text"))
    found = read(spark, tmp_path, "csv", [first, later, none, null], wanted)
    assert found == [(1, "7"), (2, "x/y"), (3, None), (4, None)]
    assert read(spark, tmp_path, "csv", [first], (column("day", "integer"), wanted[0])) == [(7, 1)]
    with pytest.raises(SourceFailed, match="'x/y' is not of type Integer"):
        read(spark, tmp_path, "csv", [later], (column("day", "integer"), wanted[0]))


def test_files_of_other_things_are_refused_and_named(spark: SparkSession, tmp_path: Path) -> None:
    wanted = (column("id", "integer"),)
    other = put(tmp_path, "other.csv", "name,age\nx,1\n")
    with pytest.raises(SourceFailed, match=r"other.csv has none of the columns id: it has name, age"):
        read(spark, tmp_path, "csv", [other], wanted)
    parquet = put(tmp_path, "a.parquet", pa.table({"id": [1]}))
    with pytest.raises(SourceFailed, match=r"holds parquet files \(a.parquet\)"):
        read(spark, tmp_path, "csv", [parquet], wanted)
    latin = put(tmp_path, "latin.csv", "id,name\n1,gr\xfcn\n".encode("latin-1"))
    with pytest.raises(SourceFailed, match=r"latin.csv: line 2 is not UTF-8"):
        read(spark, tmp_path, "csv", [latin], wanted)
    with pytest.raises(SourceFailed, match=r"raw/gone.csv no longer exists.*"):
        read(spark, tmp_path, "csv", ["raw/gone.csv"], wanted)
    with pytest.raises(SourceFailed, match="but is not in"):
        read(spark, tmp_path, "csv", ["elsewhere/a.csv"], wanted)


# ------------------------------------------------------------------ JSON


def test_json_has_the_given_types_and_loses_no_digit(spark: SparkSession, tmp_path: Path) -> None:
    wanted = (
        column("id", "big_int"),
        column("price", "numeric", precision=30, scale=10),
        column("code", "text"),
        column("inner", "json"),
        column("at", "timestamp_tz"),
        column("later", "double"),
    )
    first = put(tmp_path, "a.json", '{"ID": 1, "price": 12345678901234567890.1234567890, "code": 7.10}\n')
    second = put(
        tmp_path, "b.json", '{"ID": "2", "inner": {"a": [1, 2.50]}, "at": "2026-01-01T10:00:00Z"}\n\n'
    )
    assert read(spark, tmp_path, "json_lines", [first, second], wanted) == [
        (1, Decimal("12345678901234567890.1234567890"), "7.10", None, None, None),
        (2, None, None, '{"a": [1, 2.50]}', dt.datetime(2026, 1, 1, 10, tzinfo=dt.timezone.utc), None),
    ]
    empty = put(tmp_path, "c.json", "")
    assert read(spark, tmp_path, "json_lines", [empty], wanted) == []
    half = put(tmp_path, "half.json", '{"ID": 1}\n{"ID": ')
    with pytest.raises(SourceFailed, match=r"line 2 of .*half.json is not JSON"):
        read(spark, tmp_path, "json_lines", [half], wanted)
    text = put(tmp_path, "text.json", '{"ID": 1.5}\n')
    with pytest.raises(SourceFailed, match=r"column 'id' of .*text.json: '1.5' is not of type BigInt"):
        read(spark, tmp_path, "json_lines", [text], wanted)


# ------------------------------------------------------------------ Parquet and ORC


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_columns_of_files_fit_the_given_types_or_are_refused(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    wanted = (column("id", "integer"), column("x", "numeric", precision=6, scale=1), column("later", "text"))
    a = put(tmp_path, f"a.{format}", pa.table({"id": pa.array([1], pa.int64()), "x": [1.5]}))
    b = put(tmp_path, f"p=1/b.{format}", pa.table({"Id": ["2"], "x": [7], "later": [True]}))
    found = read(spark, tmp_path, format, [a, b], wanted)
    assert found == [(1, Decimal("1.5"), None), (2, Decimal("7.0"), "true")]
    for name, values, said in (
        ("large", {"id": [2**40]}, r"column 'id' of .*/large\.\w+: '1099511627776' is not of type Integer"),
        ("cut", {"id": [1], "x": [1.25]}, r"column 'x' of .*/cut\.\w+: '1.25' is not of type Numeric"),
        ("other", {"id": [dt.date(2026, 1, 1)]}, r"column 'id' is DATE in .*/other\.\w+, and Integer"),
        ("odd", {"name": [1]}, r"odd\.\w+ has none of the columns"),
    ):
        path = put(tmp_path, f"{name}.{format}", pa.table(values))
        with pytest.raises(SourceFailed, match=said):
            read(spark, tmp_path, format, [path], wanted)
    half = put(tmp_path, f"half.{format}", b"PAR1 and no more")
    with pytest.raises(SourceFailed, match=r"cannot read .*half\.\w+: it is damaged, incomplete"):
        read(spark, tmp_path, format, [a, half], wanted)


def test_a_table_of_ours_is_followed_by_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = TableSpec(None, "raw", (column("id", "big_int"), column("note", "bytes")))
    backend = open_backend(ObjectStoreLocalConnection(name="lake", path=str(tmp_path), format="csv"))
    target = backend.target()
    assert target is not None
    files = stream(tmp_path, "csv")
    receiver = files.receiver(ReadRequest("raw", options={"poll_seconds": "0", "settle_seconds": "0"}), {})
    seen: list[list[tuple[Any, ...]]] = []
    for number in (1, 2):
        load_rows(target, new_load(table), [{"id": number, "note": b"\x00"}])
        paths = [(message.value or b"").decode() for message in receiver.poll(10, 0)]
        seen.append([row[:2] for row in read(spark, tmp_path, "csv", paths)])  # and the load's columns
        assert read(spark, tmp_path, "csv", paths, (column("id", "integer"),)) == [(number,)]
    assert seen == [[(1, b"\x00")], [(2, b"\x00")]]
    described = files.describe(spark, READING)
    assert described is not None
    assert described[:2] == table.columns


# ------------------------------------------------------------------ columns


def test_the_columns_of_what_is_there_are_found_and_read_again(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    files = stream(tmp_path, "csv")
    assert files.describe(spark, READING) is None
    put(tmp_path, "a.csv", "")
    assert files.describe(spark, READING) is None
    paths = [
        put(tmp_path, "day=1/b.csv", "id,at\n1,2026-01-01\n"),
        put(tmp_path, "day=1/c.csv", "id,x\n2,y\n"),
    ]
    (tmp_path / "raw" / "a.csv").unlink()
    put(tmp_path, "day=1/d.csv.tmp", "other\n")
    found = files.describe(spark, READING)
    assert found == (
        column("id", "big_int"),
        column("at", "date"),
        column("x", "text"),
        column("day", "big_int"),
    )
    assert read(spark, tmp_path, "csv", paths, found) == [
        (1, dt.date(2026, 1, 1), None, 1),
        (2, None, "y", 1),
    ]
