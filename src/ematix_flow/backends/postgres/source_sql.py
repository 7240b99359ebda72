"""The user's SQL as a plain SELECT, which can take an added condition.

Nothing is rewritten: the server gets the SQL as typed. Only a plain SELECT over one table can take an added
condition, which is how a table is read in splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # defined elsewhere

_PLAIN_SELECT = {"expressions", "from_", "where"}
_PLAIN_TABLE = {"this", "db", "catalog", "alias"}


@dataclass(frozen=True)
class PlainSelect:
    """A SELECT of one table with at most a WHERE: each result row comes from one table row."""

    sql: str
    schema: str | None
    table: str
    condition_start: int | None  # where the text after WHERE begins
    quoted: tuple[bool, bool]

    def with_condition(self, condition: str) -> str:
        """The same SELECT with an added condition."""
        if self.condition_start is None:
            return f"{self.sql}\nWHERE {condition}"
        return f"{self.sql[: self.condition_start]} ({self.sql[self.condition_start :]}\n) AND {condition}"

    @property
    def relation(self) -> str:
        """The table's name as quoted SQL, in lower case unless the user quoted it."""
        parts = [(self.schema, self.quoted[0]), (self.table, self.quoted[1])]
        return ".".join('"' + (p if q else p.lower()).replace('"', '""') + '"' for p, q in parts if p)


def parse_plain_select(sql: str) -> PlainSelect | None:
    """The SQL as a plain SELECT, or None when it is anything else or cannot be parsed.

    Functions are not checked: only the server knows which ones are aggregates.
    """
    tokens = _tokenize(sql)
    if not tokens or tokens[0].token_type is not TokenType.SELECT:
        return None
    try:
        trees = sqlglot.parse(sql, read="postgres")
    except SqlglotError:
        return None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Select) or {k for k, v in tree.args.items() if v} - _PLAIN_SELECT:
        return None
    source = tree.args["from_"].this if tree.args.get("from_") else None
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        return None
    if {k for k, v in source.args.items() if v} - _PLAIN_TABLE or source.args.get("catalog"):
        return None
    if any(node is not tree for node in tree.find_all(exp.Query)):
        return None
    schema = source.args.get("db")
    return PlainSelect(
        sql,
        schema.name if schema else None,
        source.name,
        _after_where(tokens) if tree.args.get("where") else None,
        (bool(schema and schema.args.get("quoted")), bool(source.this.args.get("quoted"))),
    )


def _after_where(tokens: list[Token]) -> int:
    depth = 0
    for token in tokens:
        if token.token_type is TokenType.L_PAREN:
            depth += 1
        elif token.token_type is TokenType.R_PAREN:
            depth -= 1
        elif token.token_type is TokenType.WHERE and depth == 0:
            return token.end + 1
    raise AssertionError("a WHERE that was parsed is not among the tokens")


def _tokenize(sql: str) -> list[Token]:
    try:
        return list(sqlglot.tokenize(sql, read="postgres"))
    except SqlglotError:
        return []
