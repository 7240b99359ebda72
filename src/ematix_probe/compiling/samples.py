"""The query of sample rows: some failing rows of several assertions, from one reading of the rows.

It takes at most as many rows as `sampling` allows, in any order, and sorts only these. `sampling` also says
which assertions share a query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from ematix_probe.assertions import Assertion, Expression, Unique
from ematix_probe.compiling.conditions import (
    ConditionCompiler,
    FailingRows,
    Reference,
    Rows,
    compared_columns,
    failing_rows,
)
from ematix_probe.compiling.dialects import dialect_named
from ematix_probe.compiling.repeated_keys import RepeatedKeys, has_one_of
from ematix_probe.compiling.trees import (
    aliased,
    all_of,
    any_of,
    case,
    column,
    filtered,
    from_rows,
    is_not_null,
    is_true,
    joined,
    number,
)
from ematix_probe.compiling.user_sql import named_columns, read_condition
from ematix_probe.sources.base import ColumnInfo

_MOST_COLUMNS = 8
_FOUND, _RANKED = "found", "ranked"


@dataclass(frozen=True)
class SampledAssertion:
    """An assertion whose failing rows are wanted. ``keys``: some that `unique` found, which are enough."""

    assertion: Assertion
    keys: RepeatedKeys | None = None

    def shares_a_reading(self, dialect: str) -> bool:
        """Whether its condition looks at a row alone, so that it can be one of several of a query."""
        if self.assertion.kind == "foreign_key" or (isinstance(self.assertion, Unique) and self.keys is None):
            return False
        conditions = _conditions(self.assertion)
        return not any(read_condition(sql, dialect).find(exp.Query) for sql in conditions)


@dataclass(frozen=True)
class SampleQuery:
    """``names`` are the columns of the rows; after them is the place of the row in each assertion's samples,
    NULL where it is none."""

    query: exp.Select
    names: tuple[str, ...]
    names_of: tuple[tuple[str, ...], ...]  # of each assertion

    def read(self, rows: Sequence[Sequence[Any]]) -> list[list[dict[str, Any]]]:
        """The samples of each assertion, in order."""
        found = []
        for number_of_assertion, names in enumerate(self.names_of):
            place = len(self.names) + number_of_assertion
            own = sorted((row for row in rows if row[place] is not None), key=lambda row: int(row[place]))
            wanted = [(name, self.names.index(name)) for name in names]
            found.append([{name: row[at] for name, at in wanted} for row in own])
        return found


def sample_query(
    sampled: Sequence[SampledAssertion],
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: Rows,
    reference: Reference,
    key: Sequence[str],
    *,
    most: int | None,
    limit: int = 10,
) -> SampleQuery:
    """Of the first ``most`` rows that fail any of the assertions up to ``limit`` each, in the key's order.

    Equal keys of `unique` stand together. Without ``most`` there is one assertion, whose rows are all sorted:
    with a join, an engine would plan for few rows and then read many.
    """
    compiler = ConditionCompiler(columns, dialect_named(dialect), rows, reference)
    names_of = tuple(sample_columns(each.assertion, columns, dialect, key) for each in sampled)
    names = tuple(dict.fromkeys(name for each in names_of for name in each))
    failing = [_failing(each, compiler, rows) for each in sampled]
    flags = [
        aliased(case(each.condition.copy(), number(1), number(0)), _flag(i)) for i, each in enumerate(failing)
    ]
    if len(sampled) == 1:
        flags = [aliased(number(1), _flag(0))]
    taken = from_rows(rows, *[aliased(column(name), _value(i)) for i, name in enumerate(names)], *flags)
    taken = joined(taken, [join for found in failing for join in found.joins])
    taken = filtered(taken, any_of(*(found.condition for found in failing)))
    order = _order(sampled[0], names, compiler, column) if most is None else []
    if order:  # a list or a JSON value has none
        taken = taken.order_by(*order, copy=False)
    taken = taken.limit(number(limit if most is None else most), copy=False)

    def value_found(name: str) -> exp.Expression:
        return column(_value(names.index(name)), _FOUND)

    places = []
    for i, (each, own) in enumerate(zip(sampled, names_of, strict=True)):
        flag = column(_flag(i), _FOUND)
        by = _order(each, own, compiler, value_found) or [exp.Ordered(this=flag.copy(), nulls_first=True)]
        place = exp.Window(this=exp.RowNumber(), partition_by=[flag], order=exp.Order(expressions=by))
        places.append(aliased(place, _place(i)))
    kept = [*(_value(i) for i in range(len(names))), *(_flag(i) for i in range(len(sampled)))]
    ranked = _select_from(taken, _FOUND, *[aliased(column(name, _FOUND), name) for name in kept], *places)

    is_sample = [
        all_of(
            exp.EQ(this=column(_flag(i), _RANKED), expression=number(1)),
            exp.LTE(this=column(_place(i), _RANKED), expression=number(limit)),
        )
        for i in range(len(sampled))
    ]
    query = _select_from(
        ranked,
        _RANKED,
        *[aliased(column(_value(i), _RANKED), name) for i, name in enumerate(names)],
        *[
            aliased(case(each, column(_place(i), _RANKED)), _place(i))
            for i, each in enumerate(is_sample)
            if each is not None
        ],
    )
    return SampleQuery(filtered(query, any_of(*is_sample)), names, names_of)


def _select_from(inner: exp.Select, alias: str, *selected: exp.Expression) -> exp.Select:
    """`from_rows` of a query that nothing else uses, so that it need not be copied: it is long."""
    name = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
    return exp.Select(expressions=list(selected)).from_(exp.Subquery(this=inner, alias=name), copy=False)


def sample_columns(
    assertion: Assertion, columns: Mapping[str, ColumnInfo], dialect: str, key: Sequence[str]
) -> tuple[str, ...]:
    """The key, the columns that the assertion looks at, and without a key those that its conditions name."""
    names = dict.fromkeys([*key, *compared_columns(assertion)])
    for sql in _conditions(assertion):
        names |= dict.fromkeys(named_columns(read_condition(sql, dialect), columns))
    known = [name for name in names if name in columns]
    return tuple(known or list(columns)[:_MOST_COLUMNS])


def _conditions(assertion: Assertion) -> list[str]:
    """The conditions in the words of the user."""
    written = [assertion.options.where, assertion.sql if isinstance(assertion, Expression) else None]
    return [sql for sql in written if sql is not None]


def _order(
    sampled: SampledAssertion,
    names: Sequence[str],
    compiler: ConditionCompiler,
    value: Callable[[str], exp.Expression],
) -> list[exp.Ordered]:
    assertion = sampled.assertion
    first = assertion.columns if isinstance(assertion, Unique) else ()
    trees = [
        compiler.dialect.order(compiler.columns[name], value(name))
        for name in dict.fromkeys([*first, *names])
    ]
    return [exp.Ordered(this=tree, nulls_first=True) for tree in trees if tree is not None]


def _failing(sampled: SampledAssertion, compiler: ConditionCompiler, rows: Rows) -> FailingRows:
    assertion = sampled.assertion
    if sampled.keys is None or not isinstance(assertion, Unique):
        return failing_rows(assertion, compiler.columns, compiler.dialect.name, rows, compiler.reference)
    where = compiler.where(assertion)
    present = [is_not_null(column(name)) for name in assertion.columns]
    found = has_one_of(compiler, assertion, sampled.keys)
    return FailingRows(all_of(None if where is None else is_true(where), *present, found) or found)


def _value(place: int) -> str:
    return f"ematix_probe_value_{place}"


def _flag(place: int) -> str:
    return f"ematix_probe_fails_{place}"


def _place(place: int) -> str:
    return f"ematix_probe_place_{place}"
