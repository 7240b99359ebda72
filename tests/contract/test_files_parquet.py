"""Every Parquet file that pyarrow can write is read as it is, or refused in words: types, encodings, codecs,
page versions, encryption. DuckDB's files too, and ours by both of them."""

from __future__ import annotations

import base64
import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.errors import FlowError, SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 11, 15, 12, 0, 0, 123456)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def frame(spark: SparkSession, root: Path, sql: str = "SELECT * FROM t") -> DataFrame:
    return LocalFilesSource(root, "parquet").frame(spark, sql)


def rows(spark: SparkSession, root: Path, sql: str = "SELECT * FROM t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame(spark, root, sql).toArrow().to_pylist()
    return found


def refused(spark: SparkSession, root: Path, sql: str = "SELECT * FROM t") -> FlowError:
    """The error of a query, as a user sees it."""
    with pytest.raises(Exception) as caught:
        rows(spark, root, sql)
    error = caught.value
    return (
        error if isinstance(error, FlowError) else translate_spark_error(error, what="the query", source=True)
    )


# ------------------------------------------------------------------ one file, every type

# name -> (the values as stored, the Spark type that a query sees, the first value as it is seen)
TYPES: dict[str, tuple[pa.Array, str, Any]] = {}
SAME = object()


def stored(name: str, value: Any, arrow_type: pa.DataType, spark_type: str, seen: Any = SAME) -> None:
    """A column of one value and one null."""
    TYPES[name] = (pa.array([value, None], arrow_type), spark_type, value if seen is SAME else seen)


stored("boolean", True, pa.bool_(), "boolean")
stored("int8", -128, pa.int8(), "tinyint")
stored("int16", -(2**15), pa.int16(), "smallint")
stored("int32", -(2**31), pa.int32(), "int")
stored("int64", -(2**63), pa.int64(), "bigint")
stored("uint8", 255, pa.uint8(), "smallint")
stored("uint16", 2**16 - 1, pa.uint16(), "int")
stored("uint32", 2**32 - 1, pa.uint32(), "bigint")
stored("uint64", 2**64 - 1, pa.uint64(), "decimal(20,0)", Decimal(2**64 - 1))
stored("float16", np.float16(-0.1), pa.float16(), "float", float(np.float16(-0.1)))
stored("float32", 1.5, pa.float32(), "float")
stored("float64", 0.1, pa.float64(), "double")
stored("decimal9", Decimal("-1234567.89"), pa.decimal128(9, 2), "decimal(9,2)")
stored("decimal18", Decimal("0.500000000"), pa.decimal128(18, 9), "decimal(18,9)")
stored("decimal38", Decimal("9" * 38), pa.decimal128(38, 0), "decimal(38,0)")
stored("decimal_in_256", Decimal("1.5"), pa.decimal256(20, 1), "decimal(20,1)")
stored("text", "é☃", pa.string(), "string")
stored("large_text", "x", pa.large_string(), "string")
stored("text_view", "x", pa.string_view(), "string")
stored("json", '{"a":1}', pa.json_(), "string")
stored("dictionary", "a", pa.dictionary(pa.int32(), pa.string()), "string")
stored("bytes", b"\x00\xff", pa.binary(), "binary")
stored("fixed_bytes", b"abc", pa.binary(3), "binary")
stored("uuid", ID.bytes, pa.uuid(), "string", str(ID))
stored("date32", dt.date(1500, 1, 1), pa.date32(), "date")
stored("date64", dt.date(2026, 1, 1), pa.date64(), "date")
stored("time_ms", dt.time(13, 5, 0, 250000), pa.time32("ms"), "string", "13:05:00.25")
stored("time_us", dt.time(23, 59, 59, 999999), pa.time64("us"), "string", "23:59:59.999999")
stored("time_ns", 1000, pa.time64("ns"), "string", "00:00:00.000001")
stored("local_s", dt.datetime(2026, 1, 1, 12), pa.timestamp("s"), "timestamp_ntz")
stored("local_ms", dt.datetime(1500, 1, 1), pa.timestamp("ms"), "timestamp_ntz")
stored("local_us", NOON, pa.timestamp("us"), "timestamp_ntz")
stored("local_ns", NOON, pa.timestamp("ns"), "timestamp_ntz")
stored("moment_ms", dt.datetime(1960, 1, 1, tzinfo=UTC), pa.timestamp("ms", "UTC"), "timestamp")
stored("moment_us", NOON.replace(tzinfo=UTC), pa.timestamp("us", "Europe/Berlin"), "timestamp")
stored("moment_ns", NOON.replace(tzinfo=UTC), pa.timestamp("ns", "UTC"), "timestamp")
stored("duration", 7, pa.duration("us"), "bigint")
stored("nothing", None, pa.null(), "string")
stored("list", [1, None], pa.list_(pa.int64()), "array<bigint>")
stored("fixed_list", [1, 2], pa.list_(pa.int64(), 2), "array<bigint>")
stored("map", [("k", 1)], pa.map_(pa.string(), pa.int64()), "map<string,bigint>")
stored(
    "struct",
    {"x": 1, "Y z": "a"},
    pa.struct([("x", pa.int64()), ("Y z", pa.string())]),
    "struct<x:bigint,Y z:string>",
)
stored(
    "deep",
    [{"at": NOON, "by": [("a", dt.time(1, 2, 3))]}],
    pa.list_(pa.struct([("at", pa.timestamp("ns")), ("by", pa.map_(pa.string(), pa.time64("us")))])),
    "array<struct<at:timestamp_ntz,by:map<string,string>>>",
    [{"at": NOON, "by": [("a", "01:02:03")]}],
)


def test_a_column_of_every_type_is_read_with_every_value(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({name: values for name, (values, _, _) in TYPES.items()}), tmp_path / "t.parquet")
    found = frame(spark, tmp_path)
    assert dict(found.dtypes) == {name: spark_type for name, (_, spark_type, _) in TYPES.items()}
    first, second = found.toArrow().to_pylist()
    assert first == {name: value for name, (_, _, value) in TYPES.items()}
    assert set(second.values()) == {None}


def test_half_floats_are_read_to_their_last_bit(spark: SparkSession, tmp_path: Path) -> None:
    values = np.array([0.0, -0.0, 6e-8, -6.1e-5, 1.0, 65504.0, np.inf, -np.inf, np.nan, 0.333], np.float16)
    pq.write_table(pa.table({"a": pa.array(values)}), tmp_path / "t.parquet")
    found = [row["a"] for row in rows(spark, tmp_path)]
    for value, expected in zip(found, values.tolist(), strict=True):
        assert value == expected or (math.isnan(value) and math.isnan(expected))
    assert math.copysign(1, found[1]) == -1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("decimal9", {"store_decimal_as_integer": True}),
        ("decimal18", {"store_decimal_as_integer": True}),
        ("moment_ns", {"use_deprecated_int96_timestamps": True}),
        ("local_us", {"version": "1.0"}),
        ("moment_ms", {"version": "2.4"}),
        ("text", {"write_page_index": True}),
        ("text", {"write_statistics": False}),
        ("text", {"bloom_filter_options": {"a": {"ndv": 10, "fpp": 0.01}}}),
        ("int64", {"bloom_filter_options": {"a": {"ndv": 10, "fpp": 0.01}}}),
        ("struct", {"use_compliant_nested_type": False}),
        ("list", {"use_compliant_nested_type": False}),
        ("text", {"store_schema": False}),
        ("large_text", {"write_page_checksum": True}),
        ("dictionary", {"row_group_size": 1}),
        ("text", {"data_page_size": 1, "max_rows_per_page": 1}),
    ],
)
def test_other_ways_to_store_a_value_change_nothing(
    spark: SparkSession, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    values, _, expected = TYPES[name]
    pq.write_table(pa.table({"a": values}), tmp_path / "t.parquet", **options)
    assert rows(spark, tmp_path) == [{"a": expected}, {"a": None}]


def test_a_bloom_filter_hides_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"a": [f"k{n}" for n in range(1000)]})
    options = {"a": {"ndv": 1000, "fpp": 0.01}}
    pq.write_table(table, tmp_path / "t.parquet", bloom_filter_options=options, use_dictionary=False)
    assert rows(spark, tmp_path, "SELECT a FROM t WHERE a IN ('k7', 'k999', 'none')") == [
        {"a": "k7"},
        {"a": "k999"},
    ]


# ------------------------------------------------------------------ codecs and encodings

MANY = {
    "int32": pa.array([*range(-500, 500), None], pa.int32()),
    "int64": pa.array([*(n * 7**15 for n in range(-500, 500)), None]),
    "float": pa.array([*(n / 8 for n in range(1000)), None], pa.float32()),
    "double": pa.array([*(n / 3 for n in range(1000)), None]),
    "text": pa.array([*(f"é{n % 17}" * (n % 5) for n in range(1000)), None]),
    "bytes": pa.array([*(b"\x00%d" % n for n in range(1000)), None]),
    "fixed": pa.array([*(b"%04d" % n for n in range(1000)), None], pa.binary(4)),
    "boolean": pa.array([*(n % 3 == 0 for n in range(1000)), None]),
}
ENCODINGS = {
    "PLAIN": tuple(MANY),
    "DELTA_BINARY_PACKED": ("int32", "int64"),
    "DELTA_BYTE_ARRAY": ("text", "bytes", "fixed"),
    "DELTA_LENGTH_BYTE_ARRAY": ("text", "bytes"),
    "BYTE_STREAM_SPLIT": ("int32", "int64", "float", "double", "fixed"),
    "RLE": ("boolean",),
}


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_every_codec_is_read(spark: SparkSession, tmp_path: Path, codec: str, pages: str) -> None:
    table = pa.table(MANY)
    pq.write_table(table, tmp_path / "t.parquet", compression=codec, data_page_version=pages)
    assert rows(spark, tmp_path) == table.to_pylist()


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_every_encoding_is_read(spark: SparkSession, tmp_path: Path, encoding: str, pages: str) -> None:
    table = pa.table({name: MANY[name] for name in ENCODINGS[encoding]})
    pq.write_table(
        table,
        tmp_path / "t.parquet",
        use_dictionary=False,
        column_encoding=dict.fromkeys(table.column_names, encoding),
        data_page_version=pages,
    )
    assert rows(spark, tmp_path) == table.to_pylist()


def test_files_that_only_arrow_reads_are_read_with_the_others(spark: SparkSession, tmp_path: Path) -> None:
    for day, codec in (("1", "brotli"), ("2", "snappy")):
        folder = tmp_path / "t" / f"day=2026-01-0{day}"
        folder.mkdir(parents=True)
        table = pa.table({"ID": pa.array([int(day)], pa.int32()), "at": pa.array([NOON], pa.timestamp("ns"))})
        if day == "2":
            table = table.append_column("new", pa.array([ID.bytes], pa.uuid()))
        pq.write_table(table, folder / "f.parquet", compression=codec)
    assert rows(spark, tmp_path, "SELECT id, at, new, day FROM t ORDER BY id") == [
        {"id": 1, "at": NOON, "new": None, "day": dt.date(2026, 1, 1)},
        {"id": 2, "at": NOON, "new": str(ID), "day": dt.date(2026, 1, 2)},
    ]


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("codec", ["snappy", "brotli"])
def test_nanoseconds_that_would_be_lost_are_refused(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    table = pa.table({"id": [1], "at": pa.array([1001], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "t.parquet", compression=codec)
    error = refused(spark, tmp_path)
    assert isinstance(error, SourceFailed)
    assert f"column 'at' of {tmp_path / 't.parquet'}" in error.what
    if codec == "snappy":
        assert "nanoseconds, which would be lost" in error.what
        assert rows(spark, tmp_path, "SELECT id FROM t") == [{"id": 1}]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([Decimal("1.5")], pa.decimal256(50, 2)), "Decimal(precision=50, scale=2) in Parquet"),
    ],
)
def test_a_column_that_spark_has_no_type_for_stands_in_nobodys_way(
    spark: SparkSession, tmp_path: Path, values: pa.Array, words: str
) -> None:
    pq.write_table(pa.table({"id": [1], "odd": values}), tmp_path / "t.parquet")
    assert rows(spark, tmp_path, "SELECT id FROM t") == [{"id": 1}]
    error = refused(spark, tmp_path)
    assert error.what == f"column 'odd' of {tmp_path / 't.parquet'} is {words}, which Spark cannot read"
    assert error.next_step is not None


class _Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types for it
    """Wraps keys without a server: what is tested is the reader, not the keys."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
        return base64.b64decode(wrapped)


def write_encrypted(path: Path, *, plaintext_footer: bool) -> None:
    factory = encryption.CryptoFactory(_Keys)
    properties = factory.file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="footer", column_keys={"column": ["secret"]}, plaintext_footer=plaintext_footer
        ),
    )
    table = pa.table({"id": [1], "secret": ["x"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def test_an_encrypted_column_is_refused_by_name_and_the_others_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_encrypted(tmp_path / "t.parquet", plaintext_footer=True)
    assert rows(spark, tmp_path, "SELECT id FROM t") == [{"id": 1}]
    error = refused(spark, tmp_path)
    assert isinstance(error, SourceFailed)
    assert error.what == f"cannot read {tmp_path / 't.parquet'}: column 'secret' is encrypted"


def test_an_encrypted_footer_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_encrypted(tmp_path / "t.parquet", plaintext_footer=False)
    error = refused(spark, tmp_path)
    assert error.what == f"cannot read {tmp_path / 't.parquet'}: its footer is encrypted"


# ------------------------------------------------------------------ DuckDB


@pytest.mark.parametrize(
    ("codec", "version"),
    [("snappy", "V1"), ("zstd", "V2"), ("gzip", "V1"), ("brotli", "V2"), ("lz4_raw", "V1")],
)
def test_what_duckdb_writes_is_read(spark: SparkSession, tmp_path: Path, codec: str, version: str) -> None:
    query = f"""
        SELECT 1::TINYINT a, 2::UINTEGER b, 3::UBIGINT c, 0.1::DOUBLE d, 1.5::DECIMAL(10, 2) e, 'é' f,
            '{ID}'::UUID g, DATE '2026-01-01' h, TIMESTAMP '2026-01-01 10:00:00.5' i,
            TIMESTAMPTZ '2026-01-01 10:00:00+00' j, TIME '10:00:00.25' k, [1, 2] l, {{'x': 1, 'y': 'z'}} m,
            MAP {{'k': 1.5::DOUBLE}} n, '{{"a": 1}}'::JSON o, 'b'::ENUM('a', 'b') p, 1.5::FLOAT q, true r
    """
    path = tmp_path / "t.parquet"
    duckdb.connect().execute(
        f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION {codec}, PARQUET_VERSION {version})"
    )
    (found,) = rows(spark, tmp_path)
    assert found == {
        "a": 1,
        "b": 2,
        "c": Decimal(3),
        "d": 0.1,
        "e": Decimal("1.50"),
        "f": "é",
        "g": str(ID),
        "h": dt.date(2026, 1, 1),
        "i": dt.datetime(2026, 1, 1, 10, 0, 0, 500000),
        "j": dt.datetime(2026, 1, 1, 10, tzinfo=UTC),
        "k": "10:00:00.25",
        "l": [1, 2],
        "m": {"x": 1, "y": "z"},
        "n": [("k", 1.5)],
        "o": '{"a": 1}',
        "p": "b",
        "q": 1.5,
        "r": True,
    }


def test_an_interval_of_duckdb_is_refused_only_where_it_is_used(spark: SparkSession, tmp_path: Path) -> None:
    duckdb.connect().execute(f"COPY (SELECT 1 AS id, INTERVAL 1 DAY AS took) TO '{tmp_path / 't.parquet'}'")
    assert rows(spark, tmp_path, "SELECT id FROM t") == [{"id": 1}]
    assert "column 'took' of" in refused(spark, tmp_path).what


def test_partitions_that_duckdb_writes_are_read(spark: SparkSession, tmp_path: Path) -> None:
    query = "SELECT n AS id, 'a' || n AS code, DATE '2026-01-01' + n::INT AS day FROM range(3) r(n)"
    duckdb.connect().execute(
        f"COPY ({query}) TO '{tmp_path / 't'}' (FORMAT parquet, PARTITION_BY (day, code))"
    )
    assert rows(spark, tmp_path, "SELECT id, day, code FROM t ORDER BY id") == [
        {"id": n, "day": dt.date(2026, 1, 1 + n), "code": f"a{n}"} for n in range(3)
    ]
