"""Builders of the SQL trees that all dialects share. They take and give trees, never text."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from sqlglot import exp

ROWS = "checked"  # the alias under which the rows stand in every compiled query


def text(value: str) -> exp.Expression:
    return exp.Literal.string(value)


def number(value: int | Decimal) -> exp.Expression:
    """An exact number, without exponent, so that every engine reads a whole number or a decimal."""
    written = str(abs(value)) if isinstance(value, int) else format(abs(value), "f")
    tree = exp.Literal.number(written)
    return exp.Paren(this=exp.Neg(this=tree)) if value < 0 else tree


def call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))


def cast(tree: exp.Expression, kind: str) -> exp.Expression:
    """A cast to a type of sqlglot, as in ``DOUBLE`` or ``TIMESTAMPTZ``."""
    return exp.Cast(this=tree, to=exp.DataType(this=exp.DataType.Type[kind]))


def case(
    when: exp.Expression, then: exp.Expression, otherwise: exp.Expression | None = None
) -> exp.Expression:
    return exp.Case(ifs=[exp.If(this=when, true=then)], default=otherwise)


def is_null(tree: exp.Expression) -> exp.Expression:
    return exp.Is(this=tree.copy(), expression=exp.Null())


def is_not_null(tree: exp.Expression) -> exp.Expression:
    return exp.Not(this=is_null(tree))


def is_true(tree: exp.Expression) -> exp.Expression:
    """Never NULL."""
    return exp.Is(this=_paren(tree), expression=exp.true())


def is_false(tree: exp.Expression) -> exp.Expression:
    """Never NULL."""
    return exp.Is(this=_paren(tree), expression=exp.false())


def not_(tree: exp.Expression) -> exp.Expression:
    return exp.Not(this=_paren(tree))


def all_of(*conditions: exp.Expression | None) -> exp.Expression | None:
    """The conditions that are given, joined by AND; None without any."""
    return _joined(exp.And, conditions)


def any_of(*conditions: exp.Expression | None) -> exp.Expression | None:
    return _joined(exp.Or, conditions)


def _joined(
    joiner: type[exp.Connector], conditions: tuple[exp.Expression | None, ...]
) -> exp.Expression | None:
    given = [condition for condition in conditions if condition is not None]
    if not given:
        return None
    tree: Any = given[0].copy()
    for condition in given[1:]:  # only the conditions are copied: a copy of the tree each time takes long
        tree = joiner(this=_in_parentheses(tree), expression=_paren(condition))
    return tree  # type: ignore[no-any-return]


def always(truth: bool) -> exp.Expression:
    """A condition that is the same for every row, as every dialect and every WHERE takes it."""
    return exp.EQ(this=number(1), expression=number(1 if truth else 0))


def count_rows() -> exp.Expression:
    return exp.Count(this=exp.Star())


def column(name: str, table: str = ROWS) -> exp.Expression:
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(table, quoted=True))


def aliased(tree: exp.Expression, name: str) -> exp.Expression:
    return exp.Alias(this=tree, alias=exp.to_identifier(name, quoted=True))


def from_rows(rows: exp.Query | exp.Table, *selected: exp.Expression, alias: str = ROWS) -> exp.Select:
    """``SELECT … FROM rows AS checked``."""
    name = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
    source = rows.copy()
    selecting = exp.Select(expressions=list(selected))
    if isinstance(source, exp.Table):
        source.set("alias", name)
        return selecting.from_(source, copy=False)
    return selecting.from_(exp.Subquery(this=source, alias=name), copy=False)


def filtered(select: exp.Select, *conditions: exp.Expression | None) -> exp.Select:
    condition = all_of(*conditions)
    return select if condition is None else select.where(condition, copy=False)


def joined(select: exp.Select, joins: Iterable[exp.Join]) -> exp.Select:
    for join in joins:
        select.append("joins", join)
    return select


def scalar(select: exp.Select) -> exp.Expression:
    """A query of one row and one column as a value."""
    return exp.Subquery(this=select)


def _paren(tree: exp.Expression) -> exp.Expression:
    return _in_parentheses(tree.copy())


def _in_parentheses(tree: exp.Expression) -> exp.Expression:
    compound = isinstance(tree, (exp.Connector, exp.Not, exp.Predicate, exp.Unary, exp.Binary))
    return exp.Paren(this=tree) if compound and not isinstance(tree, exp.Paren) else tree
