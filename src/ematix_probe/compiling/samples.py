"""The query of sample rows: up to ten rows that fail an assertion, in the order of their key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from ematix_probe.assertions import Assertion, Expression, Unique
from ematix_probe.compiling.conditions import (
    ConditionCompiler,
    Reference,
    Rows,
    compared_columns,
    failing_rows,
)
from ematix_probe.compiling.dialects import dialect_named
from ematix_probe.compiling.trees import aliased, column, filtered, from_rows, joined, number
from ematix_probe.compiling.user_sql import named_columns, read_condition
from ematix_probe.sources.base import ColumnInfo

_MOST_COLUMNS = 8


def sample_columns(
    assertion: Assertion, columns: Mapping[str, ColumnInfo], dialect: str, key: Sequence[str]
) -> list[str]:
    """The key, the columns that the assertion looks at, and without a key those that its conditions name."""
    names = dict.fromkeys([*key, *compared_columns(assertion)])
    conditions = [assertion.options.where, assertion.sql if isinstance(assertion, Expression) else None]
    for sql in conditions:
        if sql is not None:
            names |= dict.fromkeys(named_columns(read_condition(sql, dialect), columns))
    known = [name for name in names if name in columns]
    return known or list(columns)[:_MOST_COLUMNS]


def sample_query(
    assertion: Assertion,
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
    key: Sequence[str],
    limit: int = 10,
) -> exp.Select:
    """Up to ``limit`` failing rows with `sample_columns`, the same ones in every run over the same rows."""
    compiler = ConditionCompiler(columns, dialect_named(dialect), rows, reference)
    names = sample_columns(assertion, columns, dialect, key)
    failing = failing_rows(assertion, columns, dialect, rows, reference)
    query = from_rows(rows, *[aliased(column(name), name) for name in names])
    query = filtered(joined(query, failing.joins), failing.condition)
    first = assertion.columns if isinstance(assertion, Unique) else ()  # equal keys stand together
    for name in dict.fromkeys([*first, *names]):
        tree = compiler.dialect.order(columns[name], column(name))
        if tree is not None:
            query = query.order_by(exp.Ordered(this=tree, nulls_first=True), copy=False)
    return query.limit(number(limit), copy=False)
