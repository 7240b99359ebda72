"""Connections with a time limit for every statement, also when the server does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg

from ematix_flow.backends.postgres.address import PostgresAddress
from ematix_flow.backends.postgres.connection import connect

_GRACE_SECONDS = 5.0  # the server's own timeout error says more, so it comes first
# statements with a time limit use an index: compiling them (jit) would take longer than running them
_SETTINGS = (
    "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false), "
    "(SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit')"
)


def connect_with_timeout(address: PostgresAddress, seconds: float) -> psycopg.Connection[Any]:
    """The server ends a statement that takes longer; the connection does it when the server does not."""

    class ConnectionWithDeadline(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            limit = seconds + _GRACE_SECONDS
            return super().wait(_with_deadline(gen, limit, self.pgconn.finish), *args, **options)

    connection = connect(address, ConnectionWithDeadline)
    try:
        longest = str(round(seconds * 1000))
        connection.execute(_SETTINGS, (longest, longest))
    except BaseException:
        connection.close()
        raise
    return connection


def _with_deadline(
    steps: Generator[Any, Any, Any], seconds: float, give_up: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """The driver's own steps, with a deadline. The driver polls also when there is nothing to read."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                give_up()
                raise psycopg.OperationalError(f"timed out: the server has not answered for {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as over:
        return over.value
