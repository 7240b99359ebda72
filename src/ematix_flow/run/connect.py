"""Opens a connection directly, for notebooks and scripts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class ConnectionCheck:
    """Whether a connection works, and the server's answer or the reason why not."""

    name: str
    seconds: float
    found: str
    error: FlowError | None = None

    @property
    def result(self) -> str:
        return "failed" if self.error else "ok"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "result": self.result,
            "seconds": self.seconds,
            "found": self.found,
            "error": self.error.to_json() if self.error else None,
        }


def time_connection(name: str) -> ConnectionCheck:
    """Open the connection and ask its server for an answer."""
    started, error = time.monotonic(), None
    try:
        found = connect(name).ping()
    except FlowError as problem:
        error, found = problem, problem.what
    return ConnectionCheck(name, round(time.monotonic() - started, 2), found, error)
