"""A user's SQL statement on lake tables: its table names are resolved, the rest stays as written.

One INSERT, UPDATE, DELETE or MERGE is one commit of one table. Other statements are refused: loads create and
change tables, and `flow maintain` maintains them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from ematix_flow.backends.spark_sql.query_tables import TableName, name_parts, parse_time_travel, quote_name
from ematix_flow.errors import Unsupported

_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_BEGINS = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "WITH"})


@dataclass(frozen=True)
class LakeStatement:
    """``changed_table`` is the table that the statement changes, as the user names it."""

    sql: str
    changed_table: TableName


def resolve_tables(sql: str, named: Callable[[TableName], str]) -> LakeStatement:
    """Replace each table name with the result of ``named``; Unsupported if the statement does not change
    rows."""
    tree = _parse(sql)
    tokens = sqlglot.tokenize(sql, read="spark")
    shared = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    edits: list[tuple[int, int, str]] = []
    renamed: set[TableName] = set()
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or (not table.db and table.name.lower() in shared):
            continue
        parts = name_parts(table)
        name = tuple(part.name for part in parts)
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        edits.append((start, end, named(name)))
        if not table.alias and not (isinstance(tree, exp.Insert) and table is target):
            behind = parse_time_travel(sql, tokens, table, end)[1]
            edits.append((behind, behind, f" AS {quote_name(name[-1])}"))
            renamed.add(tuple(part.lower() for part in name))
    for column in tree.find_all(exp.Column):
        parts = name_parts(column)
        if len(parts) > 1 and tuple(part.name.lower() for part in parts) in renamed:
            edits.append((parts[0].meta["start"], parts[-1].meta["start"], ""))
    return LakeStatement(_apply_edits(sql, edits), tuple(part.name for part in name_parts(target)))


def _parse(sql: str) -> exp.Expr:
    trees: list[exp.Expr | None] = []
    why = ""
    try:
        words = [token.text.upper() for token in sqlglot.tokenize(sql, read="spark")]
        if words and words[0] in _BEGINS:
            trees = [tree for tree in sqlglot.parse(sql, read="spark") if tree is not None]
    except SqlglotError as error:
        why = f": {str(error).splitlines()[0]}"
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, _CHANGES):
        raise Unsupported(
            f"a statement on a lake must be one INSERT, UPDATE, DELETE or MERGE, which is one commit{why}",
            next_step="run statements one by one; loads create tables, and  flow maintain  keeps them",
        )
    return tree


def _apply_edits(sql: str, edits: list[tuple[int, int, str]]) -> str:
    out: list[str] = []
    at = 0
    for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
        out += [sql[at:start], text]
        at = end
    return "".join([*out, sql[at:]])
