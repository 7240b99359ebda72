"""Opens a connection directly, for notebooks and scripts."""

from __future__ import annotations

from ematix_flow.engine.live_connection import LiveConnection
from ematix_flow.errors import FlowError
from ematix_flow.run.context_setup import spark_starter
from ematix_flow.run.pipeline import open_connections
from ematix_flow.spec.connections import Connection, connection_from_mapping


def connect(name: str | Connection = "default", *, url: str | None = None) -> LiveConnection:
    """Open a connection by name, or the one at ``url`` without looking any name up."""
    if url is not None:
        name = connection_from_mapping(name if isinstance(name, str) else name.name, {"url": url})
    return LiveConnection(open_connections(spark_starter()), name)


def check_connection(name: str | Connection) -> tuple[bool, str]:
    """Return whether the connection works, and the server's answer or the reason why not."""
    try:
        return True, connect(name).ping()
    except FlowError as error:
        return False, str(error)
