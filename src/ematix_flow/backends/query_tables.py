"""The tables that a query names, and the same query with a placeholder in the place of each.

The SQL is Spark's and stays as written, character by character; only the names of tables are replaced,
at the positions where the parser found them. Names of common table expressions are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import traverse_scope

from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Name = tuple[str, ...]


@dataclass(frozen=True)
class Placed:
    """A query with ``{t0}``, ``{t1}`` … for its tables, to be filled in by `str.format`'s rules."""

    sql: str
    tables: dict[str, Name]  # placeholder -> the parts of the table's name


@dataclass(frozen=True)
class _Edit:
    start: int  # of the first character that goes
    end: int  # of the first that stays
    text: str


def place_tables(sql: str) -> Placed | None:
    """The query with placeholders; None when only Spark's own parser can say what is wrong with it."""
    try:
        trees = [tree for tree in sqlglot.parse(sql, read="spark") if tree is not None]
        tokens = sqlglot.tokenize(sql, read="spark")
    except SqlglotError:
        return None
    query = trees[0] if len(trees) == 1 else None
    if isinstance(query, exp.Alias | exp.Condition):  # a misspelt SELECT reads as an expression
        return None
    if not isinstance(query, exp.Query):
        raise SourceFailed(
            "the SQL of a source must be one query",
            next_step="return one SELECT from the pipeline's function",
        )
    try:
        named = _tables(query)
    except SqlglotError:
        return None
    placeholders: dict[Name, str] = {}
    edits: list[_Edit] = []
    for table in named:
        parts = _parts(table)
        name = tuple(part.name for part in parts)
        placeholder = placeholders.setdefault(name, f"t{len(placeholders)}")
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        edits.append(_Edit(start, end, "{" + placeholder + "}"))
        if not table.alias:
            at = _end_of_sample(tokens, end)
            edits.append(_Edit(at, at, f" AS {quoted(name[-1])}"))
    edits += _unqualified_columns(query, named)
    return Placed(_edited(sql, edits), {placeholder: name for name, placeholder in placeholders.items()})


def query_frame(spark: SparkSession, sql: str, read: Callable[[Name], DataFrame]) -> DataFrame:
    """The SQL as a DataFrame over the tables that ``read`` finds.

    What Spark itself says against the SQL is not caught here. Nothing is left in the session's catalog.
    """
    from pyspark.errors import ParseException

    placed = place_tables(sql)
    if placed is None or not placed.tables:
        return spark.sql(sql)
    frames: dict[str, Any] = {name: read(table) for name, table in placed.tables.items()}
    try:
        return spark.sql(placed.sql, None, **frames)
    except ParseException:
        spark.sql(sql)  # says the same of the text as the user wrote it, with its positions
        raise


def chosen_columns(table: str, columns: Sequence[tuple[str, str]]) -> str:
    """SELECT of ``(alias, source column)`` pairs from a table, everything quoted."""
    source = ".".join(quoted(part) for part in table.split("."))
    chosen = ", ".join(f"{quoted(column)} AS {quoted(alias)}" for alias, column in columns)
    return f"SELECT {chosen or '*'} FROM {source}"


def quoted(name: str) -> str:
    """A name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _tables(tree: exp.Query) -> list[exp.Table]:
    found: dict[int, exp.Table] = {}
    for scope in traverse_scope(tree):
        shared = {name.lower() for name in scope.cte_sources}
        for table in scope.tables:
            is_name = isinstance(table.this, exp.Identifier)
            if is_name and (table.db or table.name.lower() not in shared):
                found[id(table)] = table
    return list(found.values())


def _parts(table: exp.Table | exp.Column) -> list[Any]:
    """The identifiers of a qualified name, outermost first."""
    keys = ("catalog", "db", "this") if isinstance(table, exp.Table) else ("catalog", "db", "table")
    return [table.args[key] for key in keys if table.args.get(key) is not None]


def _unqualified_columns(tree: exp.Query, tables: list[exp.Table]) -> list[_Edit]:
    """``schema.table.column`` says ``table.column`` once the table has its own name as an alias."""
    names = {tuple(part.name.lower() for part in _parts(table)) for table in tables if not table.alias}
    edits = []
    for column in tree.find_all(exp.Column):
        parts = _parts(column)
        if len(parts) > 1 and tuple(part.name.lower() for part in parts) in names:
            edits.append(_Edit(parts[0].meta["start"], parts[-1].meta["start"], ""))
    return edits


def _end_of_sample(tokens: Sequence[Any], end: int) -> int:
    """Where an alias goes: after the name, or after its TABLESAMPLE (…)."""
    following = [token for token in tokens if token.start >= end]
    if not following or following[0].token_type.name != "TABLE_SAMPLE":
        return end
    depth = 0
    for token in following:
        depth += {"L_PAREN": 1, "R_PAREN": -1}.get(token.token_type.name, 0)
        if token.token_type.name == "R_PAREN" and depth == 0:
            return int(token.end) + 1
    return end


def _edited(sql: str, edits: list[_Edit]) -> str:
    out: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        out += [
            _literal(sql[at : edit.start]),
            edit.text if edit.text.startswith("{") else _literal(edit.text),
        ]
        at = edit.end
    out.append(_literal(sql[at:]))
    return "".join(out)


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
