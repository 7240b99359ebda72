"""The table columns that a query passes on unchanged, without computing or comparing with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# clauses that use values or whole rows
_CLAUSES_OVER_VALUES = (
    *("distinct", "group", "having", "qualify", "windows", "order", "sort", "cluster", "distribute"),
    *("laterals", "pivots"),
)


def unchanged_columns(sql: str, results: Collection[str]) -> frozenset[str]:
    """The table columns, in lower case, that a query passes unchanged to the result columns ``results``.

    Known only for a plain SELECT, with or without joins and WHERE; empty for any other query.
    """
    select = _plain_select(sql) if results else None
    if select is None:
        return frozenset()
    wanted = {name.lower() for name in results}
    tables = {table.alias_or_name.lower() for table in select.find_all(exp.Table)}
    used = Counter(part for column in select.find_all(exp.Column) for part in _used_names(column, tables))
    used.update(name.name.lower() for join in select.args.get("joins") or () for name in _using_columns(join))
    passed_on: Counter[str] = Counter()
    stars = False
    for chosen in select.expressions:
        inner = chosen.this if isinstance(chosen, exp.Alias) else chosen
        if chosen.is_star:
            stars = True
        elif isinstance(inner, exp.Column) and chosen.alias_or_name.lower() in wanted:
            passed_on[inner.name.lower()] += 1
    named = {name for name in passed_on if passed_on[name] == used[name]}
    return frozenset(named | ({name for name in wanted if not used[name]} if stars else set()))


def _plain_select(sql: str) -> exp.Select | None:
    try:
        trees = sqlglot.parse(sql, read="spark")
    except SqlglotError:
        return None
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select) or any(select.args.get(part) for part in _CLAUSES_OVER_VALUES):
        return None
    if len(list(select.find_all(exp.Query))) > 1 or select.args.get("with_") or select.args.get("with"):
        return None
    if any(join.method for join in select.args.get("joins") or ()):  # NATURAL
        return None
    return select


def _used_names(column: exp.Column, tables: Collection[str]) -> list[str]:
    """``a.b`` is a column of a table or a field of a column: a field uses both names."""
    names = [part.name.lower() for part in column.parts if not isinstance(part, exp.Star)]
    return [name for number, name in enumerate(names) if number == len(names) - 1 or name not in tables]


def _using_columns(join: exp.Join) -> list[exp.Expression]:
    return list(join.args.get("using") or ())
