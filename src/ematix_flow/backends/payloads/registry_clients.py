"""The registry client of a payload's connection, one per process, and the subject of its topic."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ematix_flow.backends.payloads.base import PayloadSpec
from ematix_flow.backends.payloads.registry import SchemaRegistry
from ematix_flow.errors import ConfigError, SchemaMismatch
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.connections.registries import GlueSchemaRegistryConnection, SchemaRegistryConnection

_registries: dict[tuple[object, ...], SchemaRegistry] = {}
_lock = threading.Lock()


def registry_of(payload: PayloadSpec) -> SchemaRegistry:
    """The registry client of this process for the payload's connection; a forked process gets its own."""
    connection = payload.registry
    if connection is None:
        raise ConfigError(
            f"{payload.format} payloads need a schema registry, but none is given",
            next_step="give the connection  schema_registry=  or  schema_registry_url=",
        )
    key = (os.getpid(), payload.registry_seconds, connection)
    with _lock:
        if key not in _registries:
            _registries[key] = _open_registry(connection, payload.registry_seconds)
        return _registries[key]


def _open_registry(connection: Connection, seconds: float) -> SchemaRegistry:
    if isinstance(connection, SchemaRegistryConnection):
        from ematix_flow.backends.payloads.registry_confluent import ConfluentRegistry

        return ConfluentRegistry(connection, seconds)
    if isinstance(connection, GlueSchemaRegistryConnection):
        from ematix_flow.backends.payloads.registry_glue import GlueRegistry

        return GlueRegistry(connection, seconds)
    raise ConfigError(
        f"connection {connection.name!r} is a {connection.kind} connection, not a schema registry"
    )


def subject_of(payload: PayloadSpec, record: Callable[[], str]) -> str:
    """The subject of the payload's topic; ``record`` is called only when the strategy needs it."""
    strategy = payload.subject_strategy
    if strategy not in ("topic_name", "record_name", "topic_record_name"):
        raise ConfigError(
            f"there is no subject strategy {strategy!r}",
            next_step="write topic_name, record_name or topic_record_name",
        )
    name = record() if strategy != "topic_name" else ""
    if strategy != "topic_name" and not name:
        raise ConfigError(
            f"the subject strategy {strategy} needs the full name of the message's record",
            next_step="give the record's full name as  message=",
        )
    if strategy != "record_name" and not payload.topic:
        raise SchemaMismatch(f"the subject strategy {strategy} needs a topic, but none is known")
    return registry_of(payload).subject_name(payload.topic, name, strategy)
