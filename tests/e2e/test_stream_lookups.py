"""Lookups of a stream: read from every kind of source, refreshed while batches run, and never half."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from ematix_flow import Annotated, BigInt, Lookup, ManagedTable, Text, pk
from ematix_flow.engine.planning.stream_columns import run_transform_sql
from ematix_flow.engine.streams import lookups as lookups_module
from ematix_flow.engine.streams.letter_loader import LetterLoader
from ematix_flow.engine.streams.lookups import Lookups
from ematix_flow.engine.streams.stream_folder import stream_folder_for
from ematix_flow.errors import FlowError
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.pipeline import open_connections
from ematix_flow.spec.connections import (
    DeltaLocalConnection,
    DuckDBConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from tests.services.kafka import KafkaServer
from tests.services.mysql_server import MySQLServer
from tests.stream_runs import kafka_connection, load, produce, query, stream, warehouse
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("spark")


class Tiers(ManagedTable):
    __tablename__ = "tiers"
    __schema__ = "crm"
    id: Annotated[BigInt, pk()]
    tier: Text


def test_lookups_of_every_kind_are_joined_in_one_query(
    kafka: KafkaServer,
    kafka_topic: str,
    pg_database: str,
    mariadb: MySQLServer,
    mariadb_database: str,
    tmp_path: Path,
) -> None:
    query(pg_database, "CREATE SCHEMA crm; CREATE TABLE crm.tiers AS SELECT 1::bigint AS id, 'pg' AS tier")
    maria = urlsplit(mariadb_database).path.strip("/")
    mariadb.execute("CREATE TABLE tiers AS SELECT 1 AS id, 'maria' AS tier", maria)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("CREATE TABLE tiers AS SELECT 1 AS id, 'sqlite' AS tier")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as duck:
        duck.execute("CREATE TABLE tiers AS SELECT 1::bigint AS id, 'duckdb' AS tier")
    rows = pa.table({"id": pa.array([1], pa.int64()), "tier": ["file"]})
    deltalake.write_deltalake(str(tmp_path / "lake" / "crm" / "tiers"), rows)
    (tmp_path / "files" / "tiers").mkdir(parents=True)
    pq.write_table(rows, tmp_path / "files" / "tiers" / "a.parquet")
    sources = {
        "pg": Lookup(warehouse(pg_database), table=Tiers),
        "maria": Lookup(MySQLConnection(name="maria", url=mariadb_database), table="tiers"),
        "lite": Lookup(
            SQLiteConnection(name="lite", path=str(tmp_path / "shop.db")), query="SELECT * FROM tiers"
        ),
        "duck": Lookup(DuckDBConnection(name="duck", path=str(tmp_path / "shop.duckdb")), table="tiers"),
        "lake": Lookup(
            DeltaLocalConnection(name="lake", path=str(tmp_path / "lake")), table=("crm", "tiers")
        ),
        "parquet": Lookup(
            ObjectStoreLocalConnection(name="files", path=str(tmp_path / "files"), format="parquet"),
            table="tiers",
        ),
        "nothing": Lookup(warehouse(pg_database), query="SELECT * FROM crm.tiers WHERE false"),
    }
    joins = " ".join(f"LEFT JOIN {name} ON {name}.id = s.id" for name in sources)
    columns = ", ".join(f"{name}.tier AS {name}_tier" for name in sources)
    produce(kafka, kafka_topic, [{"id": 1}, {"id": 2}])
    load(
        stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            target=warehouse(pg_database),
            target_table=("public", "joined"),
            transform_sql=f"SELECT s.id, {columns} FROM source s {joins}",
            lookups=sources,
        )
    )
    found = query(
        pg_database, f"SELECT {', '.join(f'{name}_tier' for name in sources)} FROM joined ORDER BY id"
    )
    assert found == [("pg", "maria", "sqlite", "duckdb", "file", "file", None), (None,) * len(sources)]


def test_a_plan_reads_no_row_of_a_lookup_and_a_run_names_the_lookup_that_fails(
    kafka: KafkaServer, kafka_topic: str, pg_database: str
) -> None:
    query(pg_database, "CREATE TABLE one AS SELECT 0 AS zero")
    produce(kafka, kafka_topic, [{"id": 1}])

    def joined(lookup: Lookup) -> Any:
        return stream(
            source=kafka_connection(kafka),
            source_query=kafka_topic,
            source_columns=Tiers,
            target=warehouse(pg_database),
            target_table=("public", "joined"),
            transform_sql="SELECT s.id, n.n FROM source s JOIN names n ON n.n = s.id",
            lookups={"names": lookup},
        )

    failing = joined(Lookup(warehouse(pg_database), query="SELECT 1 / zero AS n FROM one"))
    failing.plan()
    with pytest.raises(FlowError, match=r"lookup 'names'.*division by zero"):
        load(failing)
    for wrong in (
        Lookup(warehouse(pg_database), table="nowhere"),
        Lookup(kafka_connection(kafka), table=kafka_topic),
    ):
        with pytest.raises(FlowError, match="lookup 'names': ") as raised:
            joined(wrong).plan()
        assert "lookup" in str(raised.value.next_step)


class Commits:
    """Keeps which messages a replay was about to commit."""

    def __init__(self) -> None:
        self.indexes = list[list[int]]()

    def before_commit(self, indexes: Sequence[int], batch: str, *, alone: bool) -> None:
        self.indexes.append(list(indexes))

    def settle(self, indexes: Sequence[int], batch: str, targets: Sequence[str]) -> None:
        assert list(indexes) == self.indexes[-1]


def test_replayed_messages_are_joined_and_leave_no_rows_behind(
    kafka: KafkaServer, kafka_topic: str, pg_database: str, spark: SparkSession
) -> None:
    query(pg_database, "CREATE TABLE names AS SELECT 1::bigint AS id, 'ada' AS name")
    declared = stream(
        source=kafka_connection(kafka),
        source_query=kafka_topic,
        source_columns=Tiers,
        target=warehouse(pg_database),
        target_table=("public", "joined"),
        transform_sql="SELECT s.id, n.name FROM source s JOIN names n ON n.id = s.id",
        lookups={"names": Lookup(warehouse(pg_database), table="names")},
    ).spec
    before = cached_views(spark)
    loader = LetterLoader(declared, open_connections(spark_starter()), stream_folder_for(declared))
    commits = Commits()
    assert loader.load([{"value": b'{"id": 1, "tier": "gold"}', "topic": kafka_topic}], commits) == {}
    assert commits.indexes == [[0]]
    assert query(pg_database, "SELECT id, name FROM joined") == [(1, "ada")]
    assert cached_views(spark) == before


# ---------------------------------------------------------------- refreshes, without a broker


class Rates:
    """A SQLite table of rates that all have the same version, and a lookup of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path, self.notes = folder / "rates.db", list[str]()
        self.change(
            "CREATE TABLE rates (id BIGINT, version BIGINT)", "INSERT INTO rates VALUES (1, 0), (2, 0)"
        )
        connection = SQLiteConnection(name="rates", path=str(self.path))
        self.declared = stream(
            source=ObjectStoreLocalConnection(name="files", path=str(folder), format="csv"),
            source_query="incoming",
            target=connection,
            target_table="joined",
            transform_sql="SELECT s.id, a.version AS a, b.version AS b FROM source s "
            "JOIN rates a ON a.id = s.id JOIN rates b ON b.id = s.id",
            lookups={"rates": Lookup(connection, table="rates", **options)},
        ).spec

    def change(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            for statement in statements:
                database.execute(statement)

    def set_version(self, version: int) -> None:
        self.change(f"UPDATE rates SET version = {version}")

    @contextmanager
    def running(self) -> Iterator[Lookups]:
        lookups = Lookups(self.declared, open_connections(spark_starter()), self.notes.append)
        lookups.start()
        try:
            yield lookups
        finally:
            lookups.stop()

    def joined(self, spark: SparkSession, lookups: Lookups, user: str = "batch") -> DataFrame:
        rows = spark.newSession().createDataFrame([(1,), (2,)], "id bigint")
        return run_transform_sql(self.declared, rows, lookups.views(user))


def versions(frame: DataFrame) -> set[int]:
    return {version for row in frame.collect() for version in (row.a, row.b)}


def cached_views(spark: SparkSession) -> int:
    return sum("lookup_" in table.name for table in spark.catalog.listTables("global_temp"))


def test_a_batch_keeps_its_rows_through_refreshes_and_the_next_sees_the_newest(
    spark: SparkSession, tmp_path: Path
) -> None:
    rates = Rates(tmp_path, refresh_interval_ms=50)
    before = cached_views(spark)
    with rates.running() as lookups:
        slow = rates.joined(spark, lookups, "slow")
        for version in (1, 2):
            rates.set_version(version)
            wait_until(lambda: versions(rates.joined(spark, lookups)) == {version})  # noqa: B023
        assert versions(slow) == {0}
        assert cached_views(spark) - before <= 4  # of the slow batch, the last batch, the newest, a new one
    assert cached_views(spark) == before


def test_a_batch_never_sees_a_mixture_of_two_refreshes(spark: SparkSession, tmp_path: Path) -> None:
    rates, ended = Rates(tmp_path, refresh_interval_ms=50), threading.Event()

    def keep_changing() -> None:
        version = 0
        while not ended.wait(0.01):
            version += 1
            rates.set_version(version)

    with rates.running() as lookups:
        writer = threading.Thread(target=keep_changing)
        writer.start()
        try:
            seen = [versions(rates.joined(spark, lookups)) for _ in range(6)]
        finally:
            ended.set()
            writer.join()
    assert all(len(found) == 1 for found in seen)
    assert len(set.union(*seen)) > 1


def test_a_refresh_that_fails_is_noted_once_and_so_is_the_next_that_works(
    spark: SparkSession, tmp_path: Path
) -> None:
    rates = Rates(tmp_path, refresh_interval_ms=5)
    with rates.running() as lookups:
        reads = count_reads(lookups)
        rates.change("ALTER TABLE rates RENAME TO gone")
        wait_until(lambda: reads["failed"] >= 3)
        assert versions(rates.joined(spark, lookups)) == {0}
        rates.change("UPDATE gone SET version = 7", "ALTER TABLE gone RENAME TO rates")
        wait_until(lambda: versions(rates.joined(spark, lookups)) == {7})
    assert [note.split(": ")[0] for note in rates.notes] == [
        "lookup 'rates' cannot be refreshed and keeps its rows",
        "lookup 'rates' is refreshed again",
    ]


def test_columns_that_change_at_a_refresh_do_not_break_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    rates = Rates(tmp_path, refresh_interval_ms=5)
    with rates.running() as lookups:
        rates.change("ALTER TABLE rates ADD COLUMN id2 BIGINT", "UPDATE rates SET version = 1")
        wait_until(lambda: versions(rates.joined(spark, lookups)) == {1})
        rates.change("ALTER TABLE rates RENAME COLUMN version TO revision")
        gone = "lookup 'rates' has no column 'version' any more"
        wait_until(lambda: any(gone in note for note in rates.notes))
        assert versions(rates.joined(spark, lookups)) == {1}


def test_a_small_lookup_is_broadcast_and_a_large_one_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = Rates(tmp_path)

    def plan_without_automatic_broadcast() -> str:
        with rates.running() as lookups:
            rows = spark.newSession().createDataFrame([(1,)], "id bigint")
            rows.sparkSession.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
            run_transform_sql(rates.declared, rows, lookups.views("plan")).explain()
        return capsys.readouterr().out

    assert "SortMergeJoin" not in plan_without_automatic_broadcast()
    monkeypatch.setattr(lookups_module, "BROADCAST_ROWS", 1)
    assert "SortMergeJoin" in plan_without_automatic_broadcast()


def count_reads(lookups: Lookups) -> dict[str, int]:
    """Count the reads of a lookup that fail from now on."""
    counts, read = {"failed": 0}, lookups._read

    def counted(lookup: Any) -> Any:
        try:
            return read(lookup)
        except FlowError:
            counts["failed"] += 1
            raise

    lookups._read = counted  # type: ignore[method-assign]
    return counts
