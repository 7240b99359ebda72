"""A registry with Confluent's API (also Apicurio's), through the client of confluent_kafka."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ematix_flow.backends.payloads.framing import SchemaId
from ematix_flow.backends.payloads.registry import AVRO, RegisteredSchema, SchemaReference, SchemaRegistry
from ematix_flow.errors import CannotConnect, SchemaMismatch
from ematix_flow.spec.connections.registries import SchemaRegistryConnection
from ematix_flow.spec.connections.urls import mask_url
from ematix_probe.redaction import remember_secret

_MAX_SHOWN = 500
_MAX_DEPTH = 32  # levels of references
_MISSING = (40400, 40401, 40402, 40403)  # nothing, subject, version or schema not found
_INCOMPATIBLE, _INVALID = 409, 422

Answer = TypeVar("Answer")


class _MissingReference(Exception):
    """A schema's reference cannot be loaded; the text says why."""


class ConfluentRegistry(SchemaRegistry):
    """``seconds`` limits one call, including a retry and all addresses of the connection."""

    def __init__(self, connection: SchemaRegistryConnection, seconds: float) -> None:
        super().__init__()
        self._name, self._url = connection.name, mask_url(connection.url)
        for secret in (connection.basic_auth_password, connection.tls_key_password):
            remember_secret(secret)
        self._client = self._new_client(connection, seconds)

    def _new_client(self, connection: SchemaRegistryConnection, seconds: float) -> Any:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        each = seconds / len(connection.url.split(","))
        conf: dict[str, Any] = {
            "url": str(connection.url),
            "timeout": each * 0.4,
            "max.retries": 1,
            "retries.wait.ms": int(each * 100),
            "retries.max.wait.ms": int(each * 100),
            "cache.latest.ttl.sec": 1,
        }
        for key, value in (
            ("ssl.ca.location", connection.tls_ca_path),
            ("ssl.certificate.location", connection.tls_cert_path),
            ("ssl.key.location", connection.tls_key_path),
            ("ssl.key.password", connection.tls_key_password),
        ):
            if value:
                conf[key] = str(value)
        if connection.basic_auth_user:
            conf["basic.auth.user.info"] = f"{connection.basic_auth_user}:{connection.basic_auth_password}"
        try:
            return SchemaRegistryClient.new_client(conf)
        except (OSError, ValueError) as error:  # a missing or invalid certificate
            raise CannotConnect(
                f"connection {self._name!r} to the schema registry cannot be used: {error}",
                next_step="fix its url, certificates or login",
            ) from error

    def subject_name(self, topic: str, record: str, strategy: str) -> str:
        return {
            "topic_name": f"{topic}-value",
            "record_name": record,
            "topic_record_name": f"{topic}-{record}",
        }[strategy]

    def latest_schema(self, subject: str) -> RegisteredSchema | None:
        found = self._ask_or_none(lambda: self._client.get_latest_version(subject))
        return None if found is None else self._resolve_schema(found.schema_id, found.schema)

    def forget_latest(self) -> None:
        self._client.clear_latest_caches()

    def register(self, subject: str, text: str, kind: str) -> SchemaId:
        from confluent_kafka.schema_registry import Schema as Unregistered
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return int(self._ask(lambda: self._client.register_schema(subject, Unregistered(text, kind))))
        except SchemaRegistryError as error:
            if error.http_status_code in (_INCOMPATIBLE, _INVALID):
                raise SchemaMismatch(
                    "the schema registry refuses these columns for subject "
                    f"{subject!r}: {_error_text(error)}",
                    state="nothing was registered, nothing was sent",
                    next_step="make new columns nullable and keep the types of old ones, send to another"
                    " topic, or change the subject's compatibility in the registry",
                ) from error
            raise self._refusal(error) from error

    def _fetch(self, schema_id: SchemaId) -> RegisteredSchema | None:
        if not isinstance(schema_id, int) or schema_id > 0x7FFFFFFF:  # ids are 32-bit signed integers
            return None
        found = self._ask_or_none(lambda: self._client.get_schema(schema_id))
        return None if found is None else self._resolve_schema(schema_id, found)

    def _resolve_schema(self, schema_id: SchemaId, found: Any) -> RegisteredSchema:
        """The schema with its references; with a flaw when a reference is missing."""
        try:
            return self._with_references(schema_id, found, 0)
        except _MissingReference as error:
            return RegisteredSchema(
                schema_id, found.schema_str or "", found.schema_type or AVRO, flaw=str(error)
            )

    def _with_references(self, schema_id: SchemaId, found: Any, depth: int) -> RegisteredSchema:
        references = []
        for reference in found.references or ():
            if depth >= _MAX_DEPTH:
                raise _MissingReference(f"schema {schema_id} refers to others more than {_MAX_DEPTH} deep")
            subject, version = reference.subject, reference.version
            other = self._ask_or_none(partial(self._client.get_version, subject, version))
            if other is None:
                raise _MissingReference(
                    f"schema {schema_id} refers to version {version} of {subject!r}, which does not exist"
                )
            references.append(
                SchemaReference(
                    reference.name, self._with_references(other.schema_id, other.schema, depth + 1)
                )
            )
        return RegisteredSchema(
            schema_id, found.schema_str or "", found.schema_type or AVRO, tuple(references)
        )

    # ------------------------------------------------------------------ requests

    def _ask_or_none(self, ask: Callable[[], Answer]) -> Answer | None:
        """The answer; None when the registry reports that it does not exist."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return self._ask(ask)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _MISSING:
                return None
            raise self._refusal(error) from error

    def _ask(self, ask: Callable[[], Answer]) -> Answer:
        """The registry's answer; CannotConnect when it is unreachable."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return ask()
        except SchemaRegistryError:
            raise
        except Exception as error:  # from its HTTP client, TLS, or an answer that is not JSON
            words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise CannotConnect(
                f"cannot reach the schema registry at {self._url}: {words[:_MAX_SHOWN]}",
                next_step=f"check the url of connection {self._name!r} and that the registry runs",
            ) from error

    def _refusal(self, error: Any) -> CannotConnect:
        status = error.http_status_code
        if status in (401, 403):
            return CannotConnect(
                f"the schema registry at {self._url} refuses the login of connection {self._name!r}"
                f" (HTTP {status})",
                next_step="check basic_auth_user, basic_auth_password or the client certificate",
            )
        if status == 404:
            return CannotConnect(
                f"there is no schema registry at {self._url}: it answers HTTP 404",
                next_step="check the path of the url; Apicurio's is …/apis/ccompat/v7",
            )
        return CannotConnect(
            f"the schema registry at {self._url} answers HTTP {status}: {_error_text(error)}",
            next_step="run it again once the registry works",
        )


def _error_text(error: Any) -> str:
    return " ".join(str(error.error_message or error).split())[:_MAX_SHOWN]
