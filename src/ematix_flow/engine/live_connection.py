"""The ``conn`` that pipelines' functions and transforms receive."""

from __future__ import annotations

from typing import Any

from ematix_flow.backends.base import BatchTarget, SparkSource
from ematix_flow.engine.connections import Connections
from ematix_flow.errors import SourceFailed, Unsupported
from ematix_flow.spec.pipelines import ConnectionRef


class LiveConnection:
    """An open connection. It connects at the first call, and never shows a secret."""

    def __init__(self, connections: Connections, reference: ConnectionRef) -> None:
        self._connections, self._reference = connections, reference
        self._backend = connections.backend(reference)

    @property
    def name(self) -> str:
        return self._backend.connection.name

    @property
    def kind(self) -> str:
        return self._backend.kind

    @property
    def dialect(self) -> str:
        """The name of its SQL, as sqlglot names it."""
        source = self._backend.source()
        return source.dialect if source is not None else self._backend.kind

    def ping(self) -> str:
        """Connect, and describe the server."""
        return self._backend.check()

    def query(self, sql: str, max_rows: int | None = None) -> list[dict[str, Any]]:
        """At most ``max_rows`` rows (default 1,000), each a dict."""
        names, rows = self._run_query(sql, 1_000 if max_rows is None else max_rows)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def scalar(self, sql: str) -> Any:
        """The first column of the first row, or None."""
        _, rows = self._run_query(sql, 1)
        return rows[0][0] if rows else None

    def fetch_scalar_int(self, sql: str) -> int:
        value = self.scalar(sql)
        if not isinstance(value, int):
            raise SourceFailed(f"{self.name}: expected one whole number, the query gave {value!r}")
        return value

    def execute(self, sql: str) -> int:
        """Run one statement in its own transaction and return the affected rows. For post-load transforms."""
        if self._backend.target() is None:
            raise Unsupported(f"connection {self.name!r} ({self.kind}) takes no statements")
        return self.target().run_sql(sql)

    @property
    def reference(self) -> ConnectionRef:
        """The declared name, or the connection itself."""
        return self._reference

    def target(self) -> BatchTarget:
        """The connection as a load target."""
        return self._connections.target(self._reference)

    def _run_query(self, sql: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows. Spark runs the query on files and lakes."""
        source = self._backend.source()
        if not isinstance(source, SparkSource):
            return self._backend.query(sql, limit)
        with self._connections.spark_errors(f"a query of {self.name!r}"):
            found = source.frame(self._connections.spark(), sql).limit(limit).toArrow()
        return list(found.column_names), list(zip(*[c.to_pylist() for c in found.columns], strict=True))

    def __repr__(self) -> str:
        return f"<LiveConnection {self.name} ({self.kind})>"
