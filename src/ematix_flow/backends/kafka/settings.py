"""The settings of a connection for librdkafka. `java_settings` has those of Java's client.

``properties`` of a connection go to both clients, under the name that each of them uses; a property that
begins with ``java.`` or ``librdkafka.`` goes to that client only. Properties override all other settings.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections.brokers import KafkaConnection

DEFAULT_GROUP = "ematix-flow"
CLIENT_ID = "ematix-flow"
_QUIET = 0  # important messages become our errors

# Java's name -> librdkafka's name; None where librdkafka has no such setting.
LIBRDKAFKA_NAMES: Mapping[str, str | None] = {
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
        "client.id": connection.client_id or CLIENT_ID,
        "security.protocol": connection.protocol.upper(),
        "socket.connection.setup.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 2_000,
        "log_level": _QUIET,
        "log.queue": True,  # this queue is never read; without it the lines go to stderr
    }
    if connection.sasl_plain_username:
        settings["sasl.mechanism"] = "PLAIN"
        settings["sasl.username"] = connection.sasl_plain_username
        settings["sasl.password"] = connection.sasl_plain_password
    elif connection.sasl_scram_username:
        settings["sasl.mechanism"] = scram_mechanism(connection)
        settings["sasl.username"] = connection.sasl_scram_username
        settings["sasl.password"] = connection.sasl_scram_password
    elif connection.msk_iam_region:
        settings["sasl.mechanism"] = "OAUTHBEARER"
        settings["oauth_cb"] = functools.partial(msk_token, connection.msk_iam_region)
    if has_tls(connection):
        settings |= _librdkafka_tls(connection)
    settings |= role or {}
    for name, value in connection.properties.items():
        if name.startswith("java."):
            continue
        plain = name.removeprefix("librdkafka.")
        ours = plain if plain != name else LIBRDKAFKA_NAMES.get(name, name)
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
        ours = LIBRDKAFKA_NAMES.get(plain, plain)
        if plain == name or ours is None:
            return None
        found[ours] = _librdkafka_value(ours, value)
    return found


def msk_token(region: str, _config: str) -> tuple[str, float]:
    """A token that shows this process's AWS identity to an Amazon MSK broker, and its expiry time."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    token, ends_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return token, ends_ms / 1000


def scram_mechanism(connection: KafkaConnection) -> str:
    return f"SCRAM-{(connection.sasl_scram_mechanism or 'sha-512').upper()}"


def has_tls(connection: KafkaConnection) -> bool:
    return connection.protocol.endswith("ssl")


def _librdkafka_tls(connection: KafkaConnection) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, field in (
        ("ssl.ca.location", "tls_ca_path"),
        ("ssl.certificate.location", "tls_cert_path"),
        ("ssl.key.location", "tls_key_path"),
    ):
        if getattr(connection, field):
            settings[name] = str(existing_file(connection, field))
    if connection.tls_key_password:
        settings["ssl.key.password"] = connection.tls_key_password
    if not connection.tls_verify:
        settings["enable.ssl.certificate.verification"] = False
        settings["ssl.endpoint.identification.algorithm"] = "none"
    return settings


def _librdkafka_value(name: str, value: str) -> str:
    """Java disables host name checks with an empty text, librdkafka with the word ``none``."""
    return value or "none" if name == "ssl.endpoint.identification.algorithm" else value


def existing_file(connection: KafkaConnection, field: str) -> Path:
    path = Path(getattr(connection, field)).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"{field} of connection {connection.name!r} is {path}, which is not a file",
            next_step=f"fix the path, or put the file there; this machine must be able to read {field}",
        )
    return path
