"""The private servers of one run: databases as they are shipped, and the brokers of the tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from benchmarks.endpoint import Endpoint

# The tests' servers trade safety for speed; here they are as they are shipped.
POSTGRES_AS_SHIPPED = {"fsync": "on", "full_page_writes": "on", "wal_level": "replica"}
COMMIT_TIMES = {"track_commit_timestamp": "on"}  # the server notes when each transaction was committed
MARIADB_AS_SHIPPED = {"innodb-buffer-pool-size": "128M", "innodb-flush-log-at-trx-commit": "1"}
SERVERS = {"postgres": "PostgreSQL server", "mysql": "MariaDB server"}


class Servers:
    """Each starts when it is first needed, and stops at the end."""

    def __init__(self, *, commit_times: bool = False) -> None:
        self._settings = POSTGRES_AS_SHIPPED | (COMMIT_TIMES if commit_times else {})
        self._running: dict[str, Any] = {}  # kind -> server
        self._databases: dict[str, str] = {}  # location -> name
        self._stack = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def server(self, kind: str) -> Any:
        if kind not in self._running:
            self._running[kind] = self._stack.enter_context(_started(kind, self._settings))
        return self._running[kind]

    def create(self, kind: str, label: str) -> Endpoint:
        """An empty database that was never used before."""
        server = self.server(kind)
        return self._known(kind, server, server.create_database(label))

    def copy(self, template: Endpoint, label: str) -> Endpoint:
        """A PostgreSQL database with everything that is in another one, which must have no other users."""
        server = self.server("postgres")
        name = server.create_database(label)
        server.drop_database(name)
        original = self._databases[template.location]
        server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{original}" STRATEGY file_copy')
        return self._known("postgres", server, name)

    def drop(self, endpoint: Endpoint) -> None:
        self.server(endpoint.kind).drop_database(self._databases.pop(endpoint.location))

    def execute(self, endpoint: Endpoint, statement: str) -> list[tuple[Any, ...]]:
        """Run a trusted statement in one of the databases."""
        found: list[tuple[Any, ...]] = self.server(endpoint.kind).execute(
            statement, self._databases[endpoint.location]
        )
        return found

    def settle(self) -> None:
        """Write out what earlier loads left in memory, so that it does not slow down the next one."""
        if "postgres" in self._running:
            self._running["postgres"].execute("CHECKPOINT")
        os.sync()

    def versions(self) -> dict[str, str]:
        """The versions of the servers that were needed."""
        asked = {"postgres": "SHOW server_version", "mysql": "SELECT version()"}
        return {
            SERVERS[kind]: str(server.execute(asked[kind])[0][0])
            for kind, server in self._running.items()
            if kind in asked
        }

    def _known(self, kind: str, server: Any, name: str) -> Endpoint:
        endpoint = Endpoint(kind, server.url(name))
        self._databases[endpoint.location] = name
        return endpoint


def _started(kind: str, postgres_settings: Mapping[str, str]) -> Any:
    if kind == "postgres":
        from tests.services import postgres

        postgres.install()
        return postgres.running_server(postgres_settings)
    if kind == "mysql":
        from tests.services import mariadb

        mariadb.install()
        return mariadb.running_server(MARIADB_AS_SHIPPED)
    from tests.services import kafka, rabbitmq

    broker = {"kafka": kafka, "rabbitmq": rabbitmq}[kind]
    broker.install()
    return broker.running_server()
