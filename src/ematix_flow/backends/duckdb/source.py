"""DuckDB as a source: describes a query, and streams it as Arrow batches in one split.

Processes cannot share a snapshot, so a query is one split; DuckDB runs it on all cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from sqlglot import exp

from ematix_flow.backends.base import BatchSource, SourceColumn, SourceQuery
from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.backends.duckdb.failures import source_error, translate_errors
from ematix_flow.backends.duckdb.shared_connections import catalog_name, open_connection
from ematix_flow.backends.duckdb.split import DuckDBSplit, describe_query, require_one_select
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.split import Split
from ematix_flow.config.working_folder import working_folder
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.ranges import restrict_to_range
from ematix_flow.strategies.raw_sql import one_statement
from ematix_flow.strategies.sql import column


class DuckDBSource(BatchSource):
    dialect = "duckdb"

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("source")
        self.file = file

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        catalog, schema, name = ["", "", *table.split(".")][-3:]
        chosen = [exp.alias_(column(source), alias, quoted=True) for alias, source in columns] or [exp.Star()]
        tree = DuckDBDialect(catalog or catalog_name(self.file.path)).table(schema or None, name)
        return exp.select(*chosen).from_(tree).sql(dialect=self.dialect, identify=True)

    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        self.file.require_existing()
        with open_connection(self.file, write=False) as connection, self._translate_errors():
            return describe_query(connection, sql)

    def explain(self, sql: str) -> str:
        self.file.require_existing()
        with open_connection(self.file, write=False) as connection, self._translate_errors():
            plan = connection.execute(f"EXPLAIN {require_one_select(connection, sql)}").fetchall()
            return "\n".join(row[-1].rstrip() for row in plan)

    @contextmanager
    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> Iterator[Sequence[Split]]:
        dialect = DuckDBDialect(catalog_name(self.file.path))
        sql = restrict_to_range(one_statement(query.sql, self.dialect), query.range, dialect)
        yield [DuckDBSplit(self.file, sql, str(working_folder()))]

    def _translate_errors(self) -> AbstractContextManager[None]:
        return translate_errors(lambda error: source_error(error, self.file))
