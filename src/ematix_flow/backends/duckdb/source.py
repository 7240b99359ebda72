"""DuckDB as a source: what a query yields, and one split that streams it as Arrow batches.

A snapshot cannot be shared between processes, so a query is one split; DuckDB runs it on all cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
from sqlglot import exp

from ematix_flow.backends.base import BatchSource, Query, SourceColumn, Split
from ematix_flow.backends.conform import rejected
from ematix_flow.backends.duckdb.dialect import DuckDBDialect, catalog_name
from ematix_flow.backends.duckdb.handles import connected
from ematix_flow.backends.duckdb.session import failing_as, source_error
from ematix_flow.backends.duckdb.types import export_cast, source_type
from ematix_flow.backends.embedded import DatabaseFile
from ematix_flow.errors import SchemaMismatch, SourceFailed
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.ranges import range_condition
from ematix_flow.strategies.sql import column, identifier, verbatim

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 32_768


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
        with connected(self.file, write=False) as connection, self._asked():
            return described(connection, sql)

    def explain(self, sql: str) -> str:
        self.file.require_existing()
        with connected(self.file, write=False) as connection, self._asked():
            plan = connection.execute(f"EXPLAIN {one_select(connection, sql)}").fetchall()
            return "\n".join(row[-1].rstrip() for row in plan)

    @contextmanager
    def split(
        self, query: Query, wanted: Mapping[str, DataType], parallelism: int
    ) -> Iterator[Sequence[Split]]:
        yield [DuckDBSplit(self.file, query)]

    def _asked(self) -> AbstractContextManager[None]:
        return failing_as(lambda error: source_error(error, self.file))


@dataclass(frozen=True)
class DuckDBSplit:
    """A whole query."""

    file: DatabaseFile
    query: Query

    def read(self) -> Iterator[pa.RecordBatch]:
        self.file.require_existing()
        with (
            connected(self.file, write=False) as connection,
            failing_as(lambda error: source_error(error, self.file)),
        ):
            columns = described(connection, self.query.sql)
            reader = connection.sql(_export_sql(self.query, columns, self.file)).to_arrow_reader(_BATCH_ROWS)
            offset = 0
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                except OSError as error:  # how Arrow hands on what DuckDB says in mid-stream
                    raise source_error(error, self.file) from error
                _refuse_infinite(batch, offset)
                offset += batch.num_rows
                yield batch


def described(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[SourceColumn, ...]:
    found = connection.execute(f"DESCRIBE {one_select(connection, sql)}").fetchall()
    return tuple(SourceColumn(name, source_type(native), native) for name, native, *_ in found)


def one_select(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The SQL, which must be one query: DuckDB would run whatever else stands there."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        kinds = ", ".join(s.type.name for s in statements) or "nothing"
        raise SourceFailed(
            f"the source SQL must be one SELECT; DuckDB reads it as {kinds}",
            next_step="leave one SELECT; a PIVOT needs its columns listed with IN, inside a subquery",
        )
    return statements[0].query.rstrip().rstrip(";")


def _export_sql(query: Query, columns: tuple[SourceColumn, ...], file: DatabaseFile) -> str:
    """The query with each column in a form that Arrow carries, kept to the range.

    Columns are addressed by number, since two names may differ in case only.
    """
    dialect = DuckDBDialect(catalog_name(file.path))
    names = [f"c{number}" for number in range(len(columns))]
    rows = verbatim(query.sql)
    rows.set("alias", exp.TableAlias(this=identifier("q"), columns=[identifier(n) for n in names]))
    exported = [
        exp.alias_(_exported(column(n, "q"), c.native), c.name, quoted=True)
        for n, c in zip(names, columns, strict=True)
    ]
    select = exp.select(*exported).from_(rows)
    if query.range is not None:
        at = next((i for i, c in enumerate(columns) if c.name == query.range.column), None)
        if at is None:
            raise SchemaMismatch(
                f"the source SQL yields no column {query.range.column!r}, the watermark column"
            )
        numbered = SourceRange(names[at], query.range.low, query.range.high)
        condition = range_condition(numbered, dialect, "q")
        select = select.where(condition) if condition is not None else select
    return select.sql(dialect="duckdb", identify=True)


def _exported(value: exp.Expr, native: str) -> exp.Expr:
    target = export_cast(native)
    if target == "JSON":
        value, target = exp.Anonymous(this="TO_JSON", expressions=[value]), "VARCHAR"
    return exp.cast(value, target, dialect="duckdb") if target else value


def _refuse_infinite(batch: pa.RecordBatch, offset: int) -> None:
    """DuckDB's infinite dates would arrive as far-off finite ones."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as t

    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if not (t.is_timestamp(array.type) or t.is_date(array.type)):
            continue
        integer = pa.int32() if t.is_date32(array.type) else pa.int64()
        numbers = array.cast(integer)
        limit = 2 ** (integer.bit_width - 1) - 1
        ends = pc.min_max(numbers).as_py()
        for told, end in (("infinity", limit), ("-infinity", -limit)):
            if end in ends.values():
                row = pc.index(numbers, end).as_py()
                raise rejected(name, offset + row, told, "cannot be loaded: no other system has it")
