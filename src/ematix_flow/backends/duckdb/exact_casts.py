"""Casts that give a same-database load in DuckDB the rules of a load through Arrow: nothing rounded or cut.

``CAST(1.5 AS INTEGER)`` is 2 in DuckDB, and any number but 0 is true. These casts refuse such values.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.backends.duckdb.column_types import FRACTIONAL, WHOLE, native_type
from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import INTEGER_BITS
from ematix_flow.strategies.sql import column as column_tree

_MARK = "<<ematix_flow: {}>>"  # the form that `find_rejection` finds in DuckDB's error


def exact_cast(dialect: DuckDBDialect, column: ColumnSpec, native: str) -> exp.Expr:
    """The column of DuckDB's type ``native`` cast to its declared type."""
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
    """A condition that is true when the cast loses nothing; None when it can never lose anything."""
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
    """Compare as doubles: DuckDB would first round text to the number's type."""
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
