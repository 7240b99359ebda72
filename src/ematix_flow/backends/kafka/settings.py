"""The settings of a connection for both clients: librdkafka, and Java's as Spark's ``kafka.*`` options.

``properties`` of a connection go to both clients, under the name that each of them uses; a property that
begins with ``java.`` or ``librdkafka.`` goes to that client only. Properties override all other settings.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematix_flow.backends.kafka.certificates import pem_key, pem_text, server_certificates
from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections.brokers import KafkaConnection

DEFAULT_GROUP = "ematix-flow"
_CLIENT_ID = "ematix-flow"
_QUIET = 0  # important messages become our errors

# Java's name -> librdkafka's name; None where librdkafka has no such setting.
_LIBRDKAFKA_NAMES: Mapping[str, str | None] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "sasl.jaas.config": None,
    "sasl.client.callback.handler.class": None,
    "sasl.login.callback.handler.class": None,
    "sasl.login.class": None,
    "ssl.truststore.location": None,
    "ssl.truststore.password": None,
    "ssl.truststore.type": None,
    "ssl.truststore.certificates": None,
    "ssl.keystore.type": None,
    "ssl.keystore.key": None,
    "ssl.keystore.certificate.chain": None,
    "ssl.protocol": None,
    "ssl.provider": None,
    "ssl.enabled.protocols": None,
    "ssl.engine.factory.class": None,
    "default.api.timeout.ms": None,
    "max.poll.records": None,
    "buffer.memory": None,
    "max.block.ms": None,
    "metric.reporters": None,
    "auto.include.jmx.reporter": None,
}
# librdkafka's name -> Java's name for the same setting; all other names are the same in both, or unknown to
# Java, which logs a warning and ignores them.
_JAVA_NAMES: Mapping[str, str | None] = {
    **{ours: java for java, ours in _LIBRDKAFKA_NAMES.items() if ours is not None},
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

# Options that Spark's connector uses for planning only, not for reading.
_PLANNING_OPTIONS = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "failOnDataLoss",
)
_PEM_TEXTS = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}


def group_of(connection: KafkaConnection) -> str:
    """The consumer group that shows a stream's progress."""
    return connection.group_id or DEFAULT_GROUP


def client_settings(connection: KafkaConnection, role: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """librdkafka's settings, with the defaults ``role`` of a client. They hold secrets: never show them."""
    settings: dict[str, Any] = {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": connection.client_id or _CLIENT_ID,
        "security.protocol": connection.protocol.upper(),
        "socket.connection.setup.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 2_000,
        "log_level": _QUIET,
        "log.queue": True,  # nobody reads the queue; otherwise the lines go to stderr
    }
    if connection.sasl_plain_username:
        settings["sasl.mechanism"] = "PLAIN"
        settings["sasl.username"] = connection.sasl_plain_username
        settings["sasl.password"] = connection.sasl_plain_password
    elif connection.sasl_scram_username:
        settings["sasl.mechanism"] = _scram_mechanism(connection)
        settings["sasl.username"] = connection.sasl_scram_username
        settings["sasl.password"] = connection.sasl_scram_password
    elif connection.msk_iam_region:
        settings["sasl.mechanism"] = "OAUTHBEARER"
        settings["oauth_cb"] = functools.partial(msk_token, connection.msk_iam_region)
    if _has_tls(connection):
        settings |= _librdkafka_tls(connection)
    settings |= role or {}
    for name, value in connection.properties.items():
        if name.startswith("java."):
            continue
        plain = name.removeprefix("librdkafka.")
        ours = plain if plain != name else _LIBRDKAFKA_NAMES.get(name, name)
        if ours is not None:
            settings[ours] = _librdkafka_value(ours, value)
    return {name: str(value) if isinstance(value, str) else value for name, value in settings.items()}


def portable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings for another machine: certificates and key as text instead of local paths."""
    carried = dict(settings)
    for name, text in _PEM_TEXTS.items():
        if name in carried and Path(carried[name]).is_file():  # not a folder or the word "probe"
            carried[text] = Path(carried.pop(name)).read_text()
    return carried


def librdkafka_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Spark's source options as librdkafka's settings; None when one of them has no equivalent.

    Options that only plan batches are left out.
    """
    found: dict[str, str] = {}
    for name, value in options.items():
        if name in _PLANNING_OPTIONS or name.startswith("fetchOffset."):
            continue
        plain = name.removeprefix("kafka.")
        ours = _LIBRDKAFKA_NAMES.get(plain, plain)
        if plain == name or ours is None:
            return None
        found[ours] = _librdkafka_value(ours, value)
    return found


def spark_options(connection: KafkaConnection) -> dict[str, str]:
    """The options of Spark's connector for Java's client. They contain secrets: never show them."""
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "client.id": connection.client_id or _CLIENT_ID,
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
        settings["sasl.mechanism"] = _scram_mechanism(connection)
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
    if _has_tls(connection):
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


def msk_token(region: str, _config: str) -> tuple[str, float]:
    """A token that shows this process's AWS identity to an Amazon MSK broker, and its expiry time."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    token, ends_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return token, ends_ms / 1000


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _scram_mechanism(connection: KafkaConnection) -> str:
    return f"SCRAM-{(connection.sasl_scram_mechanism or 'sha-512').upper()}"


def _has_tls(connection: KafkaConnection) -> bool:
    return connection.protocol.endswith("ssl")


def _librdkafka_tls(connection: KafkaConnection) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, field in (
        ("ssl.ca.location", "tls_ca_path"),
        ("ssl.certificate.location", "tls_cert_path"),
        ("ssl.key.location", "tls_key_path"),
    ):
        if getattr(connection, field):
            settings[name] = str(_existing_file(connection, field))
    if connection.tls_key_password:
        settings["ssl.key.password"] = connection.tls_key_password
    if not connection.tls_verify:
        settings["enable.ssl.certificate.verification"] = False
        settings["ssl.endpoint.identification.algorithm"] = "none"
    return settings


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
        settings["ssl.truststore.certificates"] = pem_text(_existing_file(connection, "tls_ca_path"))
    if connection.tls_cert_path:
        settings["ssl.keystore.type"] = "PEM"
        settings["ssl.keystore.certificate.chain"] = pem_text(_existing_file(connection, "tls_cert_path"))
        key = pem_key(
            _existing_file(connection, "tls_key_path"), connection.name, connection.tls_key_password
        )
        settings["ssl.keystore.key"] = key
        if connection.tls_key_password and "ENCRYPTED" in key:
            settings["ssl.key.password"] = connection.tls_key_password
    return settings


def _librdkafka_value(name: str, value: str) -> str:
    """Java disables host name checks with an empty text, librdkafka with the word ``none``."""
    return value or "none" if name == "ssl.endpoint.identification.algorithm" else value


def _existing_file(connection: KafkaConnection, field: str) -> Path:
    path = Path(getattr(connection, field)).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"{field} of connection {connection.name!r} is {path}, which is not a file",
            next_step=f"fix the path, or put the file there; this machine must be able to read {field}",
        )
    return path
