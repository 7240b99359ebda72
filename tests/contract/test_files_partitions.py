"""Partition folders as pyarrow, DuckDB and Spark write them: each text comes back, or is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from ematix_flow.backends.messages.base import ReadRequest
from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.backends.objectstore.stream import FilesStream
from ematix_flow.backends.objectstore.target import LocalFilesTarget
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.connections import ObjectStoreLocalConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from tests.contract.s3_files import S3Lake
from tests.services.s3 import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKS = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\t\n\r\x01\x7f\xa0"
TEXTS: list[str | None] = [
    None,
    "",
    "Zürich",
    "ZÃ¼rich",  # what Spark makes of the one above
    "München/Köln",
    "東京",
    "😀 smile",
    "e\u0301",
    "é",
    "%C3%BC",
    "%25",
    "100%",
    "%zz",
    "a=b",
    "a=b/c=d",
    "2026-11-17",
    "007",
    "+1",
    "null",
    *MARKS,
    *(f"a{mark}ü" for mark in MARKS),
]
EACH = "a city ö %+"  # the name of a partition column


def by_pyarrow(
    spark: SparkSession, rows: pa.Table, folder: Path, columns: Sequence[str], format: str
) -> None:
    ds.write_dataset(
        rows,
        folder,
        format=format,
        partitioning=ds.partitioning(pa.schema([rows.schema.field(c) for c in columns]), flavor="hive"),
        max_partitions=10_000,
    )


def by_duckdb(spark: SparkSession, rows: pa.Table, folder: Path, columns: Sequence[str], format: str) -> None:
    names = ", ".join('"' + c.replace('"', '""') + '"' for c in columns)
    duckdb.connect().sql("FROM rows").query(
        "r", f"COPY r TO '{folder}' (FORMAT {format}, PARTITION_BY ({names}))"
    )


def by_spark(spark: SparkSession, rows: pa.Table, folder: Path, columns: Sequence[str], format: str) -> None:
    spark.createDataFrame(rows).write.partitionBy(*columns).format(format).save(str(folder))


Write = Callable[["SparkSession", pa.Table, Path, Sequence[str], str], None]
WRITERS: list[tuple[Write, str]] = [
    (by_pyarrow, "parquet"),
    (by_pyarrow, "csv"),
    (by_duckdb, "parquet"),
    (by_duckdb, "json"),
    (by_spark, "orc"),
    (by_spark, "parquet"),
]


def frame_rows(spark: SparkSession, root: Path, sql: str, format: str = "parquet") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = LocalFilesSource(root, format).frame(spark, sql).toArrow().to_pylist()
    return found


def rows_of_texts(writer: Write) -> pa.Table:
    texts = [None if text == "" and writer is by_spark else text for text in TEXTS]  # it writes one for both
    return pa.table({"id": list(range(len(texts))), EACH: texts})


@pytest.mark.parametrize(("writer", "format"), WRITERS)
def test_every_text_in_a_folder_name_comes_back_as_it_was_written(
    spark: SparkSession, tmp_path: Path, writer: Write, format: str
) -> None:
    table = rows_of_texts(writer)
    writer(spark, table, tmp_path / "raw", [EACH], format)
    ours = "json_lines" if format == "json" else format
    assert frame_rows(spark, tmp_path, "SELECT * FROM raw ORDER BY id", ours) == table.to_pylist()

    paths = [str(path.relative_to(tmp_path)) for path in (tmp_path / "raw").rglob("*.*") if path.is_file()]
    paths = [path for path in paths if not path.endswith(".crc")]
    source = open_backend(ObjectStoreLocalConnection(name="lake", path=str(tmp_path), format=ours))
    stream = source.stream_source()
    assert isinstance(stream, FilesStream)
    streamed = stream.read_files(spark, paths, ReadRequest("raw/")).toArrow().sort_by("id")
    assert streamed.to_pylist() == table.to_pylist()
    columns = (ColumnSpec(EACH, DataType("text")), ColumnSpec("id", DataType("big_int")))
    pinned = stream.read_files(spark, paths, ReadRequest("raw/"), columns).toArrow().sort_by("id")
    assert pinned.select(["id", EACH]).to_pylist() == table.to_pylist()


def test_escaped_text_leaves_the_types_of_other_partitions_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "up=1" / "100%"
    for number, city in enumerate(["Z%C3%BCrich", "Genf", ""]):
        folder = root / f"t/day=2026-11-1{number}/2026/n=-{number}.50/city={city}/at=2026-01-01 00%3A00%3A00"
        folder.mkdir(parents=True)
        (folder / "x=1.json").write_text(json.dumps({"id": number, "CITY": "another"}))
    assert frame_rows(spark, root, "SELECT * FROM t ORDER BY id", "json_lines") == [
        {
            "id": number,
            "day": dt.date(2026, 11, 10 + number),
            "n": Decimal(f"-{number}.50"),
            "city": city,
            "at": dt.datetime(2026, 1, 1),
        }
        for number, city in enumerate(["Zürich", "Genf", ""])
    ]
    found = frame_rows(spark, root, "SELECT id FROM t WHERE city = 'Zürich' AND n < 1", "json_lines")
    assert found == [{"id": 0}]


@pytest.mark.parametrize("folder", ["city=%FF", "city=%ED%A0%80", "=x", "a=1/A=2", b"city=\xff"])
def test_a_folder_that_cannot_be_a_partition_is_refused_and_its_file_named(
    spark: SparkSession, tmp_path: Path, folder: str | bytes
) -> None:
    path = tmp_path / "raw" / (folder if isinstance(folder, str) else os.fsdecode(folder))
    path.mkdir(parents=True)
    (path / "one.csv").write_text("id\n1\n")
    with pytest.raises(SourceFailed, match=r"/one\.csv' .* cannot be read as a partition"):
        frame_rows(spark, tmp_path, "SELECT * FROM raw", "csv")


def test_files_that_become_a_table_of_ours_keep_the_texts_of_their_folders(
    spark: SparkSession, tmp_path: Path
) -> None:
    cities = ["Zürich", "Genf", "ZÃ¼rich"]
    by_pyarrow(spark, pa.table({"id": [0, 1], "city": cities[:2]}), tmp_path / "shop", ["city"], "parquet")
    columns = (ColumnSpec("id", DataType("big_int")), ColumnSpec("city", DataType("text")))
    load = new_load(TableSpec(None, "shop", columns), partition_by=("city",))
    load_rows(LocalFilesTarget(tmp_path, "parquet"), load, [{"id": 2, "city": cities[2]}])
    found = frame_rows(spark, tmp_path, "SELECT city, id FROM shop ORDER BY id")
    assert found == [{"city": city, "id": number} for number, city in enumerate(cities)]


def test_texts_of_folders_in_a_bucket_come_back_as_they_were_written(
    spark: SparkSession, s3: S3Server, tmp_path: Path
) -> None:
    table = rows_of_texts(by_pyarrow).filter(ds.field("id") < 20)
    by_pyarrow(spark, table, tmp_path, [EACH], "parquet")
    bucket = s3.create_bucket("partitions")
    try:
        lake = S3Lake(s3, bucket)
        for path in tmp_path.rglob("*.parquet"):
            key = f"{lake.prefix}/raw/{path.relative_to(tmp_path).as_posix()}"
            s3.client().put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        own = spark.newSession()
        for setting, value in lake.backend().spark_conf().items():
            own.conf.set(setting, value)
        found = lake.backend().source().frame(own, "SELECT * FROM raw ORDER BY id").toArrow()
        assert found.to_pylist() == table.to_pylist()
    finally:
        s3.drop_bucket(bucket)
