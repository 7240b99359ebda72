"""Turns refusals of brokers and errors of librdkafka into our errors, with the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from ematix_flow.errors import CannotConnect, ConfigError, FlowError, TargetFailed
from ematix_flow.spec.connections.brokers import KafkaConnection

_MAX_ERRORS = 50
_STATE = re.compile(r" \(after \d+ms in state [A-Z_]+\)")
_BROKER = re.compile(r"^(?:\w+://)?([^\s/]+:\d+)/(?:bootstrap|\d+): ")
_UNKNOWN_PROPERTY = re.compile(r'No such configuration property: "([^"]*)"')
_TAKEN_GROUP = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
_MOST_SPECIFIC_CODES = (
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._RESOLVE,
    KafkaError._TRANSPORT,
)


class ClientErrors:
    """The connection errors that a client reports to its ``error_cb``, each once."""

    def __init__(self) -> None:
        self._errors: dict[tuple[int, str], KafkaError] = {}

    def __call__(self, error: KafkaError) -> None:
        if len(self._errors) < _MAX_ERRORS:
            self._errors.setdefault((error.code(), _STATE.sub("", error.str())), error)

    def clear(self) -> None:
        self._errors.clear()

    @property
    def errors(self) -> tuple[KafkaError, ...]:
        return tuple(self._errors.values())

    @property
    def all_brokers_down(self) -> bool:
        return any(code == KafkaError._ALL_BROKERS_DOWN for code, _ in self._errors)

    @property
    def reason(self) -> tuple[int, str] | None:
        """The most specific error: a refused login comes before a broken connection."""
        for wanted in _MOST_SPECIFIC_CODES:
            for code, text in self._errors:
                if code == wanted:
                    return code, text
        return None


def cannot_connect(connection: KafkaConnection, errors: ClientErrors, seconds: float) -> CannotConnect:
    """The error that explains why no broker of the connection answered."""
    name, servers = connection.name, connection.bootstrap_servers
    code, text = errors.reason or (None, "")
    text = _BROKER.sub("", text)
    lowered = text.lower()
    if code == KafkaError._AUTHENTICATION:
        return _login_refusal(connection, text)
    if code == KafkaError._SSL or "certificate verify failed" in lowered:
        return CannotConnect(
            f"cannot trust the certificate of the Kafka broker at {servers}: {_plain_tls(text)}",
            next_step=f"set tls_ca_path of connection {name!r} to its authority's file, and use the host "
            "names of the certificate in bootstrap_servers",
        )
    if code == KafkaError._RESOLVE:
        return CannotConnect(
            f"no host of connection {name!r} is known ({servers})",
            next_step="check bootstrap_servers, and the network's name server",
        )
    if "alert" in lowered:
        given = (
            "refuses the client certificate" if connection.tls_cert_path else "requires a client certificate"
        )
        return CannotConnect(
            f"the Kafka broker at {servers} {given}: {_plain_tls(text)}",
            next_step=f"check tls_cert_path and tls_key_path of connection {name!r}",
        )
    if "refused" in lowered:
        return CannotConnect(
            f"nothing listens at {servers}: connection refused",
            next_step=f"start Kafka, or fix bootstrap_servers of connection {name!r}",
        )
    if "plaintext broker listener" in lowered or (text and connection.protocol.endswith("ssl")):
        return CannotConnect(
            f"the Kafka broker at {servers} does not accept TLS: {text}",
            next_step="check the port, and security_protocol (plaintext, ssl, sasl_plaintext, sasl_ssl)",
        )
    if errors.all_brokers_down and not text:
        return CannotConnect(
            f"the Kafka broker at {servers} closes the connection without an answer, like one that needs TLS "
            "or a login",
            next_step=f"connection {name!r} uses {connection.protocol}: check the port, and "
            "security_protocol (plaintext, ssl, sasl_plaintext, sasl_ssl)",
        )
    what = f": {text}" if text else f" within {seconds:g} seconds"
    return CannotConnect(
        f"no Kafka broker of connection {name!r} ({servers}) answers{what}",
        next_step="check bootstrap_servers, security_protocol and the network, and run it again",
    )


def _login_refusal(connection: KafkaConnection, text: str) -> CannotConnect:
    user = connection.sasl_plain_username or connection.sasl_scram_username
    if "handshake" in text:  # the mechanism, before any user was named
        return CannotConnect(
            f"the Kafka broker at {connection.bootstrap_servers} does not support this login: {text}",
            next_step="check the port, security_protocol and the login (sasl_plain_*, sasl_scram_* with its "
            f"mechanism) of connection {connection.name!r}",
        )
    who = f"user {user!r}" if user else f"the login of connection {connection.name!r}"
    return CannotConnect(
        f"the Kafka broker at {connection.bootstrap_servers} refuses {who}: {text}",
        next_step=f"check the user and the password of connection {connection.name!r}",
    )


def invalid_settings(connection: KafkaConnection, error: Exception) -> FlowError:
    """The error for a client that cannot be created because of its settings."""
    text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    unknown = _UNKNOWN_PROPERTY.search(text)
    if unknown:
        return ConfigError(
            f"connection {connection.name!r} names the property {unknown[1]!r}, "
            "which librdkafka does not know",
            next_step=f'write  "java.{unknown[1]}"  if it is for Spark\'s client only, or fix the name',
        )
    field = next((f for key, f in _SETTING_FIELDS.items() if key in text), None)
    if field == "tls_key_path" and "PEM" in text:
        return ConfigError(
            f"the key at tls_key_path of connection {connection.name!r} cannot be read: {_plain_tls(text)}",
            next_step="check that it is a key in PEM form, and tls_key_password",
        )
    reason = _plain_tls(text.partition("failed: ")[2] or text)
    about = f"{field} of connection {connection.name!r}" if field else f"connection {connection.name!r}"
    return ConfigError(f"{about} cannot be used: {reason}", next_step="fix the settings of the connection")


_SETTING_FIELDS = {
    "ssl.ca.location": "tls_ca_path",
    "ssl.certificate.location": "tls_cert_path",
    "ssl.key.location": "tls_key_path",
    "bootstrap.servers": "bootstrap_servers",
}


def broker_refusal(connection: KafkaConnection, doing: str, error: KafkaError) -> FlowError:
    """The error for a request that a broker refuses; ``doing`` says what was requested."""
    code, reason = error.code(), _STATE.sub("", error.str())
    user = connection.sasl_plain_username or connection.sasl_scram_username or "of the connection"
    rights = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic",
        KafkaError.GROUP_AUTHORIZATION_FAILED: "the consumer group",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id  ematix-flow.*",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster (IdempotentWrite)",
    }
    if code in rights:
        return TargetFailed(
            f"Kafka does not allow user {user!r} to {doing}: {reason}",
            next_step=f"grant it the right on {rights[code]} (kafka-acls --add --allow-principal …)",
        )
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return TargetFailed(
            f"the topic to write to does not exist ({doing}): {reason}", next_step=create_command(connection)
        )
    if code == KafkaError._UNKNOWN_PARTITION:
        return TargetFailed(
            f"a message names a partition that the topic does not have ({doing}): {reason}",
            next_step="fix what the partition is computed from, or add partitions",
        )
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return TargetFailed(
            f"a message is larger than the topic allows ({doing}): {reason}",
            next_step="raise the topic's max.message.bytes (kafka-configs --alter), or send smaller messages",
        )
    return TargetFailed(f"Kafka refused to {doing}: {reason}", next_step="run it again once Kafka works")


def create_command(connection: KafkaConnection, topic: str = "<topic>", partitions: int = 3) -> str:
    """The command that creates a topic; the product never creates one."""
    return (
        f"create it:  kafka-topics --bootstrap-server {connection.bootstrap_servers.split(',')[0]} --create "
        f"--topic {topic} --partitions {partitions}"
    )


def error_summary(errors: Sequence[KafkaError]) -> str:
    """The first errors in one line, each once."""
    return "; ".join(dict.fromkeys(_STATE.sub("", error.str()) for error in errors[:5]))


def commit_refusal(error: KafkaError) -> str:
    """Why a commit was refused. A consumer that has not joined may commit only to a group without members."""
    reason = error_summary([error])
    if error.code() not in _TAKEN_GROUP:
        return reason
    return (
        f"{reason}: another consumer is a member of that group; give this connection its own group_id. "
        "The stream continues"
    )


def _plain_tls(text: str) -> str:
    """OpenSSL's error text without its codes."""
    return re.sub(r"error:[0-9A-F]+:", "", text).replace("routines::", "").strip()
