"""Connections of ematix_flow as sources of probes: found as pipelines find them, read where they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ematix_flow.config.interpolate import expand_connection
from ematix_flow.connections import (
    BigQueryConnection,
    Connection,
    DuckDBConnection,
    IcebergConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    SQLiteConnection,
    register_connection,
)
from ematix_flow.probes import resolve_connection, source_of
from ematix_probe import probe
from ematix_probe.declaration import DataProbe
from ematix_probe.errors import DeclarationError
from ematix_probe.report import RunReport
from ematix_probe.sources.base import Subject
from tests.unit.probe.conftest import Call


def rows_of(name: Any, table: str | None = "orders", **subject: Any) -> DataProbe:
    """A probe that counts the rows of a table of a connection."""

    @probe.data(source=name, table=table, **subject)
    def rows(t: Any) -> None:
        t.row_count(at_least=3, at_most=3)
        t.column("id").unique()

    return rows


def verdicts(report: RunReport) -> list[tuple[str, str]]:
    return [(each.verdict, each.message) for each in report.assertions if each.verdict != "pass"]


def write_sqlite() -> str:
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.executescript("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1), (2), (3)")
    return 'kind = "sqlite"\npath = "shop.db"'


def write_duckdb() -> str:
    with duckdb.connect("shop.duckdb") as database:
        database.execute("CREATE TABLE orders AS SELECT * FROM range(3) t(id)")
    return 'url = "duckdb://shop.duckdb"'


def write_files(format: str, path: str, copy: str) -> Callable[[], str]:
    def write() -> str:
        Path(path).parent.mkdir(parents=True)
        duckdb.sql("SELECT * FROM range(3) t(id)").query("t", f"COPY t TO '{path}' ({copy})")
        return f'kind = "object_store_local"\npath = "lake"\nformat = "{format}"'

    return write


def write_orc() -> str:
    import pyarrow as pa
    from pyarrow import orc

    Path("lake/orders").mkdir(parents=True)
    orc.write_table(pa.table({"id": [1, 2, 3]}), "lake/orders/part.orc")
    return 'kind = "object_store_local"\npath = "lake"\nformat = "orc"'


def write_delta() -> str:
    import deltalake
    import pyarrow as pa

    deltalake.write_deltalake("lake/orders", pa.table({"id": [1, 2, 3]}))
    return 'kind = "delta_local"\npath = "lake"'


WRITERS = {
    "sqlite": write_sqlite,
    "duckdb": write_duckdb,
    "parquet": write_files("parquet", "lake/orders/a.parquet", "FORMAT parquet"),
    "csv": write_files("csv", "lake/orders/a.csv", "FORMAT csv, HEADER"),
    "jsonl": write_files("json_lines", "lake/orders/a.jsonl", "FORMAT json"),
    "orc": write_orc,
    "delta": write_delta,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_probe_reads_a_connection_of_the_projects_file(kind: str) -> None:
    Path(".ematix-flow.toml").write_text(f"[connections.shop]\n{WRITERS[kind]()}\n")
    found = rows_of("shop")
    assert found.source.kind == kind
    assert verdicts(found.run()) == []


def test_a_name_means_what_it_means_in_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment first, then the project's file, the user's, and what Python declares."""
    write_sqlite()
    register_connection(SQLiteConnection(name="shop", path="declared.db"))
    assert "there is no SQLite file declared.db" in str(verdicts(rows_of("shop").run()))
    Path(".ematix-flow.toml").write_text('[connections.shop]\nurl = "sqlite://of_the_file.db"\n')
    assert "there is no SQLite file of_the_file.db" in str(verdicts(rows_of("shop").run()))
    monkeypatch.setenv("EMATIX_FLOW_DSN_SHOP", "sqlite://shop.db")
    assert verdicts(rows_of("shop").run()) == []


def test_a_connection_object_is_a_source_with_and_without_registration() -> None:
    write_sqlite()
    shop = SQLiteConnection(name="shop", path="shop.db")
    assert verdicts(rows_of(shop).run()) == []
    with pytest.raises(DeclarationError, match="no connection is named 'shop'"):
        rows_of("shop")
    register_connection(shop)
    assert verdicts(rows_of("shop").run()) == []


def test_a_connection_object_that_has_no_tables_is_refused() -> None:
    with pytest.raises(DeclarationError, match="messages and no tables") as refused:
        rows_of(KafkaConnection(name="events", bootstrap_servers="x:1"))
    assert (refused.value.where or "").startswith(__file__)


def test_a_table_of_a_pipeline_into_sqlite_is_found_by_its_schema_and_name() -> None:
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.executescript(
            "CREATE TABLE an__clean (id INTEGER PRIMARY KEY); INSERT INTO an__clean VALUES (1), (2), (3);"
            "CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (1), (2), (9)"
        )
    shop = SQLiteConnection(name="shop", path="shop.db")
    assert verdicts(rows_of(shop, "clean", schema="an").run()) == []

    @probe.data(source=shop, table="orders", schema="main")
    def known(t: Any) -> None:
        t.foreign_key("id", references="an.clean", referenced_columns=["id"])

    assert [each.failing for each in known.run().assertions] == [1]


def test_references_are_replaced_when_the_probe_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    write_sqlite()
    register_connection(SQLiteConnection(name="shop", path="${SHOP_FILE}"))
    declared = rows_of("shop")
    ((verdict, message), _) = verdicts(declared.run())
    assert verdict == "error"
    assert "SHOP_FILE" in message
    monkeypatch.setenv("SHOP_FILE", "shop.db")
    assert verdicts(declared.run()) == []


def test_a_secret_of_a_connection_is_shown_nowhere(
    ematix_probe: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "wonderland-9")
    Path(".ematix-flow.toml").write_text(
        '[connections.shop]\nkind = "postgres"\nhost = "127.0.0.1"\nport = 9\ndatabase = "shop"\n'
        'user = "eve"\npassword = "${SHOP_PASSWORD}"\n'
    )
    Path("checks.py").write_text(
        "from ematix_probe import probe\n"
        "@probe.data(source='shop', table='orders')\n"
        "def orders(t):\n    t.column('wonderland-9').not_null()\n"
    )
    listed = ematix_probe("list", "checks.py")
    assert (listed.code, "shop (postgres)" in listed.out) == (0, True)
    called = ematix_probe("run", "checks.py", "--json", "r.json", "--history", "h.db")
    assert called.code == 1
    assert "PostgreSQL cannot be reached" in called.out
    shown = called.out + called.err + Path("r.json").read_text() + repr(resolve_connection("shop"))
    assert "wonderland" not in shown
    assert b"wonderland" not in Path("h.db").read_bytes()


def test_a_connection_that_leads_to_one_file_needs_no_table() -> None:
    Path("orders.csv").write_text("id\n1\n2\n3\n")
    Path(".ematix-flow.toml").write_text(
        '[connections.export]\nkind = "object_store_local"\npath = "orders.csv"\n'
        '[connections.folder]\nkind = "object_store_local"\npath = "."\n'
    )
    assert verdicts(rows_of("export", None).run()) == []
    with pytest.raises(DeclarationError, match="table= or query="):
        rows_of("folder", None)


def test_a_query_and_a_foreign_key_use_the_tables_of_the_connection() -> None:
    write_files("parquet", "lake/orders/a.parquet", "FORMAT parquet")()
    register_connection(SQLiteConnection(name="unused", path="x"))
    Path(".ematix-flow.toml").write_text('[connections.lake]\nkind = "object_store_local"\npath = "lake"\n')

    @probe.data(source="lake", query="SELECT id FROM orders")
    def known(t: Any) -> None:
        t.foreign_key("id", references="orders", referenced_columns=["id"])

    assert verdicts(known.run()) == []


def test_an_unknown_name_is_suggested_and_says_where_was_searched() -> None:
    register_connection(SQLiteConnection(name="warehouse", path="x.db"))
    with pytest.raises(
        DeclarationError, match=r"no connection is named 'warehose'\. .*'warehouse'"
    ) as raised:
        rows_of("warehose")
    assert "EMATIX_FLOW_DSN_WAREHOSE" in str(raised.value.state)
    assert (raised.value.where or "").startswith(__file__)


S3 = ObjectStoreS3Connection(name="lake", bucket="b")


@pytest.mark.parametrize(
    ("connection", "what", "next_step"),
    [
        (
            KafkaConnection(name="lake", bootstrap_servers="k:9092"),
            "is a kafka connection which has messages and no tables",
            "expectations=",
        ),
        (
            BigQueryConnection(name="lake", project="p", dataset="d"),
            "which probes cannot read",
            "postgres, mysql",
        ),
        (SQLiteConnection(name="lake", path=":memory:"), "in the memory of one process", "path of a file"),
        (DuckDBConnection(name="lake", path=":memory:"), "in the memory of one process", "path of a file"),
        (replace(S3, verify_tls=False), "with verify_tls = false", "ca_cert_path"),
        (replace(S3, requester_pays=True), "requester_pays = true", "copy"),
        (
            IcebergConnection(name="lake", catalog_type="jdbc", uri="jdbc:postgresql://h/d"),
            "with a jdbc catalog, which only Spark reads",
            "source.spark",
        ),
    ],
)
def test_a_connection_that_no_probe_can_read_says_what_to_do(
    connection: Connection, what: str, next_step: str
) -> None:
    register_connection(connection)
    with pytest.raises(DeclarationError, match=what) as raised:
        rows_of("lake")
    assert next_step in str(raised.value.next_step)


def test_a_setting_behind_a_reference_is_refused_when_the_probe_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    register_connection(replace(S3, verify_tls="${VERIFY}"))  # type: ignore[arg-type]
    declared = rows_of("lake")
    monkeypatch.setenv("VERIFY", "false")
    assert "with verify_tls = false" in str(verdicts(declared.run()))


def test_a_postgres_url_has_what_the_fields_say_and_the_default_of_tls() -> None:
    declared = PostgresConnection(
        name="w", host="db.example", database="a/b", user="eve", password="${PASSWORD}"
    )
    found = source_of(expand_connection(declared, env={"PASSWORD": "p@${X}/%41"}))
    from psycopg.conninfo import conninfo_to_dict

    assert conninfo_to_dict(found.url) == {  # type: ignore[attr-defined]
        **{"host": "db.example", "dbname": "a/b", "user": "eve", "password": "p@${X}/%41"},
        **{"sslmode": "verify-full", "sslrootcert": "system"},
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"host": "::1", "port": 3307, "user": "é", "password": "${PASSWORD}", "database": "d b"},
            {"host": "::1", "port": 3307, "user": "é", "password": "a:b@c/${X}", "database": "d b"},
        ),
        ({"host": "db.example"}, {"mode": "verify-full", "port": 3306}),
        ({"host": "localhost"}, {"mode": "prefer"}),
        (
            {"host": "localhost", "ssl_root_cert": "/ca.pem"},
            {"mode": "verify-ca", "authority": "/ca.pem"},
        ),
        (
            {"url": "mariadb://u@h/d?ssl-mode=DISABLED&connect_timeout=3"},
            {"mode": "disable", "connect_timeout": 3},
        ),
        ({"url": "mysql://u@localhost/d?unix_socket=/run/m%20y.sock"}, {"unix_socket": "/run/m y.sock"}),
    ],
)
def test_a_mysql_url_has_what_the_fields_say(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    from ematix_probe.environment import resolve
    from ematix_probe.sources.mysql_address import parse_address

    declared = MySQLConnection(name="w", **fields)
    found = source_of(expand_connection(declared, env={"PASSWORD": "a:b@c/${X}"}))
    address = parse_address(resolve(found.url))  # type: ignore[attr-defined]
    assert {name: getattr(address, name) for name in expected} == expected


def test_a_rest_catalog_gets_its_address_keys_and_the_namespace() -> None:
    connection = IcebergConnection(
        name="lake",
        uri="https://catalog/x",
        warehouse="w",
        credential="id:secret",
        namespace="raw.shop",
        region="eu-west-1",
        access_key_id="AKIA",
        secret_access_key="geheim",
        properties={"scope": "all"},
    )
    found = source_of(connection)
    assert dict(found.properties) == {  # type: ignore[attr-defined]
        **{"type": "rest", "uri": "https://catalog/x", "warehouse": "w", "credential": "id:secret"},
        "oauth2-server-uri": "https://catalog/x/v1/oauth/tokens",
        **{"client.region": "eu-west-1", "client.access-key-id": "AKIA"},
        **{"client.secret-access-key": "geheim", "scope": "all"},
    }
    assert "geheim" not in repr(found)
    from ematix_flow.probes import _in_namespace

    assert _in_namespace(Subject("orders", "daily"), connection) == Subject("orders", "raw.shop.daily")
