"""The payload format and schema registry that a connection declares."""

from __future__ import annotations

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.spec.connections import Connection, SchemaRegistryConnection


def payload_of(connection: Connection, topic: str = "") -> PayloadSpec:
    """The payload format of a topic, as an expanded connection declares it; JSON by default."""
    return PayloadSpec(
        format=getattr(connection, "payload_format", "") or "json",
        registry=_registry(connection),
        topic=topic,
        subject_strategy=getattr(connection, "subject_strategy", "") or "topic_name",
        message=getattr(connection, "protobuf_message", "") or "",
    )


def _registry(connection: Connection) -> Connection | None:
    """The schema registry of the connection, in its long or short form, expanded."""
    named = getattr(connection, "schema_registry", None)
    if named:
        return resolve_for_use(named)
    url = getattr(connection, "schema_registry_url", "")
    if not url:
        return None
    return SchemaRegistryConnection(
        name=f"{connection.name} registry",
        url=url,
        basic_auth_user=getattr(connection, "schema_registry_basic_auth_user", ""),
        basic_auth_password=getattr(connection, "schema_registry_basic_auth_password", ""),
    )
