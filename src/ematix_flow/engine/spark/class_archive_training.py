"""Makes a class-data archive: starts Spark, runs a little of everything, and lets Java record the loaded
classes.

Run as ``python -m ematix_flow.engine.spark.class_archive_training [jar group …]``, in the background, at low
priority. It ends after 15 minutes at the latest.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout

from ematix_flow.engine.jvm import class_archive
from ematix_flow.engine.jvm.jars import jars_for
from ematix_flow.engine.jvm.java_process import class_path
from ematix_flow.engine.jvm.java_runtime import JavaRuntime, find_java
from ematix_flow.engine.spark.session import spark_session, stop_session
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.errors import EngineError, FlowError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def train(groups: Sequence[str]) -> None:
    """Make the archive for these jar groups, unless it exists or another process is making it."""
    java = find_java()
    wanted = class_archive.archive_for(java, class_path(jars_for(groups), os.environ))
    try:
        with wanted.lock():
            if not wanted.is_ready:
                try:
                    _record(wanted, java, groups)
                except (FlowError, OSError, subprocess.SubprocessError) as error:
                    wanted.remember_failure(str(error))
                    raise
    except Timeout:
        return
    class_archive.delete_old_archives()


def _record(wanted: class_archive.ClassArchive, java: JavaRuntime, groups: Sequence[str]) -> None:
    if wanted.base is not None and not wanted.base.is_file():
        _make_base(wanted.base, java)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=wanted.path.parent) as folder:
        recorded = Path(folder) / "archive.jsa"
        os.environ["EMATIX_FLOW_CDS"] = f"{class_archive.RECORD}{recorded}"
        settings = EngineSettings.resolve(engine="local[2]", env={})
        spark = spark_session(settings, jar_groups=groups)
        exercise(spark, Path(folder), groups)
        stop_session()
        if not recorded.is_file():
            raise EngineError("Java wrote no archive")
        os.replace(recorded, wanted.path)


def _make_base(base: Path, java: JavaRuntime) -> None:
    making = base.with_suffix(".making")
    command = [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={making}"]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    os.replace(making, base)


def exercise(spark: SparkSession, folder: Path, groups: Iterable[str] = ()) -> None:
    """What pipelines do, on a handful of rows: Python tasks, SQL, and every kind of file."""
    exercises: list[Callable[[SparkSession, Path], object]] = [_python_task, _sql, _files]
    exercises += [_BY_GROUP[group] for group in groups if group in _BY_GROUP]
    for one in exercises:
        try:
            one(spark, folder)
        except Exception as error:  # classes of a failed exercise are missing from the archive, nothing more
            print(f"{one.__name__}: {type(error).__name__}", file=sys.stderr)


def _python_task(spark: SparkSession, folder: Path) -> None:
    def unchanged(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from batches

    spark.range(0, 100, 1, 2).mapInArrow(unchanged, "id long").collect()


def _sql(spark: SparkSession, folder: Path) -> None:
    spark.range(1000).createOrReplaceTempView("numbers")
    spark.sql(
        "select a.id % 7 as bucket, count(*) as n, sum(cast(a.id as decimal(18, 2))) as total,"
        " max(timestamp '2024-01-01 00:00:00' + make_interval(0, 0, 0, a.id % 30)) as latest,"
        " max(upper(concat('x', cast(b.id as string)))) as name"
        " from numbers a join numbers b on a.id = b.id left join numbers c on c.id = b.id + 1"
        " where a.id between 3 and 900 group by a.id % 7 having count(*) > 1 order by total desc"
    ).collect()
    spark.sql(
        "select id, row_number() over (partition by id % 5 order by id) as place,"
        " case when id is null then 0 else id end as filled from numbers limit 20"
    ).collect()


def _files(spark: SparkSession, folder: Path) -> None:
    frame = spark.range(100).selectExpr(
        "id", "cast(id as string) as name", "id / 3 as part", "current_date() as day"
    )
    for kind in ("parquet", "csv", "json", "orc"):
        path = str(folder / kind)
        frame.write.mode("overwrite").format(kind).save(path)
        spark.read.format(kind).load(path).limit(5).collect()


def _delta(spark: SparkSession, folder: Path) -> None:
    path = str(folder / "delta")
    for mode in ("overwrite", "append"):
        spark.range(10).write.format("delta").mode(mode).save(path)
    spark.read.format("delta").load(path).collect()
    table = f"delta.`{path}`"
    for statement in (
        *_table_changes(table),
        f"ALTER TABLE {table} ADD COLUMN name STRING",
        f"DESCRIBE DETAIL {table}",
        f"OPTIMIZE {table}",
    ):
        spark.sql(statement).collect()


def _iceberg(spark: SparkSession, folder: Path) -> None:
    for key, value in (("", "SparkCatalog"), (".type", "hadoop"), (".warehouse", str(folder / "iceberg"))):
        spark.conf.set(
            f"spark.sql.catalog.trained{key}", value if key else f"org.apache.iceberg.spark.{value}"
        )
    spark.range(10).writeTo("trained.db.numbers").using("iceberg").create()
    spark.range(10).writeTo("trained.db.numbers").append()
    for statement in (*_table_changes("trained.db.numbers"), "SELECT * FROM trained.db.numbers.snapshots"):
        spark.sql(statement).collect()


def _table_changes(table: str) -> tuple[str, ...]:
    """The statements that the strategies use."""
    return (
        f"MERGE INTO {table} AS t USING (SELECT id, id % 2 AS do FROM range(20)) AS s ON t.id = s.id"
        " WHEN MATCHED AND s.do = 0 THEN UPDATE SET id = s.id WHEN MATCHED AND s.do = 1 THEN DELETE"
        " WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        f"UPDATE {table} SET id = id + 1 WHERE id < 5",
        f"SELECT count(*), max(id) FROM {table}",
    )


def _avro(spark: SparkSession, folder: Path) -> None:
    path = str(folder / "avro")
    spark.range(10).write.format("avro").save(path)
    spark.read.format("avro").load(path).collect()


def _kafka(spark: SparkSession, folder: Path) -> None:
    spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9").option(
        "subscribe", "x"
    ).load()


_BY_GROUP: dict[str, Callable[[SparkSession, Path], object]] = {
    "delta": _delta,
    "iceberg": _iceberg,
    "avro": _avro,
    "kafka": _kafka,
}


def _exit_on_timeout() -> None:
    """End a training that hangs. Java ends with this process, because its standard input closes."""
    os._exit(1)


def main() -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.nice(10)
    limit = threading.Timer(class_archive.TRAINING_SECONDS, _exit_on_timeout)
    limit.daemon = True
    limit.start()
    train(sys.argv[1:])


if __name__ == "__main__":
    main()
