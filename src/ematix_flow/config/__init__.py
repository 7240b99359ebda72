"""Finds connections, secrets and settings. These are the public functions; each imports what it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematix_flow.config.connection_listing import ListedConnection
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


def resolve_dsn(name: str = "default") -> str:
    """The URL of a named connection with its references replaced. It contains the secret."""
    from ematix_flow.config.connection_resolution import registered_connections, resolve_connection
    from ematix_flow.config.dsn import dsn_of
    from ematix_flow.config.interpolate import expand_connection

    resolved = resolve_connection(name, registered=registered_connections())
    return dsn_of(expand_connection(resolved.connection, where=resolved.origin.where))


def list_connections() -> dict[str, str]:
    """Every known connection by name, as a URL with masked secrets.

    For an invalid definition, the value is the reason instead of the URL.
    """
    return {listed.name: listed.masked_dsn for listed in connection_definitions()}


def connection_definitions() -> tuple[ListedConnection, ...]:
    """Every known connection in detail: kind, fields, where it is defined, and which definitions it hides."""
    from ematix_flow.config.connection_listing import list_definitions
    from ematix_flow.config.connection_resolution import ConfigSources, registered_connections

    return list_definitions(ConfigSources(registered_connections()))


def list_secret_uses() -> tuple[SecretReference, ...]:
    """Every ``${…}`` reference of the project and where it is used. No secret is read."""
    from ematix_flow.config.connection_resolution import ConfigSources, registered_connections
    from ematix_flow.config.secret_references import find_secret_references

    return find_secret_references(ConfigSources(registered_connections()))


def set_connection(name: str, dsn: str | Mapping[str, Any]) -> Path:
    """Define a connection in ``~/.ematix-flow/connections.toml``; returns the file's path."""
    from ematix_flow.config import connection_editing

    return connection_editing.set_connection(name, dsn)


def connect(name: str = "default", *, url: str | None = None) -> LiveConnection:
    """Open a connection by name, or the one at ``url`` without looking any name up."""
    opened: LiveConnection = _connection_function("connect")(name, url=url)
    return opened


def check_connection(name: str) -> tuple[bool, str]:
    """Return whether the connection works, and the server's answer or the reason why not."""
    found: tuple[bool, str] = _connection_function("check_connection")(name)
    return found


def _connection_function(function: str) -> Callable[..., Any]:
    """A function documented here that lives in a higher layer, because it opens backends."""
    found: Callable[..., Any] = getattr(importlib.import_module("ematix_flow.run.connect"), function)
    return found


def project_settings(cwd: Path | None = None) -> Mapping[str, Any]:
    """The tables of ``.ematix-flow.toml`` other than connections: ``[engine]``, ``[run_log]``, …"""
    from ematix_flow.config import project_file

    return project_file.project_settings(cwd)
