"""Folders of Parquet and ORC by other writers: added, widened and clashing columns, and file locations."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from ematix_flow import ObjectStoreLocalConnection, Target, ematix, register_connection
from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.backends.objectstore.target import FilesTarget, LocalFilesTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.errors import FlowError, SourceFailed
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.samples import every_type, every_value
from tests.contract.files_reading import folder_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 11, 15, 12)


def write(root: Path, name: str, columns: dict[str, pa.Array], format: str = "parquet") -> Path:
    path = root / f"{name}.{format}"
    path.parent.mkdir(parents=True, exist_ok=True)
    (pq if format == "parquet" else orc).write_table(pa.table(columns), path)
    return path


def frame(spark: SparkSession, root: Path, sql: str, format: str = "parquet") -> DataFrame:
    return LocalFilesSource(root, format).frame(spark, sql)


def rows(spark: SparkSession, root: Path, sql: str, format: str = "parquet") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame(spark, root, sql, format).toArrow().to_pylist()
    return found


def refused(spark: SparkSession, root: Path, sql: str, format: str = "parquet") -> FlowError:
    with pytest.raises(Exception) as caught:
        rows(spark, root, sql, format)
    error = caught.value
    return (
        error if isinstance(error, FlowError) else translate_spark_error(error, what="the query", source=True)
    )


# ------------------------------------------------------------------ columns of several files


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize(
    ("old", "new", "spark_type", "values"),
    [
        (pa.array([1], pa.int32()), pa.array([2**40]), "bigint", [1, 2**40]),
        (pa.array([1], pa.int8()), pa.array([2], pa.int16()), "smallint", [1, 2]),
        (pa.array([1], pa.int32()), pa.array([0.5]), "double", [1.0, 0.5]),
        (pa.array([1.5], pa.float32()), pa.array([0.1]), "double", [1.5, 0.1]),
        (pa.array([1]), pa.array([Decimal("0.50")]), "decimal(21,2)", [Decimal("1.00"), Decimal("0.50")]),
        (
            pa.array([Decimal("1.5")]),
            pa.array([Decimal("100.25")]),
            "decimal(5,2)",
            [Decimal("1.50"), Decimal("100.25")],
        ),
        (pa.array([dt.date(2026, 1, 1)]), pa.array([NOON]), "timestamp_ntz", [dt.datetime(2026, 1, 1), NOON]),
        (
            pa.array([{"x": 1}], pa.struct([("x", pa.int32())])),
            pa.array([{"x": 2**40, "y": ["z"]}]),
            "struct<x:bigint,y:array<string>>",
            [{"x": 1, "y": None}, {"x": 2**40, "y": ["z"]}],
        ),
    ],
)
def test_a_column_that_grew_is_read_in_its_wider_type(
    spark: SparkSession,
    tmp_path: Path,
    old: pa.Array,
    new: pa.Array,
    spark_type: str,
    values: list[Any],
    format: str,
) -> None:
    write(tmp_path, "t/1", {"id": pa.array([1]), "v": old}, format)
    write(tmp_path, "t/2", {"v": new, "id": pa.array([2])}, format)
    found = frame(spark, tmp_path, "SELECT v FROM t ORDER BY id", format)
    assert dict(found.dtypes)["v"] == spark_type
    assert [row["v"] for row in found.toArrow().to_pylist()] == values


def test_columns_that_spark_reads_in_different_ways_become_one(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "t/1", {"id": pa.array([1]), "at": pa.array([NOON], pa.timestamp("ns"))})
    write(tmp_path, "t/2", {"id": pa.array([2]), "at": pa.array([NOON], pa.timestamp("us"))})
    write(tmp_path, "t/3", {"id": pa.array([3]), "at": pa.nulls(1)})
    write(tmp_path, "t/4", {"ID": pa.array([2**32 - 1], pa.uint32())})
    write(tmp_path, "t/5", {"id": pa.array([Decimal("5.5")])})
    assert rows(spark, tmp_path, "SELECT id, at FROM t ORDER BY id") == [
        {"id": Decimal("1.0"), "at": NOON},
        {"id": Decimal("2.0"), "at": NOON},
        {"id": Decimal("3.0"), "at": None},
        {"id": Decimal("5.5"), "at": None},
        {"id": Decimal("4294967295.0"), "at": None},
    ]


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (pa.array([1]), pa.array(["x"]), "'v' is BIGINT in {0} and STRING in {1}"),
        (pa.array([1]), pa.array([0.5]), "'v' is BIGINT in {0} and DOUBLE in {1}"),
        (pa.array([{"x": [1]}]), pa.array([{"x": ["y"]}]), "'v.x[]' is BIGINT in {0} and STRING in {1}"),
    ],
)
def test_a_column_without_a_common_type_names_both_files(
    spark: SparkSession, tmp_path: Path, old: pa.Array, new: pa.Array, words: str, format: str
) -> None:
    first = write(tmp_path, "t/1", {"v": old}, format)
    second = write(tmp_path, "t/2", {"v": new}, format)
    error = refused(spark, tmp_path, "SELECT * FROM t", format)
    assert isinstance(error, SourceFailed)
    assert words.format(first, second) in error.what
    assert rows(spark, tmp_path, f"SELECT CAST(v AS STRING) v FROM `t/1.{format}`", format)


def test_two_names_that_spark_takes_for_one_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path, "t", {"a": pa.array([1]), "A": pa.array([2])})
    error = refused(spark, tmp_path, "SELECT * FROM t")
    assert error.what == f"{path} has the columns 'a' and 'A', which Spark SQL does not distinguish"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"PAR1 and no more", "it is damaged, incomplete, or of another format"),
        (b"a,b\n1,2\n", "it is damaged, incomplete, or of another format"),
    ],
)
@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_a_broken_file_is_named_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, content: bytes, words: str, format: str
) -> None:
    write(tmp_path, "t/1", {"v": pa.array([1])}, format)
    (tmp_path / "t" / f"2.{format}").write_bytes(content)
    error = refused(spark, tmp_path, "SELECT * FROM t", format)
    assert error.what == f"cannot read {tmp_path / 't' / f'2.{format}'}: {words}"


# ------------------------------------------------------------------ ORC


def test_orc_of_others_is_read_with_its_times(spark: SparkSession, tmp_path: Path) -> None:
    inner = pa.struct([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.string()))])
    columns = {
        "id": pa.array([1], pa.int8()),
        "local": pa.array([NOON]),
        "day": pa.array([dt.date(2026, 1, 1)]),
        "o": pa.array([{"l": [1], "m": [("k", "v")]}], inner),
    }
    write(tmp_path, "t", columns, "orc")
    assert rows(spark, tmp_path, "SELECT * FROM t", "orc") == [
        {"id": 1, "local": NOON, "day": dt.date(2026, 1, 1), "o": {"l": [1], "m": [("k", "v")]}}
    ]
    write(tmp_path, "moments", {"at": pa.array([NOON.replace(tzinfo=UTC)])}, "orc")
    assert rows(spark, tmp_path, "SELECT * FROM moments", "orc") == [{"at": NOON.replace(tzinfo=UTC)}]


@pytest.mark.parametrize("value", [dt.date(1500, 1, 1), dt.datetime(1950, 1, 1, 0, 0, 0, 5)])
def test_times_that_readers_of_orc_shift_are_refused(spark: SparkSession, tmp_path: Path, value: Any) -> None:
    write(tmp_path, "t", {"id": pa.array([1]), "at": pa.array([value])}, "orc")
    assert (
        "which ORC readers read as different times" in refused(spark, tmp_path, "SELECT * FROM t", "orc").what
    )
    assert rows(spark, tmp_path, "SELECT id FROM t", "orc") == [{"id": 1}]


# ------------------------------------------------------------------ where the files are


def test_tables_are_named_in_every_way_and_joined(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "raw/events/2026/11/15/a", {"id": pa.array([1, 2])})
    write(tmp_path, "raw/events/2026/11/16/b", {"id": pa.array([3])})
    write(tmp_path, "users", {"id": pa.array([1, 3]), "name": pa.array(["x", "z"])})
    write(tmp_path, "hive/code=007/day=2026-01-01/c", {"id": pa.array([1])})
    sql = """
        SELECT e.id, u.name, h.code, h.day
        FROM "raw/events" e JOIN "users.parquet" AS u ON u.id = e.id LEFT JOIN hive h ON h.id = e.id
        WHERE e.id IN (SELECT id FROM raw.events) ORDER BY e.id
    """
    assert rows(spark, tmp_path, sql) == [
        {"id": 1, "name": "x", "code": "007", "day": dt.date(2026, 1, 1)},
        {"id": 3, "name": "z", "code": None, "day": None},
    ]
    assert rows(spark, tmp_path, "SELECT count(*) AS n FROM users.parquet") == [{"n": 2}]


def test_dated_folders_with_partitions_and_other_folders_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path, "t/2026/region=eu/a", {"id": pa.array([1])})
    write(tmp_path, "t/2026/region=us/b", {"id": pa.array([2])})
    write(tmp_path, "t/archive/c", {"id": pa.array([3])})
    assert rows(spark, tmp_path, "SELECT * FROM t ORDER BY id") == [
        {"id": 1, "region": "eu"},
        {"id": 2, "region": "us"},
    ]


def test_files_in_and_outside_of_partitions_are_distinguished(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "t/day=1/a", {"id": pa.array([1])})
    write(tmp_path, "t/b", {"id": pa.array([2])})
    error = refused(spark, tmp_path, "SELECT * FROM t")
    assert "b.parquet of 't' is in no partition, and day=1/a.parquet is partitioned by day" in error.what


# ------------------------------------------------------------------ through a pipeline


def run(name: str, sql: str, prefix: str, **options: Any) -> None:
    @ematix.pipeline(
        targets=[Target(connection="out", prefix=prefix)], source_connection="lake", name=name, **options
    )
    def load() -> str:
        return sql

    load.sync()


def test_nested_values_land_as_json(spark: SparkSession, tmp_path: Path) -> None:
    nested = {"when": NOON, "tags": ["a", None], "by": [("k", Decimal("1.50"))]}
    kind = pa.struct(
        [
            ("when", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
            ("by", pa.map_(pa.string(), pa.decimal128(5, 2))),
        ]
    )
    write(tmp_path / "lake", "t", {"id": pa.array([1]), "o": pa.array([nested], kind)})
    register_connection(
        ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="parquet")
    )
    register_connection(ObjectStoreLocalConnection(name="out", path=str(tmp_path / "out"), format="parquet"))
    run("nested", "SELECT id, o, o.tags[0] AS first FROM t", "nested")
    (row,) = pq.read_table(tmp_path / "out" / "nested").to_pylist()
    assert row["first"] == "a"
    assert json.loads(row["o"]) == {
        "when": "2026-11-15T12:00:00",
        "tags": ["a", None],
        "by": {"k": 1.5},
    }
    assert '"k": 1.50' in row["o"]


def test_a_partition_is_one_file_however_many_tasks_there_are(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / "lake", f"t/{number}", {"id": pa.array([1, 2]), "code": pa.array(["a", "b"])})
    register_connection(
        ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="parquet")
    )
    register_connection(ObjectStoreLocalConnection(name="out", path=str(tmp_path / "out"), format="parquet"))

    @ematix.pipeline(
        targets=[Target(connection="out", prefix="parted", partition_by=["code"])], source_connection="lake"
    )
    def parted() -> str:
        return "SELECT * FROM t"

    tuning = {choice.name: choice.value for choice in parted.plan().targets[0].tuning}
    assert (tuning["staging parts"], tuning["rows together by"]) == ("1", "code")
    assert parted.sync().rows_inserted == 8
    files = sorted((tmp_path / "out" / "parted").rglob("*.parquet"))
    assert [file.parent.name for file in files] == ["code=a", "code=b"]


def test_a_pipeline_reads_csv_by_its_options_into_every_kind_of_target(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "t.csv").write_text("# exported\nid~price\n1~NA\n2~19.90\n")
    register_connection(ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="csv"))
    register_connection(
        ObjectStoreLocalConnection(name="out", path=str(tmp_path / "out"), format="json_lines")
    )
    options = {"delimiter": "~", "comment": "#", "null_regex": "^NA$"}
    run("shaped", "SELECT id, price FROM t", "shaped", csv_read_options=options)
    lines = (file.read_text() for file in (tmp_path / "out" / "shaped").iterdir())
    found = [json.loads(line) for text in lines for line in text.splitlines()]
    assert [(row["id"], row["price"]) for row in found] == [(1, None), (2, 19.9)]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_files_that_a_table_adopted_are_read_with_ours(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    at = pa.array([NOON], pa.timestamp("ns"))
    columns = {"id": pa.array([1]), "at": at, "o": pa.array([{"x": [1]}])}
    write(tmp_path, "t/theirs", columns, format)
    kinds = {"id": "big_int", "at": "timestamp", "o": "json", "new": "text"}
    table = TableSpec(None, "t", tuple(ColumnSpec(n, DataType(k), nullable=True) for n, k in kinds.items()))
    row = {"id": 2, "at": NOON, "o": '{"x":[2]}', "new": "y"}
    load_rows(LocalFilesTarget(tmp_path, format), new_load(table), [row])
    assert rows(spark, tmp_path, "SELECT id, at, o, new FROM t ORDER BY id", format) == [
        {"id": 1, "at": NOON, "o": '{"x":[1]}', "new": None},
        row,
    ]


# ------------------------------------------------------------------ our files, read by others


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "zstd"])
def test_our_parquet_is_read_by_pyarrow_and_duckdb(tmp_path: Path, compression: str) -> None:
    from ematix_flow.spec.pipelines import FileOptions

    backend = open_backend(ObjectStoreLocalConnection(name="lake", path=str(tmp_path), format="parquet"))
    target, table = backend.target(), every_type()
    assert isinstance(target, FilesTarget)
    load_rows(target, new_load(table, files=FileOptions(parquet_compression=compression)), every_value())
    folder = folder_of(tmp_path, table)
    expected = every_value()
    by_arrow = pq.read_table(folder).sort_by("id").to_pylist()
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        found = engine.execute(f"SELECT * FROM read_parquet('{folder}/*.parquet') ORDER BY id")
        names = [column[0] for column in found.description or []]
        by_duckdb = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    for row, one, other in zip(expected, by_arrow, by_duckdb, strict=True):
        for column, value in row.items():
            assert one[column] == value, column
            assert other[column] == value or column in ("a_timestamp_tz", "a_double", "a_float"), column
