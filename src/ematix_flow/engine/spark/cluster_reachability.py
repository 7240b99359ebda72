"""Checks that a cluster's address answers. Spark itself would wait a minute or more before it fails."""

from __future__ import annotations

import re
import socket

from ematix_flow.errors import CannotConnect

_DEFAULT_PORTS = {"spark": 7077, "sc": 15002}
_SECONDS = 10


def require_reachable(master: str) -> None:
    """Raise if no master of a standalone cluster, or no Connect server, answers."""
    scheme, _, rest = master.partition("://")
    if scheme not in _DEFAULT_PORTS:
        return
    addresses = rest.split("/")[0].split(",")
    problems = []
    for address in addresses:
        problem = _connection_problem(*_host_and_port(address, _DEFAULT_PORTS[scheme]))
        if problem is None:
            return
        problems.append(f"{address}: {problem}")
    what = "Spark Connect server" if scheme == "sc" else "Spark master"
    raise CannotConnect(
        f"no {what} answers ({'; '.join(problems)})",
        next_step="check the address and that it runs, or use the engine 'local'",
    )


def _host_and_port(address: str, default: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:]*))(?::(?P<port>\d+))?", address)
    if match is None:
        return address, default
    return match["six"] or match["host"], int(match["port"] or default)


def _connection_problem(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
