"""Embeds the user's SQL word for word.

The tokens show where a statement ends, which names an expression uses and where ``col`` is. The text
itself is never parsed and rewritten, so no part of its dialect is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # exported, but not marked so

from ematix_flow.errors import PlanError, SqlRefused
from ematix_flow.strategies.sql import column

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}


def one_statement(sql: str, dialect: str) -> str:
    """A query without its final semicolon; PlanError when there is none, or more than one."""
    try:
        tokens = _tokens(sql, dialect)
    except TokenError:
        return sql  # the database reports what is wrong with its own SQL
    if not tokens:
        raise SqlRefused(
            "the source SQL is empty",
            next_step="return a SELECT from the pipeline's function, or give source_table=",
        )
    ends = [t for t in tokens if t.token_type == TokenType.SEMICOLON]
    if not ends:
        return sql
    rest = [t for t in tokens if t.start > ends[0].start and t.token_type != TokenType.SEMICOLON]
    if rest or tokens[0] is ends[0]:
        raise SqlRefused(
            "the source SQL holds more than one statement",
            next_step="return one SELECT; what must run before or after belongs into transforms",
        )
    return sql[: ends[0].start]


def parse_expression(
    raw: str, dialect: str, *, value: exp.Expression | None = None, what: str
) -> exp.Expression:
    """The expression in parentheses, word for word, with ``col`` replaced by ``value`` if given."""
    try:
        tokens = _tokens(raw, dialect)
    except TokenError as error:
        raise PlanError(f"{what}: the expression {raw!r} cannot be read: {error}") from None
    _refuse_unbalanced(tokens, raw, what)
    text = raw
    if value is not None:
        written = value.sql(dialect=dialect)
        for place in reversed(range(len(tokens))):
            if _stands_for_value(tokens, place):
                token = tokens[place]
                text = text[: token.start] + written + text[token.end + 1 :]
    return exp.Paren(this=exp.Var(this=f"{text}\n"))  # the newline ends a trailing comment


def names_in(raw: str, dialect: str) -> set[str]:
    """Every word and quoted name of an expression, columns included."""
    try:
        return {t.text for t in _tokens(raw, dialect) if t.token_type != TokenType.STRING}
    except TokenError:
        return set()


@dataclass(frozen=True)
class Ordering:
    """One item of an ORDER BY. ``nulls_first`` is None where the user did not say."""

    text: str
    descending: bool
    nulls_first: bool | None


def parse_orderings(raw: str, dialect: str) -> list[Ordering]:
    """The items of ``a desc, lower(b) nulls first``."""
    what = "order_by"
    try:
        tokens = _tokens(raw, dialect)
    except TokenError as error:
        raise PlanError(f"{what}: {raw!r} cannot be read: {error}") from None
    _refuse_unbalanced(tokens, raw, what)
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if token.token_type == TokenType.COMMA and depth == 0:
            items.append([])
        else:
            items[-1].append(token)
    return [_parse_ordering(item, raw) for item in items]


def _parse_ordering(item: list[Token], raw: str) -> Ordering:
    nulls_first, descending = None, False
    words = [t.text.upper() for t in item]
    if words[-2:] in (["NULLS", "FIRST"], ["NULLS", "LAST"]):
        nulls_first = words[-1] == "FIRST"
        item, words = item[:-2], words[:-2]
    if words[-1:] in (["ASC"], ["DESC"]):
        descending = words[-1] == "DESC"
        item = item[:-1]
    if not item:
        raise PlanError(f"order_by: {raw!r} holds an item without a column")
    return Ordering(raw[item[0].start : item[-1].end + 1], descending, nulls_first)


def ordering_tree(item: Ordering, columns: Sequence[str], dialect: str) -> exp.Ordered:
    """The item as a tree. Nulls come last by default, so that the same row wins on every engine."""
    this = (
        column(item.text) if item.text in columns else parse_expression(item.text, dialect, what="order_by")
    )
    return exp.Ordered(this=this, desc=item.descending, nulls_first=bool(item.nulls_first))


def _tokens(sql: str, dialect: str) -> list[Token]:
    return Dialect.get_or_raise(dialect).tokenize(sql)


def _refuse_unbalanced(tokens: list[Token], raw: str, what: str) -> None:
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth < 0 or token.token_type == TokenType.SEMICOLON:
            raise PlanError(f"{what}: {raw!r} is not one expression", next_step="balance its parentheses")
    if depth or not tokens:
        raise PlanError(f"{what}: {raw!r} is not one expression", next_step="balance its parentheses")


def _stands_for_value(tokens: list[Token], place: int) -> bool:
    token = tokens[place]
    if token.token_type != TokenType.VAR or token.text != "col":
        return False
    before = tokens[place - 1].token_type if place else None
    after = tokens[place + 1].token_type if place + 1 < len(tokens) else None
    return before != TokenType.DOT and after not in (TokenType.L_PAREN, TokenType.DOT)
