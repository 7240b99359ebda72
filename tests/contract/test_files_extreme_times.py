"""The first and the last days, and those around changes of the calendar: read as written, or refused."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from ematix_flow.backends.objectstore.spark import LocalFilesSource
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.errors import FlowError, SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = dt.timezone.utc
TIMES = [
    dt.datetime(1, 1, 1),
    dt.datetime(1, 1, 1, 0, 0, 0, 1),
    dt.datetime(1582, 10, 4, 23, 59, 59),
    dt.datetime(1582, 10, 10, 12),  # a day that the older calendar has not
    dt.datetime(1582, 10, 15),
    dt.datetime(1677, 9, 21),
    dt.datetime(1899, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1900, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 500000),
    dt.datetime(1970, 1, 1),
    dt.datetime(2262, 4, 12),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]


def table(times: list[dt.datetime]) -> pa.Table:
    moments = [time.replace(tzinfo=UTC) for time in times]
    return pa.table(
        {
            "id": pa.array(range(len(times)), pa.int64()),
            "day": pa.array([time.date() for time in times]),
            "at": pa.array(times, pa.timestamp("us")),
            "moment": pa.array(moments, pa.timestamp("us", "UTC")),
        }
    )


def read(spark: SparkSession, root: Path, format: str, sql: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = LocalFilesSource(root, format).frame(spark, sql).toArrow().to_pylist()
    except FlowError:
        raise
    except Exception as error:
        raise translate_spark_error(error, what="the query", source=True) from error
    return found


@pytest.mark.parametrize("kind", ["parquet", "brotli", "int96", "spark", "csv", "json"])
def test_extreme_times_are_read_as_they_were_written(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    written, path = table(TIMES), tmp_path / "t" / "1"
    path.parent.mkdir()
    format = {"csv": "csv", "json": "json_lines"}.get(kind, "parquet")
    if kind in ("parquet", "brotli"):
        pq.write_table(written, f"{path}.parquet", compression="brotli" if kind == "brotli" else "zstd")
    elif kind == "int96":
        times = [time for time in TIMES if 1678 < time.year < 2262]  # what it holds
        written = table(times).drop(["at"])
        pq.write_table(written, f"{path}.parquet", use_deprecated_int96_timestamps=True)
    elif kind == "spark":
        written = written.drop(["at"])  # which would be written as a time with a zone
        spark.createDataFrame(written).write.mode("overwrite").parquet(str(path.parent))
    else:
        texts = [
            {
                "id": number,
                "day": time.date().isoformat(),
                "at": time.isoformat(),
                "moment": f"{time.isoformat()}Z",
            }
            for number, time in enumerate(TIMES)
        ]
        lines = [",".join(texts[0]), *(",".join(map(str, row.values())) for row in texts)]
        made = lines if kind == "csv" else [json.dumps(row) for row in texts]
        path.with_suffix(f".{kind}").write_text("\n".join(made) + "\n")
    cast = ", CAST(day AS DATE) AS day, CAST(at AS TIMESTAMP_NTZ) AS at, CAST(moment AS TIMESTAMP) AS moment"
    chosen = "*" if format == "parquet" else f"id{cast}"
    found = read(spark, tmp_path, format, f"SELECT {chosen} FROM t ORDER BY id")
    assert found == written.to_pylist()


@pytest.mark.parametrize("column", ["day", "at", "moment"])
def test_extreme_times_in_orc_are_read_as_they_were_written_or_refused_with_file_and_column(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    read_well = []
    for number, time in enumerate(TIMES):
        written = table([time]).select(["id", column])
        orc.write_table(written, tmp_path / f"t{number}.orc")
        try:
            found = read(spark, tmp_path, "orc", f"SELECT * FROM t{number}")
        except SourceFailed as error:
            file = f"{tmp_path}/t{number}.orc"
            named = f"column {column!r} of {file} holds" in error.what
            # for a fraction of a second before 1970 Spark names only the file
            assert named or error.what.startswith(f"cannot read {file}: it holds a fraction of a second"), (
                error
            )
        else:
            assert found == written.to_pylist()
            read_well.append(time.year)
    assert {1900, 1970} <= set(read_well)
