"""The settings of a connection for Java's client, as Spark's ``kafka.*`` options."""

from __future__ import annotations

from collections.abc import Mapping

from ematix_flow.backends.kafka.certificates import pem_key, pem_text, server_certificates
from ematix_flow.backends.kafka.settings import (
    CLIENT_ID,
    LIBRDKAFKA_NAMES,
    existing_file,
    has_tls,
    scram_mechanism,
)
from ematix_flow.spec.connections.brokers import KafkaConnection

# librdkafka's name -> Java's name for the same setting; all other names are the same in both, or unknown to
# Java, which logs a warning and ignores them.
_JAVA_NAMES: Mapping[str, str | None] = {
    **{ours: java for java, ours in LIBRDKAFKA_NAMES.items() if ours is not None},
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": None,
    "sasl.password": None,
    "ssl.ca.location": None,
    "ssl.certificate.location": None,
    "ssl.key.location": None,
    "enable.ssl.certificate.verification": None,
    "statistics.interval.ms": None,
    "debug": None,
    "log_level": None,
}
# Settings that Spark's connector sets itself and refuses.
_SPARK_REFUSES = (
    "auto.offset.reset",
    "key.deserializer",
    "value.deserializer",
    "key.serializer",
    "value.serializer",
    "enable.auto.commit",
    "interceptor.classes",
    "group.id",
)


def spark_options(connection: KafkaConnection) -> dict[str, str]:
    """The options of Spark's connector for Java's client. They contain secrets: never show them."""
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": connection.client_id or CLIENT_ID,
        "security.protocol": connection.protocol.upper(),
    }
    if connection.sasl_plain_username:
        settings["sasl.mechanism"] = "PLAIN"
        settings["sasl.jaas.config"] = jaas_line(
            "org.apache.kafka.common.security.plain.PlainLoginModule",
            username=connection.sasl_plain_username,
            password=connection.sasl_plain_password,
        )
    elif connection.sasl_scram_username:
        settings["sasl.mechanism"] = scram_mechanism(connection)
        settings["sasl.jaas.config"] = jaas_line(
            "org.apache.kafka.common.security.scram.ScramLoginModule",
            username=connection.sasl_scram_username,
            password=connection.sasl_scram_password,
        )
    elif connection.msk_iam_region:
        settings["sasl.mechanism"] = "AWS_MSK_IAM"
        settings["sasl.jaas.config"] = jaas_line("software.amazon.msk.auth.iam.IAMLoginModule")
        settings["sasl.client.callback.handler.class"] = (
            "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
        )
    if has_tls(connection):
        settings |= _java_tls(connection)
    for name, value in connection.properties.items():
        if name.startswith("librdkafka."):
            continue
        plain = name.removeprefix("java.")
        theirs = plain if plain != name else _JAVA_NAMES.get(name, name)
        if theirs is not None and theirs not in _SPARK_REFUSES:
            settings[theirs] = value
    return {f"kafka.{name}": str(value) for name, value in settings.items()}


def jaas_line(module: str, **options: str) -> str:
    """The JAAS line of a login module; values may contain quotes and backslashes."""
    given = "".join(f" {name}={_quote(value)}" for name, value in options.items())
    return f"{module} required{given};"


def _java_tls(connection: KafkaConnection) -> dict[str, str]:
    """Certificates and key as text: executors cannot read paths of this machine."""
    settings: dict[str, str] = {}
    if not connection.tls_verify:
        # Java's client cannot skip verification, so it trusts the certificates that the servers present now
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = server_certificates(connection)
        settings["ssl.endpoint.identification.algorithm"] = ""
    elif connection.tls_ca_path:
        settings["ssl.truststore.type"] = "PEM"
        settings["ssl.truststore.certificates"] = pem_text(existing_file(connection, "tls_ca_path"))
    if connection.tls_cert_path:
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.certificate.chain"] = pem_text(existing_file(connection, "tls_cert_path"))
        key = pem_key(existing_file(connection, "tls_key_path"), connection.name, connection.tls_key_password)
        settings["ssl.keystore.key"] = key
        if connection.tls_key_password and "ENCRYPTED" in key:
            settings["ssl.key.password"] = connection.tls_key_password
    return settings


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
