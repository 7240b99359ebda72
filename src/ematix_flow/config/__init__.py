"""Where a connection, a secret or a setting comes from. The public functions; each imports when called.

The graph's registry is above this layer: it tells what the process has declared by `know_registered`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematix_flow.config.connection_listing import ListedConnection
    from ematix_flow.config.connection_resolution import RegisteredConnection
    from ematix_flow.config.secret_references import SecretReference
    from ematix_flow.engine.live_connection import LiveConnection

__all__ = [
    "check_connection",
    "connect",
    "connection_definitions",
    "list_connections",
    "list_secret_uses",
    "project_settings",
    "resolve_dsn",
    "set_connection",
]

_registered_connections: Callable[[], Mapping[str, RegisteredConnection]] = dict


def set_registered_connections(source: Callable[[], Mapping[str, RegisteredConnection]]) -> None:
    """Ask ``source`` for the connections that the process declared; called once, by the graph."""
    global _registered_connections
    _registered_connections = source


def resolve_dsn(name: str = "default") -> str:
    """The URL of a connection, found by the chain, its references replaced. Mind: it holds the secret."""
    from ematix_flow.config.connection_resolution import resolve_connection
    from ematix_flow.config.dsn import dsn_of
    from ematix_flow.config.interpolate import expand_connection

    resolved = resolve_connection(name, registered=_registered_connections())
    return dsn_of(expand_connection(resolved.connection, where=resolved.origin.where))


def list_connections() -> dict[str, str]:
    """Every connection that is known here, by name, as a URL with its secrets masked.

    A definition that cannot be used has its problem in place of the URL.
    """
    return {listed.name: listed.masked_dsn for listed in connection_definitions()}


def connection_definitions() -> tuple[ListedConnection, ...]:
    """The same in detail: kind, fields, where the definition in force stands, and which it hides."""
    from ematix_flow.config.connection_listing import list_definitions
    from ematix_flow.config.connection_resolution import ConfigSources

    return list_definitions(ConfigSources(_registered_connections()))


def list_secret_uses() -> tuple[SecretReference, ...]:
    """Every ``${…}`` reference that the project uses, and where; nothing is fetched."""
    from ematix_flow.config.connection_resolution import ConfigSources
    from ematix_flow.config.secret_references import find_secret_references

    return find_secret_references(ConfigSources(_registered_connections()))


def set_connection(name: str, dsn: str | Mapping[str, Any]) -> Path:
    """Define a connection in ``~/.ematix-flow/connections.toml``; returns the file's path."""
    from ematix_flow.config import user_file

    return user_file.set_connection(name, dsn)


def connect(name: str = "default", *, url: str | None = None) -> LiveConnection:
    """Open a connection by name, or the one that ``url`` says, past the whole chain."""
    opened: LiveConnection = _connection_function("connect")(name, url=url)
    return opened


def check_connection(name: str) -> tuple[bool, str]:
    """Whether it can be reached, and what was found there or why not."""
    found: tuple[bool, str] = _connection_function("check_connection")(name)
    return found


def _connection_function(function: str) -> Callable[..., Any]:
    """A function of the api: documented under this name, but it opens backends, which stand above."""
    found: Callable[..., Any] = getattr(importlib.import_module("ematix_flow.api.connect"), function)
    return found


def project_settings(cwd: Path | None = None) -> Mapping[str, Any]:
    """The tables of ``.ematix-flow.toml`` other than connections: ``[engine]``, ``[run_log]``, …"""
    from ematix_flow.config import settings

    return settings.project_settings(cwd)
