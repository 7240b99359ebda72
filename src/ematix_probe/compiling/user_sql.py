"""Reads the conditions that users write: ``expression`` and ``where=``, in the SQL of the source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from ematix_probe.errors import AssertionRefused
from ematix_probe.sources.base import ColumnInfo

_MOST_LETTERS = 200


def read_condition(sql: str, dialect: str) -> exp.Expression:
    """The tree of one condition; AssertionRefused for anything else."""
    return _read(sql, dialect).copy()


def read_query(sql: str, dialect: str) -> exp.Query:
    """The tree of one query; AssertionRefused for anything else."""
    try:
        trees = sqlglot.parse(sql, read=dialect)
    except (SqlglotError, RecursionError) as error:
        raise AssertionRefused(f"the query cannot be read as {dialect}: {_reason(error)}") from None
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
    except (SqlglotError, RecursionError) as error:
        raise AssertionRefused(
            f"the condition {_shortened(sql)!r} cannot be read as {dialect}: {_reason(error)}",
            next_step="write one condition in the SQL of the source",
        ) from None
    return exp.Paren(this=tree)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    for found in error.errors if isinstance(error, ParseError) else ():
        if "Unexpected token" in str(found.get("description")) and found.get("highlight"):
            return f"{found['highlight']!r} is not expected there"
    return "it is not complete"


def _shortened(sql: str) -> str:
    written = " ".join(sql.split())
    return written if len(written) <= _MOST_LETTERS else written[: _MOST_LETTERS - 1] + "…"
