"""Where a connection, a secret or a setting comes from. The public functions; each imports when called.

The graph's registry is above this layer: it tells what the process has declared by `know_registered`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ematix_flow.config.listing import ListedConnection
    from ematix_flow.config.resolution import Registered
    from ematix_flow.config.secret_uses import SecretUse
    from ematix_flow.plan.handles import LiveConnection

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

_registered: Callable[[], Mapping[str, Registered]] = dict


def know_registered(source: Callable[[], Mapping[str, Registered]]) -> None:
    """Ask ``source`` for the connections that the process declared; called once, by the graph."""
    global _registered
    _registered = source


def resolve_dsn(name: str = "default") -> str:
    """The URL of a connection, found by the chain, its references replaced. Mind: it holds the secret."""
    from ematix_flow.config.dsn import dsn_of
    from ematix_flow.config.interpolate import expand_connection
    from ematix_flow.config.resolution import resolve_connection

    resolved = resolve_connection(name, registered=_registered())
    return dsn_of(expand_connection(resolved.connection, where=resolved.origin.where))


def list_connections() -> dict[str, str]:
    """Every connection that is known here, by name, as a URL with its secrets masked.

    A definition that cannot be used has its problem in place of the URL.
    """
    return {listed.name: listed.masked_dsn for listed in connection_definitions()}


def connection_definitions() -> tuple[ListedConnection, ...]:
    """The same in detail: kind, fields, where the definition in force stands, and which it hides."""
    from ematix_flow.config.listing import list_definitions
    from ematix_flow.config.resolution import Surroundings

    return list_definitions(Surroundings(_registered()))


def list_secret_uses() -> tuple[SecretUse, ...]:
    """Every ``${…}`` reference that the project uses, and where; nothing is fetched."""
    from ematix_flow.config.resolution import Surroundings
    from ematix_flow.config.secret_uses import list_uses

    return list_uses(Surroundings(_registered()))


def set_connection(name: str, dsn: str | Mapping[str, Any]) -> Path:
    """Define a connection in ``~/.ematix-flow/connections.toml``; returns the file's path."""
    from ematix_flow.config import user_file

    return user_file.set_connection(name, dsn)


def connect(name: str = "default", *, url: str | None = None) -> LiveConnection:
    """Open a connection by name, or the one that ``url`` says, past the whole chain."""
    opened: LiveConnection = _above("connect")(name, url=url)
    return opened


def check_connection(name: str) -> tuple[bool, str]:
    """Whether it can be reached, and what was found there or why not."""
    found: tuple[bool, str] = _above("check_connection")(name)
    return found


def _above(function: str) -> Callable[..., Any]:
    """A function of the api: documented under this name, but it opens backends, which stand above."""
    found: Callable[..., Any] = getattr(importlib.import_module("ematix_flow.api.connect"), function)
    return found


def project_settings(cwd: Path | None = None) -> Mapping[str, Any]:
    """The tables of ``.ematix-flow.toml`` other than connections: ``[engine]``, ``[run_log]``, …"""
    from ematix_flow.config import settings

    return settings.project_settings(cwd)
