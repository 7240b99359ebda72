"""A Kafka connection as settings of librdkafka and of Java's client; nothing is connected to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.kafka.backend import KafkaStreamBackend
from ematix_flow.backends.kafka.java_settings import jaas_line, spark_options
from ematix_flow.backends.kafka.settings import client_settings, msk_token
from ematix_flow.engine.jvm.jars import jar_lock
from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections.brokers import KafkaConnection

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"


def made(**fields: Any) -> KafkaConnection:
    return KafkaConnection(**{"name": "k", "bootstrap_servers": "a:1,b:2", **fields})


def files(folder: Path, key: str = KEY) -> dict[str, str]:
    (folder / "ca.pem").write_text(f"remarks of openssl\n{CERTIFICATE}\nmore\n{CERTIFICATE}\n")
    (folder / "cert.pem").write_text(CERTIFICATE)
    (folder / "key.pem").write_text(key)
    names = {"tls_ca_path": "ca.pem", "tls_cert_path": "cert.pem", "tls_key_path": "key.pem"}
    return {field: str(folder / name) for field, name in names.items()}


def test_a_plain_connection_names_its_servers_only() -> None:
    settings = client_settings(made(client_id="me"))
    assert settings["bootstrap.servers"] == "a:1,b:2"
    assert settings["security.protocol"] == "PLAINTEXT"
    assert settings["client.id"] == "me"
    assert spark_options(made()) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.client.id": "ematix-flow",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("fields", "mechanism", "module"),
    [
        ({"sasl_plain_username": "u", "sasl_plain_password": "p"}, "PLAIN", "plain.PlainLoginModule"),
        (
            {"sasl_scram_username": "u", "sasl_scram_password": "p", "sasl_scram_mechanism": "sha-256"},
            "SCRAM-SHA-256",
            "scram.ScramLoginModule",
        ),
        ({"sasl_scram_username": "u", "sasl_scram_password": "p"}, "SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_a_login_is_written_for_both_clients(fields: dict[str, str], mechanism: str, module: str) -> None:
    settings, options = client_settings(made(**fields)), spark_options(made(**fields))
    assert settings["sasl.mechanism"] == options["kafka.sasl.mechanism"] == mechanism
    assert (settings["sasl.username"], settings["sasl.password"]) == ("u", "p")
    assert options["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="u" password="p";'
    )


@pytest.mark.parametrize(
    ("password", "quoted"),
    [('a"b', r'"a\"b"'), ("a\\b", r'"a\\b"'), ("a;b'c", '"a;b\'c"'), ('\\"', r'"\\\""'), ("", '""')],
)
def test_a_password_of_any_text_stays_one_value_for_java(password: str, quoted: str) -> None:
    assert jaas_line("Module", password=password) == f"Module required password={quoted};"


def test_certificates_go_to_java_as_text_and_to_librdkafka_as_paths(tmp_path: Path) -> None:
    locked = KEY.replace("PRIVATE", "ENCRYPTED PRIVATE")
    given = made(**files(tmp_path, locked), tls_key_password="secret")
    settings, options = client_settings(given), spark_options(given)
    assert settings["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert settings["ssl.key.password"] == options["kafka.ssl.key.password"] == "secret"
    assert options["kafka.ssl.truststore.type"] == options["kafka.ssl.keystore.type"] == "PEM"
    assert options["kafka.ssl.truststore.certificates"] == f"{CERTIFICATE}\n{CERTIFICATE}"
    assert options["kafka.ssl.keystore.certificate.chain"] == CERTIFICATE
    assert options["kafka.ssl.keystore.key"] == locked


def test_a_key_that_java_cannot_read_is_reported_with_the_command_that_turns_it(tmp_path: Path) -> None:
    old = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
    given = made(**files(tmp_path, old))
    assert "ssl.key.location" in client_settings(given)
    with pytest.raises(ConfigError, match="RSA PRIVATE KEY") as failure:
        spark_options(given)
    assert "openssl pkcs8" in str(failure.value.next_step)


def test_a_check_that_is_turned_off_is_off_for_librdkafka() -> None:
    settings = client_settings(made(tls_verify=False))
    assert settings["security.protocol"] == "SSL"
    assert settings["enable.ssl.certificate.verification"] is False


def test_amazons_login_is_a_token_for_librdkafka_and_a_class_for_java(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = made(msk_iam_region="eu-west-1")
    settings, options = client_settings(given), spark_options(given)
    assert settings["security.protocol"] == options["kafka.security.protocol"] == "SASL_SSL"
    assert settings["sasl.mechanism"] == "OAUTHBEARER"
    assert options["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert options["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert options["kafka.sasl.client.callback.handler.class"].endswith("IAMClientCallbackHandler")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    token, ends = settings["oauth_cb"]("")
    assert token
    assert ends > 1_700_000_000
    assert (token, ends) != msk_token("us-east-1", "")


def test_amazons_login_brings_its_jars_and_no_other_connection_does() -> None:
    assert KafkaStreamBackend(made()).jar_groups == ("kafka",)
    groups = KafkaStreamBackend(made(msk_iam_region="eu-west-1")).jar_groups
    assert {"kafka", "msk"} <= set(groups)
    assert "aws-msk-iam-auth" in {artifact.name for artifact in jar_lock().artifacts_of(groups)}


def test_properties_go_to_the_client_that_knows_them() -> None:
    given = made(
        properties={
            "fetch.max.wait.ms": "50",
            "max.poll.records": "9",
            "socket.keepalive.enable": "true",
            "librdkafka.queued.min.messages": "10",
            "java.check.crcs": "false",
            "ssl.endpoint.identification.algorithm": "",
            "group.id": "x",
        }
    )
    settings, options = client_settings(given), spark_options(given)
    assert settings["fetch.wait.max.ms"] == options["kafka.fetch.max.wait.ms"] == "50"
    assert settings["queued.min.messages"] == "10"
    assert settings["ssl.endpoint.identification.algorithm"] == "none"
    assert options["kafka.check.crcs"] == "false"
    assert options["kafka.max.poll.records"] == "9"
    assert "max.poll.records" not in settings
    assert "check.crcs" not in settings
    assert "kafka.group.id" not in options  # Spark names its groups itself
    assert "kafka.queued.min.messages" not in options


def test_properties_win_over_the_defaults_of_a_role() -> None:
    given = made(properties={"linger.ms": "500"})
    assert client_settings(given, {"linger.ms": 20, "acks": "all"})["linger.ms"] == "500"
