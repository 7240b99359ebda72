"""Casts inside DuckDB that refuse what DuckDB would round, cut or fold.

``CAST(1.5 AS INTEGER)`` is 2 in DuckDB, and any number but 0 is true. A load that stays in the database
meets the same rules as one that passes through Arrow.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.backends.duckdb.types import FRACTIONAL, WHOLE, native_type
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import INTEGER_BITS
from ematix_flow.strategies.sql import column as column_tree

_MARK = "<<ematix_flow: {}>>"  # how `rejection_in` finds our words in DuckDB's error


def exact_cast(dialect: DuckDBDialect, column: ColumnSpec, native: str) -> exp.Expr:
    """The column as its declared type, from one of DuckDB's type ``native``."""
    value = column_tree(column.name)
    cast = dialect.cast(value.copy(), column.type)
    kept = _loses_nothing(dialect, column, native)
    if kept is None:
        return cast
    return exp.Case(
        ifs=[exp.If(this=exp.or_(exp.Is(this=value, expression=exp.Null()), kept), true=cast)],
        default=dialect.cast(_refusal_sql(column), column.type),
    )


def _loses_nothing(dialect: DuckDBDialect, column: ColumnSpec, native: str) -> exp.Expr | None:
    """A condition that holds when the cast loses nothing; None when it cannot lose anything."""
    kind, value = column.type.kind, column_tree(column.name)
    cast = dialect.cast(value.copy(), column.type)
    number = bool(WHOLE.fullmatch(native) or FRACTIONAL.fullmatch(native))
    if kind == "boolean" and number:
        return exp.In(this=value, expressions=[exp.Literal.number("0"), exp.Literal.number("1")])
    if kind == "string":
        length = exp.Length(this=cast)
        return exp.LTE(this=length, expression=exp.Literal.number(str(column.type.length)))
    if kind in INTEGER_BITS or kind == "numeric":
        if FRACTIONAL.fullmatch(native) and native != native_type(column.type):
            return exp.EQ(this=cast, expression=value)
        return _same_double(cast, value) if native in ("VARCHAR", "JSON") else None
    if kind in ("float", "double") and WHOLE.fullmatch(native):
        back = exp.cast(cast, "HUGEINT", dialect="duckdb")
        return exp.EQ(this=back, expression=value)
    if kind == "date" and native.startswith("TIMESTAMP"):
        return exp.EQ(this=exp.cast(cast, native, dialect="duckdb"), expression=value)
    if kind in ("timestamp", "timestamp_tz") and native == "TIMESTAMP_NS":
        return exp.EQ(this=exp.cast(cast, native, dialect="duckdb"), expression=value)
    return None


def _same_double(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """Text compared with a number would be rounded to its type first."""
    doubles = [exp.cast(side, "DOUBLE", dialect="duckdb") for side in (left, right)]
    return exp.EQ(this=doubles[0], expression=doubles[1])


def _refusal_sql(column: ColumnSpec) -> exp.Expr:
    before, after = _MARK.format(f"column {column.name!r}: \0 does not fit {column.type}").split("\0")
    shown = exp.cast(column_tree(column.name), "VARCHAR", dialect="duckdb")
    message = exp.DPipe(
        this=exp.DPipe(this=exp.Literal.string(before), expression=shown),
        expression=exp.Literal.string(after),
    )
    return exp.Anonymous(this="ERROR", expressions=[message])
