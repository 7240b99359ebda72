"""Reads the conditions that users write: ``expression`` and ``where=``, in the SQL of the source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from ematix_probe.errors import AssertionRefused
from ematix_probe.sources.base import ColumnInfo


def read_condition(sql: str, dialect: str) -> exp.Expression:
    """The tree of one condition; AssertionRefused for anything else."""
    return _read(sql, dialect).copy()


def read_query(sql: str, dialect: str) -> exp.Query:
    """The tree of one query; AssertionRefused for anything else."""
    try:
        trees = sqlglot.parse(sql, read=dialect)
    except SqlglotError as error:
        raise AssertionRefused(f"the query cannot be read as {dialect}: {first_line(error)}") from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise AssertionRefused("query= takes a single SELECT")
    return trees[0]


def named_columns(condition: exp.Expression, columns: Mapping[str, ColumnInfo]) -> list[str]:
    """The columns of the rows that a condition names, in their order there."""
    folded = {name.lower(): name for name in columns}
    found: dict[str, None] = {}
    for each in condition.find_all(exp.Column):
        name = each.name if each.name in columns else folded.get(each.name.lower())
        if name is not None:
            found[name] = None
    return list(found)


@lru_cache(maxsize=256)
def _read(sql: str, dialect: str) -> exp.Expression:
    try:
        tree = sqlglot.maybe_parse(sql, into=exp.Condition, dialect=dialect)
    except SqlglotError as error:
        raise AssertionRefused(
            f"the condition {' '.join(sql.split())!r} cannot be read as {dialect}: {first_line(error)}",
            next_step="write one condition in the SQL of the source",
        ) from None
    return exp.Paren(this=tree)


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
