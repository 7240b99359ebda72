"""Iceberg in the middle: pipelines as a user writes them, into a catalog and out of it; no secret shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import duckdb
import psycopg
import pytest

from ematix_flow import (
    BigInt,
    DuckDBConnection,
    IcebergConnection,
    Numeric,
    PostgresConnection,
    Target,
    Text,
    TimestampTZ,
    ematix,
    pk,
    register_connection,
)
from ematix_flow.errors import CannotConnect
from tests.iceberg_reading import static_table
from tests.services.s3 import S3Server
from tests.services.s3_tables import catalog_fields, create_table_bucket

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("spark")
def test_rows_go_from_postgres_into_iceberg_and_on_to_duckdb(pg_database: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_database) as database:
        database.execute(
            "CREATE TABLE orders AS SELECT n::bigint AS id, 'c' || n % 3 AS customer, n * 1.25 AS amount,"
            " timestamptz '2026-01-01' + n * interval '1 hour' AS changed FROM generate_series(1, 20) n"
        )
    register_connection(PostgresConnection(name="shop", url=pg_database))
    register_connection(
        IcebergConnection(
            name="my lake", catalog_type="hadoop", warehouse=str(tmp_path / "lake"), namespace="raw"
        )
    )
    register_connection(DuckDBConnection(name="mart", path=str(tmp_path / "warehouse.duckdb")))

    @ematix.table(schema="sales", name="orders")
    class Orders:
        id: Annotated[BigInt, pk()]
        customer: Text
        amount: Numeric[12, 2]
        changed: TimestampTZ

    @ematix.table(schema="mart", name="revenue")
    class Revenue:
        customer: Annotated[Text, pk()]
        amount: Numeric[18, 2]

    @ematix.pipeline(
        source_connection="shop",
        targets=[Target(table=Orders, connection="my lake", mode="merge", partition_by=["customer"])],
        incremental=True,
        watermark_column="changed",
        name="orders",
    )
    def orders(conn: Any) -> str:
        return "SELECT id, customer, amount, changed FROM orders"

    @ematix.pipeline(
        source_connection="my lake", target_connection="mart", target=Revenue, mode="truncate", name="revenue"
    )
    def revenue(conn: Any) -> str:
        return (
            "SELECT o.customer, CAST(sum(o.amount) AS DECIMAL(18, 2)) AS amount"
            " FROM sales.orders o JOIN sales.orders again ON again.id = o.id GROUP BY o.customer"
        )

    assert orders.sync().targets[0].rows_inserted == 20
    with psycopg.connect(pg_database) as database:
        database.execute("UPDATE orders SET amount = 0, changed = '2026-02-01' WHERE id <= 3")
    again = orders.sync().targets[0]
    assert (again.rows_inserted, again.rows_updated) == (0, 3)
    assert orders.sync().targets[0].status == "skipped"
    revenue.sync()
    with psycopg.connect(pg_database) as database:
        expected = database.execute(
            "SELECT customer, sum(amount)::numeric(18,2) FROM orders GROUP BY 1 ORDER BY 1"
        )
        wanted = expected.fetchall()
    with duckdb.connect(str(tmp_path / "warehouse.duckdb")) as mart:
        assert mart.execute("SELECT customer, amount FROM mart.revenue ORDER BY 1").fetchall() == wanted


@pytest.mark.usefixtures("spark")
def test_the_plan_says_whether_spark_commits_and_why(tmp_path: Path) -> None:
    """From the first load on, which makes the namespace and the table."""
    register_connection(DuckDBConnection(name="shop", path=str(tmp_path / "shop.duckdb")))
    duckdb.connect(str(tmp_path / "shop.duckdb")).execute("CREATE TABLE t AS SELECT 1::BIGINT AS id").close()
    warehouse = str(tmp_path / "lake")
    register_connection(IcebergConnection(name="lake", catalog_type="hadoop", warehouse=warehouse))

    @ematix.table(schema="raw", name="t")
    class Table:
        id: Annotated[BigInt, pk()]

    def load(mode: Any) -> Any:
        @ematix.pipeline(
            source_connection="shop", target_connection="lake", target=Table, mode=mode, name=f"load {mode}"
        )
        def pipeline(conn: Any) -> str:
            return "SELECT id FROM t"

        return pipeline

    for mode, held in (("append", 1), ("append", 2), ("truncate", 1)):
        pipeline = load(mode)
        assert "commit = direct: tasks write the table's files, and pyiceberg commits" in str(pipeline.plan())
        assert pipeline.sync().targets[0].rows_inserted == 1
        table = static_table(tmp_path / "lake", "raw", "t")
        assert table is not None
        snapshot = table.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        assert (snapshot.summary["total-records"], snapshot.summary["engine-name"]) == (str(held), None)
    assert "commit = spark: mode merge compares the rows with those of the table" in str(load("merge").plan())


@pytest.mark.usefixtures("spark")
def test_a_table_bucket_that_takes_only_tables_is_reported_with_the_way_out(
    s3: S3Server, tmp_path: Path
) -> None:
    register_connection(DuckDBConnection(name="shop", path=str(tmp_path / "shop.duckdb")))
    duckdb.connect(str(tmp_path / "shop.duckdb")).execute("CREATE TABLE t AS SELECT 1::BIGINT AS id").close()
    register_connection(IcebergConnection(name="lake", **catalog_fields(s3, create_table_bucket(s3), "")))

    @ematix.table(schema="raw", name="t")
    class Table:
        id: Annotated[BigInt, pk()]

    @ematix.pipeline(
        source_connection="shop", target_connection="lake", target=Table, mode="append", name="t"
    )
    def load(conn: Any) -> str:
        return "SELECT id FROM t"

    with pytest.raises(CannotConnect) as told:
        load.sync()
    assert "staging" in str(told.value)


_WATCHED = """
import json, sys, urllib.request
from pathlib import Path
from ematix_flow.backends.iceberg.spark_catalog import open_catalog
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.jvm.cache_folder import spark_log
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.session import spark_session, stop_session
from ematix_flow.engine.spark.settings import EngineSettings
from ematix_flow.spec.connections.base import connection_from_json

given = json.loads(sys.stdin.read())
connection, events = connection_from_json(given["connection"]), Path(given["events"])
backend = open_backend(connection)
conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
conf["spark.eventLog.dir"] = events.as_uri()
settings = EngineSettings.resolve(env={}, config={"engine": {"conf": conf}})
spark = spark_session(settings, jar_groups=backend.jar_groups)
for key, value in backend.spark_conf().items():
    spark.conf.set(key, value)
seen = {}
told = {f"spark.sql.catalog.iceberg_lake.{key}" for key in ("credential", "hadoop.fs.s3a.secret.key")}
assert open_catalog(spark, connection) == "iceberg_lake"
spark.sql("CREATE NAMESPACE iceberg_lake.watched")
spark.sql("CREATE TABLE iceberg_lake.watched.t USING iceberg AS SELECT id FROM range(10)")
frame = backend.source().frame(spark, "SELECT count(*) FROM watched.t")
frame.collect()
seen["explain"] = frame._jdf.queryExecution().toString()
seen["describe"] = str(spark.sql("DESCRIBE TABLE EXTENDED iceberg_lake.watched.t").collect())
for statement in ("SET", "SET -v", *(f"SET `{key}`" for key in {*told, *backend.spark_conf()})):
    seen[statement] = str(spark.sql(statement).collect())
for wrong in ("SELECT * FROM watched.nothing", "SELECT nothing FROM watched.t"):
    try:
        backend.source().frame(spark, wrong)
    except Exception as error:
        seen[wrong] = str(translate_spark_error(error, what="reading")) + str(error)
application = spark.sparkContext.uiWebUrl + "/api/v1/applications/" + spark.sparkContext.applicationId
for page in ("environment", "sql", "jobs", "executors"):
    with urllib.request.urlopen(f"{application}/{page}") as answer:
        seen["page " + page] = answer.read().decode()
stop_session()
for file in events.rglob("*"):
    if file.is_file():
        seen["event log"] = seen.get("event log", "") + file.read_text()
seen["log"] = spark_log().read_text()
print(json.dumps(seen))
"""


def test_no_secret_of_a_catalog_shows_in_spark(s3: S3Server, s3_bucket: str, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    connection = IcebergConnection(
        name="lake",
        properties={"header.X-Authorization": "canary"},
        **catalog_fields(s3, create_table_bucket(s3), f"s3://{s3_bucket}"),
    )
    given = {"connection": connection.to_json(reveal=True), "events": str(events)}
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EMATIX_FLOW_SPARK_UI": "1"},
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert f"fs.s3a.bucket.{s3_bucket}.secret.key" in seen["SET"], "it looks where a secret is"
    assert {"explain", "event log", "page environment", "log"} <= set(seen)
    for what, text in {**seen, "stdout": done.stdout, "stderr": done.stderr}.items():
        assert s3.keys.secret not in text, f"the secret shows in {what}"
        assert "canary" not in text, f"a header shows in {what}"
