"""SQLite as a source: describes a query, and reads it as Arrow batches in one split.

Several processes cannot share a snapshot of a SQLite file, so a query is one split, read in one transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlglot import exp

from ematix_flow.backends.base import BatchSource, SourceColumn, SourceQuery
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.split import Split
from ematix_flow.backends.sqlite.column_types import affinity, is_exact_number
from ematix_flow.backends.sqlite.connection import source_connection
from ematix_flow.backends.sqlite.dialect import SQLiteDialect
from ematix_flow.backends.sqlite.split import SQLiteSplit, describe_query, translate_source_errors
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.ranges import range_condition
from ematix_flow.strategies.raw_sql import one_statement
from ematix_flow.strategies.sql import column, verbatim, with_alias

_RANGED = "ranged"


class SQLiteSource(BatchSource):
    dialect = "sqlite"

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("source")
        self.file = file

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        schema, _, name = table.rpartition(".")
        # qualified, because SQLite treats an unknown unqualified "name" as text
        chosen = [exp.alias_(column(source, "t"), alias, quoted=True) for alias, source in columns]
        tree = with_alias(SQLiteDialect().table(schema or None, name), "t")
        return exp.select(*(chosen or [exp.Star()])).from_(tree).sql(dialect=self.dialect, identify=True)

    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        with (
            source_connection(self.file) as (connection, failures),
            translate_source_errors(self.file, sql, failures),
        ):
            return describe_query(connection, sql)

    def explain(self, sql: str) -> str:
        with (
            source_connection(self.file) as (connection, failures),
            translate_source_errors(self.file, sql, failures),
        ):
            steps = connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
        depth: dict[int, int] = {0: -1}
        lines = []
        for number, parent, _, what in steps:
            depth[number] = depth.get(parent, -1) + 1
            lines.append("  " * depth[number] + what)
        return "\n".join(lines)

    @contextmanager
    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> Iterator[Sequence[Split]]:
        sql = query.sql if query.range is None else restrict_to_range(query, self.describe(query.sql))
        yield [SQLiteSplit(self.file, sql, dict(wanted))]


# ------------------------------------------------------------------ the range of an incremental run


def restrict_to_range(query: SourceQuery, columns: Sequence[SourceColumn]) -> str:
    """The query's rows from the low bound on.

    The bound is compared with each value in canonical form, because text such as ``2024-01-01T10:00`` sorts
    differently. An additional coarser condition lets SQLite use an index on the raw column.
    """
    source_range = query.range
    assert source_range is not None
    exact = range_condition(source_range, SQLiteDialect(), _RANGED)
    native = {c.name.lower(): c.native for c in columns}
    if source_range.column.lower() not in native:
        raise SchemaMismatch(f"the source SQL yields no column {source_range.column!r}, the watermark column")
    tree = exp.select("*").from_(with_alias(verbatim(one_statement(query.sql, "sqlite")), _RANGED))
    if source_range.low is not None:
        coarse = _coarse_condition(source_range.low, affinity(native[source_range.column.lower()]))
        tree = tree.where(coarse) if coarse is not None else tree
    if exact is not None:
        tree = tree.where(exact)
    return tree.sql(dialect="sqlite", identify=True)


def _coarse_condition(low: Watermark, column_affinity: str) -> exp.Expr | None:
    """A condition that excludes only values below the bound in any form; nulls and unfit values stay."""
    mark: exp.Expr = column(low.column, _RANGED)
    kind, numbers = low.type.kind, None
    if isinstance(low.value, dt.date):
        # a zone shifts a time by less than a day
        day = low.value.date() if isinstance(low.value, dt.datetime) else low.value
        floor = (day - dt.timedelta(days=1)).isoformat() if day > dt.date(1, 1, 3) else ""
        bound: exp.Expr = exp.Literal.string(floor)
        numbers = exp.LT(this=mark.copy(), expression=exp.Literal.string(""))
    elif (kind in INTEGER_BITS or is_exact_number(low.type)) and column_affinity != "TEXT":
        bound = exp.Literal.number(str(int(low.value) - 1))
    elif kind in ("text", "string") and column_affinity == "TEXT" and "\x00" not in str(low.value):
        bound = exp.Literal.string(str(low.value))
        mark = exp.Collate(this=mark, expression=exp.Var(this="BINARY"))
    else:
        return None
    parts = [
        exp.GTE(this=mark, expression=bound),
        exp.Is(this=column(low.column, _RANGED), expression=exp.Null()),
    ]
    return exp.or_(*parts, *([numbers] if numbers is not None else []))
