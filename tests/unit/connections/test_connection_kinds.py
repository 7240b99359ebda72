"""Each kind: its fields, its rules, its JSON."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.connections import (
    KINDS,
    BigQueryConnection,
    Connection,
    DeltaLocalConnection,
    DeltaS3Connection,
    DuckDBConnection,
    GlueSchemaRegistryConnection,
    IcebergConnection,
    KafkaConnection,
    KinesisConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    RedshiftConnection,
    SchemaRegistryConnection,
    SnowflakeConnection,
    SQLiteConnection,
    connection_from_json,
    connection_from_mapping,
)

REGISTRY = SchemaRegistryConnection(
    name="sr", url="https://sr:8081", basic_auth_user="u", basic_auth_password="${SR_PASSWORD}"
)
EXAMPLES: list[Connection] = [
    PostgresConnection(
        name="pg", url="postgres://u:${PW}@h/db", sslmode="verify-full", ssl_cert="/c.pem", ssl_key="/k.pem"
    ),
    PostgresConnection(name="pg2", host="h", port=6432, database="d", user="u", password="${PW}"),
    MySQLConnection(name="my", url="mysql://u:${PW}@h/db", sslmode="VERIFY_IDENTITY", ssl_root_cert="/ca"),
    SQLiteConnection(name="lite", path="a.db"),
    DuckDBConnection(name="duck", path=":memory:"),
    DeltaLocalConnection(name="dl", path="/lake"),
    DeltaS3Connection(
        name="ds3",
        bucket="b",
        prefix="p",
        endpoint="http://127.0.0.1:9000",
        access_key_id="${K}",
        secret_access_key="${S}",
    ),
    ObjectStoreLocalConnection(name="ol", path="/files", format="json_lines"),
    ObjectStoreS3Connection(name="os3", bucket="b", region="eu-west-1", format="orc", verify_tls=False),
    IcebergConnection(
        name="ice",
        uri="https://catalog",
        warehouse="w",
        token="${T}",
        properties={"s3.secret-access-key": "${S}"},
    ),
    KafkaConnection(
        name="k",
        bootstrap_servers="a:1,b:2",
        payload_format="avro",
        schema_registry=REGISTRY,
        sasl_scram_username="u",
        sasl_scram_password="${PW}",
        sasl_scram_mechanism="SCRAM-SHA-512",
        tls_ca_path="/ca",
        tls_cert_path="/c",
        tls_key_path="/k",
        properties={"fetch.min.bytes": 1},
    ),
    RabbitMQConnection(name="mq", amqp_url="amqps://u:${PW}@h/vhost", consumer_tag="t"),
    PubSubConnection(name="ps", project_id="p", endpoint="localhost:8085", anonymous_auth=True),
    KinesisConnection(name="ki", stream_name="s", region="us-east-1"),
    REGISTRY,
    GlueSchemaRegistryConnection(name="g", registry_name="r", region="eu-west-1", aws_profile="dev"),
    SnowflakeConnection(name="sf", account="a", user="u", private_key="${PEM}", role="r", schema="s"),
    BigQueryConnection(name="bq", project="p", dataset="d", credentials_path="/key.json"),
    RedshiftConnection(
        name="rs", host="h", database="d", user="u", password="${PW}", s3_staging_dir="s3://b/x"
    ),
]


def test_every_kind_has_an_example_here() -> None:
    assert {type(example) for example in EXAMPLES} == set(KINDS.values())


@pytest.mark.parametrize("connection", EXAMPLES, ids=lambda c: c.name)
def test_a_connection_whose_secrets_are_references_survives_json(connection: Connection) -> None:
    again = connection_from_json(json.loads(json.dumps(connection.to_json())))
    assert again == connection
    assert hash(again) == hash(connection)


@pytest.mark.parametrize("connection", EXAMPLES, ids=lambda c: c.name)
def test_a_connection_survives_pickling(connection: Connection) -> None:
    assert pickle.loads(pickle.dumps(connection)) == connection


def test_an_inline_secret_is_masked_in_json_unless_revealed() -> None:
    connection = SnowflakeConnection(name="sf", account="a", user="u", password="hunter2!")
    assert connection.to_json()["password"] == "***"
    assert connection_from_json(connection.to_json(reveal=True)) == connection


def test_from_json_on_a_class_refuses_another_kind() -> None:
    value = SQLiteConnection(name="x", path="a.db").to_json()
    assert SQLiteConnection.from_json(value).path == "a.db"
    with pytest.raises(DeclarationError, match="a sqlite connection is not a DuckDBConnection"):
        DuckDBConnection.from_json(value)


def test_paths_to_keys_and_certificates_are_no_secrets() -> None:
    connection = KafkaConnection(
        name="k", bootstrap_servers="h:1", tls_cert_path="/c.pem", tls_key_path="/k.pem"
    )
    assert "/k.pem" in repr(connection)


def test_a_wrong_field_gets_a_did_you_mean_and_the_line() -> None:
    with pytest.raises(
        DeclarationError, match=r"has no field 'bootstrap_server'.*'bootstrap_servers'"
    ) as caught:
        KafkaConnection(name="k", bootstrap_server="h:1")  # type: ignore[call-arg]
    assert caught.value.where is not None
    assert caught.value.where.file == __file__


def test_a_dsn_keyword_points_at_url() -> None:
    with pytest.raises(DeclarationError, match="Did you mean 'url'"):
        PostgresConnection(name="x", dsn="postgres://h/d")  # type: ignore[call-arg]


def test_fields_go_by_keyword() -> None:
    with pytest.raises(DeclarationError, match="by keyword"):
        SQLiteConnection("x", "a.db")  # type: ignore[misc]


def test_a_missing_name_is_reported() -> None:
    with pytest.raises(DeclarationError, match="needs  name="):
        SQLiteConnection(path="a.db")  # type: ignore[call-arg]


def test_a_number_may_come_as_text_and_a_path_as_a_path(tmp_path: Path) -> None:
    redshift = RedshiftConnection(name="r", host="h", port="5440", database="d", user="u", password="p")  # type: ignore[arg-type]
    assert redshift.port == 5440
    assert SQLiteConnection(name="s", path=tmp_path / "a.db").path == str(tmp_path / "a.db")  # type: ignore[arg-type]


def test_a_reference_is_not_checked_before_it_is_expanded() -> None:
    connection = ObjectStoreS3Connection(name="l", bucket="${B}", format="${FMT}", path_style="${PS}")  # type: ignore[arg-type]
    assert connection.format == "${FMT}"


def test_bootstrap_servers_may_be_a_list() -> None:
    connection = KafkaConnection(name="k", bootstrap_servers=["a:1", "b:2"])  # type: ignore[arg-type]
    assert connection.bootstrap_servers == "a:1,b:2"


@pytest.mark.parametrize(
    ("given", "format"),
    [
        ({"path": "/in/events.csv.gz"}, "csv"),
        ({"path": "/in"}, "parquet"),
        ({"path": "/in", "format": "jsonl"}, "json_lines"),
        ({"path": "/in.csv", "format": "orc"}, "orc"),
    ],
)
def test_a_format_is_given_or_follows_from_the_path(given: dict[str, str], format: str) -> None:
    assert ObjectStoreLocalConnection(name="x", **given).format == format  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "fields", "says"),
    [
        (PostgresConnection, {}, "needs url, or host"),
        (PostgresConnection, {"url": "mysql://h/d"}, "begins with mysql://, the scheme of kind mysql"),
        (PostgresConnection, {"url": "localhost/db"}, "no valid scheme"),
        (PostgresConnection, {"url": "postgres://h/d", "sslmode": "on"}, "sslmode is 'on'"),
        (
            PostgresConnection,
            {"url": "postgres://h/d", "ssl_cert": "/c"},
            "ssl_cert is given without ssl_key",
        ),
        (PostgresConnection, {"host": "h", "port": "many"}, "port must be a whole number"),
        (SQLiteConnection, {}, "needs path"),
        (DeltaLocalConnection, {"url": "delta+s3://b/p"}, "the scheme of kind delta_s3"),
        (
            ObjectStoreLocalConnection,
            {"path": "x", "format": "xml"},
            "format is 'xml'; it is one of parquet, csv",
        ),
        (ObjectStoreS3Connection, {"bucket": "b", "access_key_id": "k"}, "without secret_access_key"),
        (ObjectStoreS3Connection, {"bucket": "b", "endpoint": "minio:9000"}, "endpoint needs http://"),
        (DeltaS3Connection, {"bucket": "b", "endpoint": "ftp://minio:9000"}, "endpoint needs http://"),
        (DeltaS3Connection, {"bucket": "s3://b/lake"}, "'s3://b/lake' cannot be the name of a bucket"),
        (DeltaS3Connection, {"bucket": "b", "prefix": "raw//events"}, "prefix 'raw//events' has a part that"),
        (ObjectStoreS3Connection, {"bucket": "b", "prefix": "a/../b"}, "prefix 'a/../b' has a part that"),
        (ObjectStoreS3Connection, {"url": "s3://b/a/./b"}, "prefix 'a/./b' has a part that"),
        (DeltaS3Connection, {"bucket": "b", "path_style": "maybe"}, "path_style must be true or false"),
        (IcebergConnection, {"catalog_type": "hadoop"}, "needs warehouse"),
        (KafkaConnection, {}, "needs bootstrap_servers"),
        (KafkaConnection, {"bootstrap_servers": "h", "payload_format": "xml"}, "payload_format is 'xml'"),
        (
            KafkaConnection,
            {"bootstrap_servers": "h", "schema_registry": "sr", "schema_registry_url": "http://h"},
            "schema_registry or schema_registry_url, not both",
        ),
        (
            KafkaConnection,
            {
                "bootstrap_servers": "h",
                "sasl_plain_username": "u",
                "sasl_plain_password": "p",
                "msk_iam_region": "eu",
            },
            "one way to log in, not sasl_plain_\\* and msk_iam_region",
        ),
        (
            KafkaConnection,
            {"bootstrap_servers": "h", "schema_registry": SQLiteConnection(name="x", path="y")},
            "not a schema registry",
        ),
        (
            KafkaConnection,
            {
                "bootstrap_servers": "h",
                "schema_registry": GlueSchemaRegistryConnection(name="g", registry_name="r", region="eu"),
            },
            "payload_format=  avro or protobuf",
        ),
        (KafkaConnection, {"bootstrap_servers": "h", "security_protocol": "sasl_ssl"}, "no sasl_\\* login"),
        (RabbitMQConnection, {"amqp_url": "http://h"}, "neither with amqp:// nor"),
        (
            GlueSchemaRegistryConnection,
            {"registry_name": "r", "region": "e", "aws_access_key_id": "k"},
            "without",
        ),
        (
            GlueSchemaRegistryConnection,
            {
                "registry_name": "r",
                "region": "e",
                "aws_profile": "p",
                "aws_access_key_id": "k",
                "aws_secret_access_key": "s",
            },
            "aws_profile or access keys, not both",
        ),
        (SnowflakeConnection, {"account": "a", "user": "u"}, "needs password, private_key"),
        (BigQueryConnection, {"project": "p"}, "needs dataset"),
        (RedshiftConnection, {"host": "h", "database": "d", "user": "u"}, "needs password"),
    ],
)
def test_what_cannot_be_is_refused(cls: type[Connection], fields: dict[str, object], says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as caught:
        cls(name="x", **fields)
    assert caught.value.where is not None


@pytest.mark.parametrize(
    ("fields", "protocol"),
    [
        ({}, "plaintext"),
        ({"tls_ca_path": "/ca"}, "ssl"),
        ({"sasl_plain_username": "u", "sasl_plain_password": "p"}, "sasl_plaintext"),
        ({"sasl_scram_username": "u", "sasl_scram_password": "p", "tls_ca_path": "/ca"}, "sasl_ssl"),
        ({"msk_iam_region": "eu-west-1"}, "sasl_ssl"),
        ({"security_protocol": "SSL"}, "ssl"),
    ],
)
def test_kafka_security_follows_from_the_login(fields: dict[str, str], protocol: str) -> None:
    assert KafkaConnection(name="k", bootstrap_servers="h", **fields).protocol == protocol  # type: ignore[arg-type]


def test_path_style_is_for_servers_that_are_not_amazons() -> None:
    def style(**fields: object) -> bool:
        return ObjectStoreS3Connection(name="x", bucket="b", **fields).uses_path_style  # type: ignore[arg-type]

    assert not style()
    assert not style(endpoint="https://s3.amazonaws.com")
    assert style(endpoint="http://127.0.0.1:9000")
    assert not style(endpoint="http://127.0.0.1:9000", path_style=False)


def test_an_address_where_the_name_of_a_registry_is_meant_says_which_field_takes_it() -> None:
    with pytest.raises(DeclarationError) as refused:
        KafkaConnection(name="k", bootstrap_servers="h:1", schema_registry="http://u:secret@host:8081")
    assert "takes the name of a connection of kind schema_registry" in refused.value.what
    assert refused.value.next_step is not None
    assert 'schema_registry_url="http://u:***@host:8081"' in refused.value.next_step


def test_the_registry_of_confluent_is_of_kind_schema_registry() -> None:
    with pytest.raises(DeclarationError, match="Did you mean 'schema_registry'"):
        connection_from_mapping("r", {"kind": "confluent_schema_registry", "url": "http://h"})
