"""Opening a connection by hand: the low-level way out, for notebooks and scripts."""

from __future__ import annotations

from ematix_flow.backends.registry import open_backend
from ematix_flow.config.interpolate import expand_connection
from ematix_flow.errors import FlowError
from ematix_flow.graph.connections import resolve_for_use
from ematix_flow.plan.handles import LiveConnection
from ematix_flow.spec.connections import Connection, connection_from_mapping


def connect(name: str | Connection = "default", *, url: str | None = None) -> LiveConnection:
    """A named connection through the usual chain, or the one that ``url`` says, past all of it."""
    if url is not None:
        label = name if isinstance(name, str) else name.name
        return LiveConnection(open_backend(expand_connection(connection_from_mapping(label, {"url": url}))))
    return LiveConnection(open_backend(resolve_for_use(name)))


def check_connection(name: str | Connection) -> tuple[bool, str]:
    """Whether it can be reached, and what was found there or why not."""
    try:
        return True, connect(name).ping()
    except FlowError as error:
        return False, str(error)
