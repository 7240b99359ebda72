"""URLs: their meaning for each kind, and passwords that are not encoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from ematix_flow.errors import ConfigError, DeclarationError
from ematix_flow.spec.connections import (
    MySQLConnection,
    PostgresConnection,
    RedshiftConnection,
    connection_from_mapping,
    dsn_parts,
    format_from_path,
    libpq_parameters,
    libpq_uri,
)

PASSWORDS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(
    lambda p: "${" not in p and not ("?" in p and "=" in p) and "%" not in p
)


@pytest.mark.parametrize(
    ("url", "kind", "fields"),
    [
        ("postgres://h/d", "postgres", {"url": "postgres://h/d"}),
        ("postgresql+psycopg://h/d", "postgres", {}),
        ("host=h dbname=d password='it\\'s'", "postgres", {}),
        ("postgres://${WAREHOUSE_DSN}", "postgres", {"url": "postgres://${WAREHOUSE_DSN}"}),
        ("mysql+pymysql://u@h/d", "mysql", {}),
        ("mariadb://h/d", "mysql", {}),
        ("sqlite:///data/a.db", "sqlite", {"path": "/data/a.db"}),
        ("sqlite:////data/a.db", "sqlite", {"path": "/data/a.db"}),
        ("sqlite://a.db", "sqlite", {"path": "a.db"}),
        ("sqlite://", "sqlite", {"path": ":memory:"}),
        ("sqlite:///odd@name:1.db", "sqlite", {"path": "/odd@name:1.db"}),
        ("duckdb:///data/w.duckdb", "duckdb", {"path": "/data/w.duckdb"}),
        ("duckdb://", "duckdb", {"path": ":memory:"}),
        ("w.duckdb", "duckdb", {"path": "w.duckdb"}),
        ("file:///data/in.csv", "object_store_local", {"path": "/data/in.csv", "format": "csv"}),
        ("file://rel/my%20dir?format=orc", "object_store_local", {"path": "rel/my dir", "format": "orc"}),
        ("s3://b/pre/fix?region=eu", "object_store_s3", {"bucket": "b", "prefix": "pre/fix", "region": "eu"}),
        ("s3a://b", "object_store_s3", {"bucket": "b", "prefix": ""}),
        ("s3://AK:se/cr+et@b/p", "object_store_s3", {"access_key_id": "AK", "secret_access_key": "se/cr+et"}),
        ("delta:///lake", "delta_local", {"path": "/lake"}),
        ("delta+s3://b/lake", "delta_s3", {"bucket": "b", "prefix": "lake"}),
        (
            "kafka://a:9092,b:9092?group_id=g",
            "kafka",
            {"bootstrap_servers": "a:9092,b:9092", "group_id": "g"},
        ),
        ("kafka+ssl://u:p@a:9093", "kafka", {"sasl_plain_username": "u", "security_protocol": "sasl_ssl"}),
        ("amqp://guest:guest@h//", "rabbitmq", {"amqp_url": "amqp://guest:guest@h//", "url": ""}),
        ("amqps://h", "rabbitmq", {"amqp_url": "amqps://h"}),
        ("pubsub://my-project?anonymous_auth=true", "pubsub", {"anonymous_auth": True}),
        ("kinesis://events?region=eu-west-1", "kinesis", {"stream_name": "events", "region": "eu-west-1"}),
        ("glue://reg?region=eu", "glue_schema_registry", {"registry_name": "reg"}),
        (
            "snowflake://u:p%40w@acct.eu/db/sch?warehouse=wh&role=r",
            "snowflake",
            {"account": "acct.eu", "password": "p@w", "database": "db", "schema": "sch", "warehouse": "wh"},
        ),
        (
            "bigquery://proj/ds?location=EU",
            "bigquery",
            {"project": "proj", "dataset": "ds", "location": "EU"},
        ),
        ("redshift://u:p@h/d", "redshift", {"host": "h", "port": 5439, "database": "d"}),
        ("redshift://u:p@h:5500/d", "redshift", {"port": 5500}),
        ("iceberg+https://cat/api?warehouse=w", "iceberg", {"uri": "https://cat/api", "warehouse": "w"}),
        ("iceberg:///wh", "iceberg", {"catalog_type": "hadoop", "warehouse": "/wh"}),
    ],
)
@pytest.mark.parametrize("key", ["url", "dsn"])
def test_a_url_says_the_kind_and_the_fields(url: str, kind: str, fields: dict[str, object], key: str) -> None:
    connection = connection_from_mapping("x", {key: url})
    assert connection.kind == kind
    assert {name: getattr(connection, name) for name in fields} == fields


@pytest.mark.parametrize("kind", ["sqlite", "kafka", "rabbitmq", "object_store_s3", "snowflake", "iceberg"])
def test_a_url_that_is_a_reference_waits_for_its_value(kind: str) -> None:
    assert connection_from_mapping("x", {"kind": kind, "url": "${SOMEWHERE}"}).url == "${SOMEWHERE}"


def test_an_explicit_field_wins_over_the_url() -> None:
    connection = connection_from_mapping("x", {"url": "s3://b/p?region=eu", "region": "us"})
    assert connection.region == "us"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({}, "neither kind nor url"),
        (
            {"kind": "postgress", "url": "postgres://h"},
            "connection kind 'postgress'. Did you mean 'postgres'",
        ),
        ({"kind": 3}, "connection kind 3"),
        ({"url": "gopher://h"}, "is unknown: its url has no known scheme"),
        ({"url": "${X}"}, "its url is a reference"),
        ({"url": "postgres://h", "dsn": "postgres://h"}, "has url and dsn"),
        ({"url": "s3://b?regoin=eu"}, "no field 'regoin'. Did you mean 'region'"),
        ({"url": "https://h"}, "no known scheme"),
    ],
)
def test_a_table_that_makes_no_connection_is_refused(mapping: dict[str, object], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        connection_from_mapping("x", mapping)


def test_a_password_of_special_characters_is_read_whole() -> None:
    parts = dsn_parts(PostgresConnection(name="x", url="postgres://u:p@ss/w:rd@host/db"))
    assert (parts.user, parts.password, parts.host, parts.database) == ("u", "p@ss/w:rd", "host", "db")


@given(PASSWORDS)
def test_any_raw_password_is_read_back_from_a_url(password: str) -> None:
    parts = dsn_parts(
        PostgresConnection(name="x", url=f"postgres://u:{password}@h.example:6432/db?sslmode=require")
    )
    assert parts.password == password
    assert (parts.user, parts.hosts, parts.database) == ("u", (("h.example", 6432),), "db")
    assert dict(parts.options) == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgres://h", (None, None, (("h", None),), None, {})),
        ("postgres://u%40x:p%2Fw@h:1/d%20b", ("u@x", "p/w", (("h", 1),), "d b", {})),
        ("postgres://u@srv:pw@h/d", ("u@srv", "pw", (("h", None),), "d", {})),
        ("postgres://u@[::1]:5/d", ("u", None, (("::1", 5),), "d", {})),
        ("postgres://a:1,b:2/d", (None, None, (("a", 1), ("b", 2)), "d", {})),
        ("postgres:///d?host=/run/pg&user=me", ("me", None, (("/run/pg", None),), "d", {})),
        (
            "postgres://u:p@h/d?application_name=a@b",
            ("u", "p", (("h", None),), "d", {"application_name": "a@b"}),
        ),
        ("postgres://u:p?w@h/d?options=a@b", ("u", "p?w", (("h", None),), "d", {"options": "a@b"})),
        ("postgres://h/d?user=a@b", ("a@b", None, (("h", None),), "d", {})),
        ("host=h port=5 user=u password='a b' dbname=d", ("u", "a b", (("h", 5),), "d", {})),
    ],
)
def test_the_parts_of_a_postgres_url(url: str, expected: tuple[object, ...]) -> None:
    parts = dsn_parts(PostgresConnection(name="x", url=url))
    assert (parts.user, parts.password, parts.hosts, parts.database, dict(parts.options)) == expected


def test_fields_replace_parts_of_the_url() -> None:
    connection = PostgresConnection(
        name="x", url="postgres://u:old@h:1/d", password="50%41", database="other", ssl_root_cert="/ca"
    )
    parts = dsn_parts(connection)
    assert (parts.user, parts.password, parts.database) == ("u", "50%41", "other")
    assert dict(parts.options) == {"sslrootcert": "/ca"}


def test_a_port_that_is_no_number_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="port that is not a number") as caught:
        dsn_parts(PostgresConnection(name="x", url="postgres://user:hunter2/db"))
    assert "hunter2" not in str(caught.value)


def test_parts_are_taken_from_expanded_connections_only() -> None:
    with pytest.raises(ConfigError, match="url of connection 'x' is not expanded"):
        dsn_parts(PostgresConnection(name="x", url="${DSN}"))


def test_mysql_and_redshift_have_the_same_parts() -> None:
    mysql = dsn_parts(MySQLConnection(name="x", url="mysql://u:p@h:3307/d?charset=utf8mb4"))
    assert (mysql.port, dict(mysql.options)) == (3307, {"charset": "utf8mb4"})
    redshift = dsn_parts(RedshiftConnection(name="x", host="h", database="d", user="u", password="p"))
    assert (redshift.host, redshift.port) == ("h", 5439)


@pytest.mark.parametrize(
    ("url", "sslmode"),
    [
        ("postgres://localhost/d", None),
        ("postgres://127.0.0.1/d", None),
        ("postgres://[::1]/d", None),
        ("postgres:///d", None),
        ("postgres:///d?host=/run/pg", None),
        ("postgres://db.example/d", "verify-full"),
        ("postgres://localhost,db.example/d", "verify-full"),
        ("postgres://db.example/d?sslmode=disable", "disable"),
    ],
)
def test_a_server_elsewhere_is_verified_by_default(url: str, sslmode: str | None) -> None:
    assert libpq_parameters(PostgresConnection(name="x", url=url)).get("sslmode") == sslmode


@given(PASSWORDS.filter(lambda p: "\x00" not in p))
def test_libpq_reads_our_uri_as_we_meant_it(password: str) -> None:
    connection = PostgresConnection(name="x", url=f"postgres://u:{password}@a:1,b:2/my db?sslmode=disable")
    expected = {"user": "u", "password": password, "host": "a,b", "port": "1,2", "dbname": "my db"}
    assert conninfo_to_dict(libpq_uri(connection)) == {**expected, "sslmode": "disable"}


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("s3://bucket/year=2026/events.csv.gz", "csv"),
        ("logs.ndjson", "json_lines"),
        ("data.parquet", "parquet"),
        ("DATA.PQ", "parquet"),
        ("a/b.tsv.zst", "csv"),
        ("a.json.bz2", "json_lines"),
        ("a.jsonl.lz4", "json_lines"),
        ("a.orc.snappy", "orc"),
        ("a.orc.zstd", "orc"),
        ("https://h/a.csv.gz?sig=x/y.orc", "csv"),
        ("folder.csv/file", None),
        ("folder", None),
        ("x.gz", None),
        ("", None),
    ],
)
def test_a_paths_extension_says_its_format(path: str, format: str | None) -> None:
    assert format_from_path(path) == format
