"""Resolves connections by name or instance, with the connections of the current registry."""

from __future__ import annotations

from typing import TypeVar

from ematix_flow.config.connection_resolution import (
    ConfigSources,
    ResolvedConnection,
    resolve_connection,
    set_registered_connections,
)
from ematix_flow.config.interpolate import expand_connection, remember_secrets
from ematix_flow.errors import FlowError
from ematix_flow.graph.registry import current_registry
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.location import SourceLocation

C = TypeVar("C", bound=Connection)

set_registered_connections(lambda: current_registry().connections)


def declare_connection(connection: C, where: SourceLocation | None) -> C:
    """Register a connection in the current registry and mask its secrets from now on."""
    current_registry().add_connection(connection, where)
    remember_secrets(connection)
    return connection


def mask_defined_secrets() -> None:
    """Mask the secrets of the connections that files and variables define, before the user's module runs."""
    places = ConfigSources()
    for name in places.names():
        for definition in places.definitions(name):
            try:
                remember_secrets(definition.build())
            except FlowError:  # the command that uses the connection raises the error
                continue


def resolve_with_origin(value: str | Connection) -> ResolvedConnection:
    """The connection in force for a name or an instance, with its origin and hidden definitions."""
    return resolve_connection(value, registered=current_registry().connections)


def resolve(value: str | Connection) -> Connection:
    """The connection in force, with its ``${…}`` references not yet replaced."""
    return resolve_with_origin(value).connection


def resolve_for_use(value: str | Connection) -> Connection:
    """The connection in force, ready for a driver: references replaced, secrets remembered."""
    resolved = resolve_with_origin(value)
    return expand_connection(resolved.connection, where=resolved.origin.where)
