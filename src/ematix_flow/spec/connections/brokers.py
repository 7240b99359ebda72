"""Message brokers: Kafka, RabbitMQ, Google Pub/Sub and Kinesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.spec.connections.base import Connection, DriverProperties, decode_url_piece
from ematix_flow.spec.connections.references import has_reference
from ematix_flow.spec.connections.registries import GlueSchemaRegistryConnection, SchemaRegistryConnection
from ematix_flow.spec.connections.urls import UrlPieces
from ematix_probe.redaction import mask


@dataclass(frozen=True, kw_only=True, repr=False)
class KafkaConnection(Connection):
    """A Kafka cluster.

    At most one way to log in: ``sasl_plain_*``, ``sasl_scram_*`` or ``msk_iam_region``. A client certificate
    (``tls_cert_path``, ``tls_key_path``) can be used with any of them or alone. The default
    ``security_protocol`` follows from these. ``schema_registry`` is a connection or its name,
    ``schema_registry_url`` the short form. ``subject_strategy`` decides under which subject a schema is
    found, ``protobuf_message`` names a message of its file. ``properties`` go to the client unchanged.
    """

    kind: ClassVar[str] = "kafka"
    schemes: ClassVar[tuple[str, ...]] = ("kafka", "kafka+ssl")
    required: ClassVar[tuple[str, ...]] = ("bootstrap_servers",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "payload_format": ("json", "raw_bytes", "avro", "protobuf"),
        "subject_strategy": ("topic_name", "record_name", "topic_record_name"),
        "auto_offset_reset": ("earliest", "latest", "error"),
        "sasl_scram_mechanism": ("sha-256", "sha-512"),
        "security_protocol": ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    }
    aliases: ClassVar[Mapping[str, str]] = {
        "raw-bytes": "raw_bytes",
        "raw": "raw_bytes",
        "bytes": "raw_bytes",
        "sha256": "sha-256",
        "sha512": "sha-512",
        "sha-256": "sha-256",
        "sha-512": "sha-512",
        "scram-sha-256": "sha-256",
        "scram-sha-512": "sha-512",
        "plaintext": "plaintext",
        "ssl": "ssl",
        "sasl-plaintext": "sasl_plaintext",
        "sasl-ssl": "sasl_ssl",
    }

    bootstrap_servers: str = ""
    group_id: str = ""
    client_id: str = ""
    payload_format: str = ""
    auto_offset_reset: str = ""
    schema_registry_url: str = ""
    schema_registry_basic_auth_user: str = ""
    schema_registry_basic_auth_password: str = ""
    schema_registry: Connection | str | None = None
    subject_strategy: str = ""
    protobuf_message: str = ""
    security_protocol: str = ""
    sasl_plain_username: str = ""
    sasl_plain_password: str = ""
    sasl_scram_username: str = ""
    sasl_scram_password: str = ""
    sasl_scram_mechanism: str = ""
    msk_iam_region: str = ""
    tls_ca_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_key_password: str = ""
    tls_verify: bool = True
    properties: Mapping[str, str] = DriverProperties()

    def __post_init__(self) -> None:
        servers: object = self.bootstrap_servers
        if isinstance(servers, (list, tuple)):
            self._set("bootstrap_servers", ",".join(map(str, servers)))
        super().__post_init__()

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {
            "bootstrap_servers": url.address,
            "sasl_plain_username": decode_url_piece(url.user),
            "sasl_plain_password": decode_url_piece(url.password),
            "security_protocol": "" if url.scheme == "kafka" else "sasl_ssl" if url.user else "ssl",
        }

    def _check(self) -> None:
        self._check_login()
        self._check_registry()

    def _check_login(self) -> None:
        self._require_all_or_none("sasl_plain_username", "sasl_plain_password")
        self._require_all_or_none("sasl_scram_username", "sasl_scram_password")
        self._require_all_or_none("tls_cert_path", "tls_key_path")
        if self.sasl_scram_mechanism and not self.sasl_scram_username:
            raise self._error("sasl_scram_mechanism is given without sasl_scram_username")
        logins = [
            label
            for label, given in (
                ("sasl_plain_*", self.sasl_plain_username),
                ("sasl_scram_*", self.sasl_scram_username),
                ("msk_iam_region", self.msk_iam_region),
            )
            if given
        ]
        if len(logins) > 1:
            raise self._error(f"give one way to log in, not {' and '.join(logins)}")
        protocol = self.security_protocol
        if not protocol or has_reference(protocol):
            return
        if protocol.startswith("sasl") != bool(logins) and "sasl.mechanism" not in self.properties:
            what = f"but {logins[0]} is given" if logins else "but no sasl_* login is given"
            raise self._error(f"security_protocol is {protocol}, {what}")
        if protocol.endswith("plaintext") and (self.tls_cert_path or self.tls_ca_path or self.msk_iam_region):
            raise self._error(f"security_protocol is {protocol}, which has no TLS, but TLS fields are given")

    def _check_registry(self) -> None:
        registry = self.schema_registry
        if registry and self.schema_registry_url:
            raise self._error("give schema_registry or schema_registry_url, not both")
        self._require_all_or_none("schema_registry_basic_auth_user", "schema_registry_basic_auth_password")
        if self.schema_registry_basic_auth_user and not self.schema_registry_url:
            raise self._error("schema_registry_basic_auth_user is given without schema_registry_url")
        if isinstance(registry, str) and "://" in registry:
            raise self._error(
                "schema_registry takes the name of a connection of kind schema_registry, not an address",
                next_step=f'for an address write  schema_registry_url="{mask(registry)}"',
            )
        if not isinstance(registry, Connection):
            return
        if not isinstance(registry, (SchemaRegistryConnection, GlueSchemaRegistryConnection)):
            raise self._error(f"schema_registry is a {registry.kind} connection, not a schema registry")
        glue = isinstance(registry, GlueSchemaRegistryConnection)
        fits = self.payload_format in ("avro", "protobuf") or has_reference(self.payload_format)
        if glue and not fits:
            raise self._error("a Glue schema registry needs  payload_format=  avro or protobuf")

    @property
    def protocol(self) -> str:
        """The security protocol: as given, or as the login and TLS fields imply."""
        if self.security_protocol:
            return self.security_protocol
        if self.msk_iam_region:
            return "sasl_ssl"
        tls = bool(self.tls_ca_path or self.tls_cert_path or not self.tls_verify)
        login = bool(self.sasl_plain_username or self.sasl_scram_username)
        return {(False, False): "plaintext", (False, True): "ssl", (True, False): "sasl_plaintext"}.get(
            (login, tls), "sasl_ssl"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class RabbitMQConnection(Connection):
    """A RabbitMQ server; ``amqps://`` is checked against ``tls_ca_path`` or the system's certificates."""

    kind: ClassVar[str] = "rabbitmq"
    schemes: ClassVar[tuple[str, ...]] = ("amqp", "amqps")
    required: ClassVar[tuple[str, ...]] = ("amqp_url",)

    amqp_url: str = ""
    consumer_tag: str = ""
    tls_ca_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    tls_verify: bool = True

    def _read_url(self) -> None:
        if self.amqp_url:
            raise self._error("give url or amqp_url, not both")
        self._set("amqp_url", self.url)
        self._set("url", "")

    def _check(self) -> None:
        self._require_all_or_none("tls_cert_path", "tls_key_path")
        if self.amqp_url and not has_reference(self.amqp_url):
            scheme = self.amqp_url.partition("://")[0]
            if scheme not in self.schemes:
                raise self._error("url / amqp_url begins neither with amqp:// nor with amqps://")


@dataclass(frozen=True, kw_only=True, repr=False)
class PubSubConnection(Connection):
    """A Google Cloud project. ``endpoint`` and ``anonymous_auth`` are for the emulator."""

    kind: ClassVar[str] = "pubsub"
    schemes: ClassVar[tuple[str, ...]] = ("pubsub",)
    required: ClassVar[tuple[str, ...]] = ("project_id",)

    project_id: str = ""
    endpoint: str = ""
    anonymous_auth: bool = False
    credentials_path: str = ""

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {"project_id": url.address}

    def _check(self) -> None:
        if self.anonymous_auth is True and self.credentials_path:
            raise self._error("give anonymous_auth or credentials_path, not both")


@dataclass(frozen=True, kw_only=True, repr=False)
class KinesisConnection(Connection):
    """A Kinesis stream. Without keys the default credential chain is used."""

    kind: ClassVar[str] = "kinesis"
    schemes: ClassVar[tuple[str, ...]] = ("kinesis",)
    required: ClassVar[tuple[str, ...]] = ("stream_name",)

    stream_name: str = ""
    region: str = ""
    endpoint: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    profile: str = ""
    verify_tls: bool = True

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        return {
            "stream_name": url.address,
            "access_key_id": decode_url_piece(url.user),
            "secret_access_key": decode_url_piece(url.password),
        }

    def _check(self) -> None:
        self._require_all_or_none("access_key_id", "secret_access_key")
        if self.profile and self.access_key_id:
            raise self._error("give profile or access keys, not both")
