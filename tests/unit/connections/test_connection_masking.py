"""No secret is ever shown: not by repr, str, JSON, nor by an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ematix_flow.config.interpolate import expand_connection
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.spec.connections import (
    Connection,
    IcebergConnection,
    KafkaConnection,
    PostgresConnection,
    RabbitMQConnection,
    connection_from_json,
    connection_from_mapping,
    dsn_parts,
    mask_url,
    redact,
    split_url,
)
from ematix_probe.redaction import mask

# each end is a canary, so that a part of the password that leaks is seen too
SECRETS = (
    st.text(st.characters(exclude_categories=("Cs",)))
    .filter(lambda s: "${" not in s)
    .map(lambda s: f"zq9{s}9qz")
)


def outputs(connection: Connection) -> list[str]:
    return [
        repr(connection),
        str(connection),
        json.dumps(connection.to_json(), ensure_ascii=False),
        f"{[connection]}",
    ]


def shows(text: str) -> bool:
    return "zq9" in text or "9qz" in text


@given(SECRETS)
def test_a_password_in_a_url_is_never_shown(secret: str) -> None:
    for mapping in (
        {"url": f"postgres://u:{secret}@h:5432/db?sslmode=require"},
        {"url": f"mysql://u:{secret}@h/db"},
        {"kind": "rabbitmq", "amqp_url": f"amqp://u:{secret}@h/vhost"},
        {"kind": "schema_registry", "url": f"https://u:{secret}@h"},
        {"kind": "kafka", "bootstrap_servers": "h:1", "schema_registry_url": f"http://u:{secret}@h"},
        {"kind": "object_store_s3", "bucket": "b", "endpoint": f"http://u:{secret}@h"},
    ):
        assert not [text for text in outputs(connection_from_mapping("x", mapping)) if shows(text)]


@given(SECRETS)
def test_a_secret_field_is_never_shown(secret: str) -> None:
    for kind, rest, name in (
        ("postgres", {"host": "h"}, "password"),
        ("kafka", {"bootstrap_servers": "h", "sasl_plain_username": "u"}, "sasl_plain_password"),
        ("kafka", {"bootstrap_servers": "h"}, "tls_key_password"),
        ("kinesis", {"stream_name": "s", "access_key_id": "k"}, "secret_access_key"),
        ("delta_s3", {"bucket": "s", "secret_access_key": "k"}, "access_key_id"),
        ("schema_registry", {"url": "http://h", "basic_auth_user": "u"}, "basic_auth_password"),
        ("snowflake", {"account": "a", "user": "u"}, "private_key"),
        ("iceberg", {"uri": "http://h"}, "token"),
        ("iceberg", {"uri": "http://h"}, "credential"),
    ):
        connection = connection_from_mapping("x", {"kind": kind, **rest, name: secret})
        assert not [text for text in outputs(connection) if shows(text)]


@given(SECRETS)
def test_an_expanded_secret_is_not_shown_even_when_it_looks_like_a_reference(secret: str) -> None:
    connection = PostgresConnection(name="x", url="postgres://u:${PW}@h/d", password="${PW}")
    for value in (secret, "${zq9}", "${zq9:-9qz}"):
        expanded = expand_connection(connection, env={"PW": value})
        assert not [text for text in outputs(expanded) if shows(text)]
        assert not shows(repr(dsn_parts(expanded)))


@given(
    SECRETS,
    st.sampled_from(["{}", "u:{}@h", "x://{}", "postgres://u:{}", "s3://k:{}@", "kafka://u:{}@h?nope=1"]),
)
def test_an_error_about_a_url_never_shows_its_password(secret: str, shape: str) -> None:
    for kind in ("postgres", "kafka", "object_store_s3", "redshift", None):
        mapping = (
            {"url": shape.format(secret)} if kind is None else {"kind": kind, "url": shape.format(secret)}
        )
        try:
            connection = connection_from_mapping("x", mapping)
            dsn_parts(connection)
        except FlowError as error:
            assert not shows(str(error))
            assert not shows(json.dumps(error.to_json()))


def test_passwords_in_queries_and_keyword_strings_are_masked() -> None:
    assert mask_url("postgres:///d?host=/run&password=pw&sslmode=disable") == (
        "postgres:///d?host=/run&password=***&sslmode=disable"
    )
    assert mask_url("host=h password='a b\\'c' dbname=d") == "host=h password=*** dbname=d"
    assert mask_url("host=h password='a b") == "***"
    assert mask_url("host=h password=a://b@c dbname=d") == "host=h password=*** dbname=d"


def test_what_stands_for_a_port_and_is_none_is_masked() -> None:
    assert mask_url("postgres://user:hunter2/db") == "postgres://user:***/db"


@pytest.mark.parametrize(
    "url",
    [
        "${DSN}",
        "postgres://${DSN}",
        "postgres://u:${PW}@${HOST}:${PORT}/${DB}?sslmode=${MODE}",
        "postgres://u:${vault:a@b/c#d}@h/d",
        "postgres://u:${A}${B}@h/d",
        "postgres://h/d?password=${PW}",
        "host=h password=${PW}",
        "sqlite:///a.db",
    ],
)
def test_references_stay_readable(url: str) -> None:
    assert mask_url(url) == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://u:${PW:-hunter2}@h/d", "postgres://u:${PW:-***}@h/d"),
        ("postgres://u:x${PW}@h/d", "postgres://u:***@h/d"),
        ("${DSN:-postgres://u:hunter2@h/d}", "${DSN:-postgres://u:***@h/d}"),
        ("postgres://${DSN:-u:hunter2@h/d}", "postgres://${DSN:-u:***@h/d}"),
        ("postgres://${HOST:-localhost}/d", "postgres://${HOST:-localhost}/d"),
    ],
)
def test_the_default_of_a_reference_is_no_hiding_place(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_pieces_of_a_url_mask_themselves() -> None:
    assert "hunter2" not in repr(split_url("postgres://u:hunter2@h/d"))


def test_properties_are_masked_by_name_and_content() -> None:
    kafka = KafkaConnection(
        name="k",
        bootstrap_servers="h",
        properties={
            "ssl.keystore.password": "pw-one",
            "sasl.jaas.config": "x password=pw-two;",
            "other": "a password=pw-three",
            "fetch.min.bytes": 5,
        },
    )
    assert "pw-" not in repr(kafka)
    assert "'fetch.min.bytes': '5'" in repr(kafka)
    iceberg = IcebergConnection(name="i", uri="http://h", properties={"s3.secret-access-key": "pw-four"})
    assert "pw-" not in json.dumps(iceberg.to_json())
    assert dict(connection_from_json(iceberg.to_json(reveal=True)).properties) == {  # type: ignore[attr-defined]
        "s3.secret-access-key": "pw-four"
    }


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("password", "x", "***"),
        ("password", "${X}", "${X}"),
        ("sasl_scram_password", "x", "***"),
        ("access_key_id", "AKIA", "***"),
        ("amqp_url", "amqp://u:p@h", "amqp://u:***@h"),
        ("message_key_column", "id", "id"),
        ("tls_key_path", "/k.pem", "/k.pem"),
        ("port", 5432, 5432),
        ("password", None, None),
        ("group_id", "g", "g"),
    ],
)
def test_redact_goes_by_the_fields_name(field: str, value: object, shown: object) -> None:
    assert redact(field, value) == shown


def test_an_expanded_secret_is_masked_in_later_errors() -> None:
    expand_connection(
        RabbitMQConnection(name="mq", amqp_url="amqp://u:${MQ_PW}@h"), env={"MQ_PW": "correct horse/battery"}
    )
    assert "battery" not in str(FlowError("login failed with correct horse/battery"))


def test_a_password_that_is_also_the_user_does_not_blank_every_message() -> None:
    expand_connection(PostgresConnection(name="x", url="postgres://postgres:postgres@localhost/postgres"))
    assert str(FlowError("no such kind: postgres")) == "no such kind: postgres"


def test_a_masked_connection_is_not_used() -> None:
    masked = connection_from_json(PostgresConnection(name="x", url="postgres://u:pw@h/d").to_json())
    with pytest.raises(FlowError, match="is masked, so the secret is lost"):
        expand_connection(masked)


def test_a_declaration_error_shows_no_value_of_another_field() -> None:
    with pytest.raises(DeclarationError) as caught:
        PostgresConnection(name="x", url="postgres://u:hunter2@h/d", sslmod="require")  # type: ignore[call-arg]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "cannot make the folder /etc/passwd: File exists",
        "cannot read '/run/secrets/db_password: Permission denied'",
        "/passwd: Not a directory",
    ],
)
def test_a_file_whose_name_sounds_secret_may_be_complained_about(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "password: zq9",
        "passwd: zq9 File exists",
        "passwd=zq9",
        '{"passwd": "zq9"}',
        "{'db_password': 'zq9'}",
        '{"token":"a\\"zq9"}',
        "/etc/passwd: zq9",
        "/etc/passwd=zq9",
        "vault /kv/app/password: zq9",
        "secret/password: zq9",
        "postgres://h/db?password=zq9",
    ],
)
def test_what_is_assigned_to_a_secret_word_stays_masked(text: str) -> None:
    assert "zq9" not in mask(text)


def test_a_secret_in_json_is_masked_within_its_quotes() -> None:
    assert mask('{"passwd": "hunter2", "n": 1}') == '{"passwd": "***", "n": 1}'
    assert mask('{"passwd": "${DB_PASSWORD}"}') == '{"passwd": "${DB_PASSWORD}"}'


def test_the_systems_words_after_a_word_that_is_no_path_stay_masked() -> None:
    assert mask("password: File exists") == "password: *** exists"


@pytest.mark.parametrize(
    "advice",
    [
        "export DB_PASSWORD=…   or give a default with  ${DB_PASSWORD:-…}",
        "set it, as in  export API_TOKEN=...",
        'write  password="…"',
    ],
)
def test_a_gap_to_fill_in_is_no_secret(advice: str) -> None:
    assert mask(advice) == advice


@pytest.mark.parametrize("text", ["export DB_PASSWORD=…hidden", "password=-…x", "token='...s3cret'"])
def test_a_value_that_begins_like_a_gap_stays_masked(text: str) -> None:
    assert mask(text).endswith("=***")
