"""Declares connections in Python: by a decorated class body, or an instance for `register_connection`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from ematix_flow.errors import DeclarationError, UnknownConnection, did_you_mean
from ematix_flow.graph.connections import declare_connection
from ematix_flow.graph.registry import current_registry
from ematix_flow.spec.connections import Connection, connection_from_mapping
from ematix_flow.spec.location import caller_location

C = TypeVar("C", bound=Connection)


def connection(cls: type) -> Connection:
    """Register a connection whose fields are the attributes of the decorated class.

    The decorator replaces the class by the connection::

        @ematix.connection
        class warehouse:
            kind = "postgres"
            url = "${WAREHOUSE_URL}"
    """
    where = caller_location()
    if not isinstance(cls, type):
        raise DeclarationError("@ematix.connection decorates a class whose body lists fields", where=where)
    if issubclass(cls, Connection):
        raise DeclarationError(
            f"@ematix.connection decorates a plain class, and {cls.__name__} is a connection class",
            where=where,
            next_step='write  kind = "…"  in the body, or make an instance and call register_connection',
        )
    fields = _class_fields(cls)
    built = connection_from_mapping(str(fields.pop("name", cls.__name__)), fields, where)
    return declare_connection(built, where)


def register_connection(connection: C) -> C:
    """Register a connection under its name and return it. A later one of the same name replaces it."""
    where = caller_location()
    if not isinstance(connection, Connection):
        raise DeclarationError(
            f"register_connection takes a connection, not {type(connection).__name__}",
            where=where,
            next_step="as in  register_connection(PostgresConnection(name=…, url=…))",
        )
    return declare_connection(connection, where)


def get_connection(name: str) -> Connection:
    """Return the connection registered under this name in this process, without reading files."""
    registered = current_registry().connections
    if name not in registered:
        raise UnknownConnection(
            f"no connection is registered as {name!r}.{did_you_mean(name, registered)}",
            next_step="ematix_flow.connections.resolve(name)  also reads the environment and the files",
        )
    return registered[name].connection


def registered_connections() -> Mapping[str, Connection]:
    """Return the connections that this process registered, by name."""
    return MappingProxyType({n: d.connection for n, d in current_registry().connections.items()})


def clear_registry() -> None:
    """Remove every registered connection from the current registry; pipelines stay."""
    current_registry().connections.clear()


def _class_fields(cls: type) -> dict[str, Any]:
    """The fields of the class and its bases; a field of the class itself wins."""
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        fields.update((name, value) for name, value in vars(base).items() if not _is_dunder(name))
    return fields


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
