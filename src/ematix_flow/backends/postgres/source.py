"""PostgreSQL as a batch source: describes SQL without running it, and splits it among tasks.

A plain SELECT over one ordinary table is split by physical page (``ctid``) ranges; any other query is one
split. The driver process keeps a snapshot open that all splits read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import psycopg

from ematix_flow.backends.base import BatchSource, ReadBound, SourceColumn, SourceQuery
from ematix_flow.backends.postgres.address import READER_APPLICATION, PostgresAddress
from ematix_flow.backends.postgres.connection import open_connection
from ematix_flow.backends.postgres.describe import describe_query
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.failures import source_failure
from ematix_flow.backends.postgres.read_bound import find_read_bound
from ematix_flow.backends.postgres.result_types import column_export
from ematix_flow.backends.postgres.source_sql import PlainSelect, parse_plain_select
from ematix_flow.backends.postgres.split import PostgresSplit
from ematix_flow.backends.sql_servers.column_export import ColumnExport
from ematix_flow.backends.sql_servers.source_queries import select_exports, select_table
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.raw_sql import one_statement

MIN_PAGES = 512  # 4 MB: a smaller table is not worth a second task
_READ_ONLY = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SNAPSHOT = re.compile(r"[0-9A-F]+-[0-9A-F]+-[0-9]+", re.IGNORECASE)
_SHAREABLE = {"Tid Range Scan", "ProjectSet"}
_PAGES = """
SELECT pg_relation_size(c.oid) / current_setting('block_size')::int
FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass(%(name)s) AND c.relkind = 'r'
"""
_ANALYSED_SQL = "SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(%(name)s) AND reltuples > 0"


class PostgresSource(BatchSource):
    dialect = "postgres"

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self._sql = PostgresDialect()

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return select_table(parse_table_name(table), columns, self._sql)

    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        with self._read_only_connection() as connection:
            columns = describe_query(connection, self.address.name, sql)
        return tuple(SourceColumn(e.name, e.type, e.native) for e in map(column_export, columns))

    def explain(self, sql: str) -> str:
        with self._read_only_connection() as connection:
            describe_query(connection, self.address.name, sql)
            inner = one_statement(sql, self.dialect)
            return "\n".join(row[0] for row in self._run(connection, inner, f"EXPLAIN {inner}"))

    def safe_read_bound(self, query: SourceQuery, data_type: DataType) -> ReadBound | None:
        with open_connection(self.address, application_name=READER_APPLICATION) as connection:
            return find_read_bound(connection, self.address.name, query, data_type)

    def expected_rows(self, query: SourceQuery) -> int | None:
        """The server's estimate for a whole analysed table. With a condition it would be a guess."""
        plain = parse_plain_select(one_statement(query.sql, self.dialect)) if query.range is None else None
        if plain is None or plain.condition_start is not None:
            return None
        with self._read_only_connection() as connection:
            analysed = connection.execute(_ANALYSED_SQL, {"name": plain.relation}).fetchone()
            plan = _explain_plan(connection, plain.sql) if analysed else {}
        whole = plan.get("Node Type") == "Seq Scan" and "Filter" not in plan  # row security adds a filter
        return int(plan["Plan Rows"]) if whole else None

    @contextmanager
    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> Iterator[Sequence[PostgresSplit]]:
        with self._read_only_connection() as connection:
            snapshot = _export_snapshot(connection)
            columns = describe_query(connection, self.address.name, query.sql)
            exports = tuple(column_export(c, wanted.get(c.name)) for c in columns)
            statements = self._statements(connection, query, exports, parallelism if snapshot else 1)
            yield [
                PostgresSplit(
                    self.address,
                    statement,
                    one_statement(query.sql, self.dialect),
                    exports,
                    snapshot,
                    connection.info.server_version,
                    one_process=len(statements) > 1,
                )
                for statement in statements
            ]

    # -------------------------------------------------------------- splits

    def _statements(
        self,
        connection: psycopg.Connection[Any],
        query: SourceQuery,
        exports: tuple[ColumnExport, ...],
        parallelism: int,
    ) -> list[str]:
        inner = one_statement(query.sql, self.dialect)
        whole = select_exports(inner, exports, query.range, self._sql)
        plain = parse_plain_select(inner) if parallelism > 1 else None
        if plain is None:
            return [whole]
        found = connection.execute(_PAGES, {"name": plain.relation}).fetchone()
        shares = min(parallelism, found[0] // MIN_PAGES) if found else 1
        if shares < 2 or "Seq Scan" not in _plan_nodes(connection, whole):  # an index is faster
            return [whole]
        bounds = [found[0] * i // shares for i in range(1, shares)] if found else []
        cut = [select_exports(part, exports, query.range, self._sql) for part in _page_ranges(plain, bounds)]
        return cut if _reads_one_range(connection, cut[0]) else [whole]

    # -------------------------------------------------------------- statements

    @contextmanager
    def _read_only_connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection in a read-only transaction, in which no SQL can write."""
        with open_connection(self.address, application_name=READER_APPLICATION) as connection:
            connection.execute(_READ_ONLY)
            yield connection

    def _run(self, connection: psycopg.Connection[Any], sql: str, statement: str) -> list[tuple[Any, ...]]:
        """Run it prepared, so that it can only be one statement."""
        try:
            return connection.execute(statement.encode(), prepare=True).fetchall()
        except psycopg.Error as error:
            raise source_failure(error, self.address.name, sql, statement) from error


def _export_snapshot(connection: psycopg.Connection[Any]) -> str | None:
    """The name of the transaction's snapshot; None when the server cannot export it (some standbys)."""
    try:
        row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    except psycopg.errors.Error:
        connection.execute("ROLLBACK")
        connection.execute(_READ_ONLY)
        return None
    name = str(row[0]) if row else ""
    return name if _SNAPSHOT.fullmatch(name) else None


def _page_ranges(plain: PlainSelect, bounds: list[int]) -> list[str]:
    """The SELECT for each range of pages. The last range has no end, for pages that are added later."""
    first = plain.with_condition(f"ctid < '({bounds[0]},0)'::tid")
    last = plain.with_condition(f"ctid >= '({bounds[-1]},0)'::tid")
    between = [
        plain.with_condition(f"ctid >= '({low},0)'::tid AND ctid < '({high},0)'::tid")
        for low, high in pairwise(bounds)
    ]
    return [first, *between, last]


def _reads_one_range(connection: psycopg.Connection[Any], statement: str) -> bool:
    """Whether the server would only read pages of one table, row by row.

    Its plan shows what the text does not: custom aggregates, views, child tables, a better index.
    """
    nodes = _plan_nodes(connection, statement)
    return nodes.count("Tid Range Scan") == 1 and set(nodes) <= _SHAREABLE


def _plan_nodes(connection: psycopg.Connection[Any], statement: str) -> list[str]:
    """The node types of the server's plan."""
    plan = _explain_plan(connection, statement)
    return list(_node_types(plan)) if plan else []


def _explain_plan(connection: psycopg.Connection[Any], statement: str) -> dict[str, Any]:
    """The server's plan for one process; empty when it cannot plan the statement."""
    try:
        with connection.transaction():
            connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            row = connection.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode(), prepare=True).fetchone()
    except psycopg.errors.Error:
        return {}
    plan = row[0] if row else []
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return dict(plan[0]["Plan"]) if plan else {}


def _node_types(node: dict[str, Any]) -> Iterator[str]:
    yield node["Node Type"]
    for child in node.get("Plans", ()):
        yield from _node_types(child)


def parse_table_name(table: str) -> list[str]:
    """The parts of ``schema.table``; a part in double quotes may contain dots and doubled quotes."""
    parts = re.findall(r'"(?:[^"]|"")*"|[^."]+', table)
    if not parts or ".".join(parts) != table or len(parts) > 3:
        raise SourceFailed(
            f"source_table {table!r} is not the name of a table", next_step="write it as  schema.table"
        )
    return [p[1:-1].replace('""', '"') if p.startswith('"') else p for p in parts]
