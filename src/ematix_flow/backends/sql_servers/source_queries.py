"""The SELECT statements that read a source: a whole table, or the user's SQL with exported columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.backends.sql_servers.column_export import ColumnExport
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import MAX_PRECISION, DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.functions import functions_for
from ematix_flow.strategies.functions.base import TypedValue
from ematix_flow.strategies.functions.casts import cast
from ematix_flow.strategies.functions.column_site import ColumnSite
from ematix_flow.strategies.ranges import range_condition
from ematix_flow.strategies.sql import column

ALIAS = "q"  # of the user's SQL as a subquery
# a type with more digits than any declared scale, so that each value is checked
_ANY_SCALE = DataType("numeric", precision=MAX_PRECISION, scale=MAX_PRECISION)


def as_subquery(sql: str, dialect: SqlDialect) -> str:
    """The SQL in parentheses, named `ALIAS`; the newlines end a comment in its last line."""
    return f"(\n{sql}\n) AS {dialect.quote(internal_name(ALIAS))}"


def select_table(parts: Sequence[str], columns: Sequence[tuple[str, str]], dialect: SqlDialect) -> str:
    """SELECT of ``(alias, source column)`` pairs from a table whose name has these parts."""
    quote = dialect.quote
    picked = ", ".join(
        quote(source) if alias == source else f"{quote(source)} AS {quote(alias)}"
        for alias, source in columns
    )
    return f"SELECT {picked or '*'} FROM {'.'.join(map(quote, parts))}"


def select_exports(
    sql: str, exports: Sequence[ColumnExport], source_range: SourceRange | None, dialect: SqlDialect
) -> str:
    """SELECT of the exports from the user's SQL, restricted to the range."""
    quote, alias = dialect.quote, dialect.quote(internal_name(ALIAS))
    picked = ", ".join(f"{e.template.format(f'{alias}.{quote(e.name)}')} AS {quote(e.name)}" for e in exports)
    statement = f"SELECT {picked} FROM {as_subquery(sql, dialect)}"
    condition = range_condition(source_range, dialect, ALIAS) if source_range is not None else None
    return f"{statement} WHERE {dialect.render(condition)}" if condition is not None else statement


def select_exact(sql: str, checked: Mapping[str, exp.Expr], table: TableSpec, dialect: SqlDialect) -> str:
    """The SQL, wrapped when some columns need the checked values instead of the server's own assignment."""
    if not checked:
        return sql
    picked = [exp.alias_(checked.get(n) or column(n, ALIAS), n, quoted=True) for n in table.column_names]
    return f"SELECT {', '.join(map(dialect.render, picked))} FROM {as_subquery(sql, dialect)}"


def checked_number(value: exp.Expression, name: str, wanted: DataType, dialect: SqlDialect) -> exp.Expr:
    """A number of any scale as the declared type; the server refuses a value that would be rounded."""
    site = ColumnSite(functions_for(dialect.name), name, lambda found: found)
    return cast(TypedValue(value, _ANY_SCALE), wanted, site).tree


def require_distinct_columns(names: Sequence[str], fold: Callable[[str], str] = str) -> None:
    """SourceFailed for a query without columns, or with two columns of one name."""
    if not names:
        raise SourceFailed("the source SQL yields no columns", next_step="write a SELECT")
    folded = [fold(name) for name in names]
    for name in names:
        if folded.count(fold(name)) > 1:
            raise SourceFailed(
                f"the source SQL yields column {name!r} twice",
                next_step="give one of them another name with AS",
            )
