"""The first keys that `unique` finds repeated. The statement of measures returns them next to their count, if
samples are wanted.

Samples then look for these keys, and need not group all rows again. Only engines that evaluate a common table
expression once return them, and only keys whose values leave the engine and come back as the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from ematix_probe.assertions import Unique
from ematix_probe.compiling.conditions import ConditionCompiler, key_name
from ematix_probe.compiling.trees import (
    aliased,
    all_of,
    any_of,
    cast,
    column,
    count_rows,
    from_rows,
    number,
    scalar,
    text,
)

_KEYS_FOUND = 5  # each has two rows or more: enough for ten samples
_ROWS = "ematix_probe_rows_of_key"
_AFTER_ROWS, _AFTER_PART, _AFTER_KEY = ":", ",", ";"  # in the text of the keys, whose parts have none of them


@dataclass(frozen=True)
class RepeatedKeys:
    """Some repeated keys, as `ProbeDialect.returned` gives them, and how many rows have one of them."""

    keys: tuple[tuple[Any, ...], ...]
    rows: int


@dataclass(frozen=True)
class RepeatedKeysQuery:
    """A common table expression, the number of rows with a repeated key, and the text that `read_keys` reads.

    The text has a few keys, and is all in ASCII: a driver can read it for any keys.
    """

    table: exp.CTE
    count: exp.Expression
    keys: exp.Expression


def repeated_keys_query(
    compiler: ConditionCompiler, assertion: Unique, name: str
) -> RepeatedKeysQuery | None:
    """None where the engine or the type of a column does not allow it."""
    dialect = compiler.dialect
    if not dialect.evaluates_tables_once:
        return None
    infos = [compiler.column(each) for each in assertion.columns]
    parts = [key_name(place) for place in range(len(infos))]
    written = [dialect.written(info, column(part, name)) for info, part in zip(infos, parts, strict=True)]
    keys = compiler.repeated_keys(assertion, *compiler.named_parts(assertion), aliased(count_rows(), _ROWS))
    first = from_rows(_table(name), *[column(each, name) for each in (*parts, _ROWS)], alias=name)
    ordered = [exp.Ordered(this=column(part, name), nulls_first=True) for part in parts]
    first = first.order_by(*ordered, copy=False).limit(number(_KEYS_FOUND), copy=False)
    key: exp.Expression = cast(column(_ROWS, name), "TEXT")
    for place, tree in enumerate(written):
        if tree is None:
            return None
        before = text(_AFTER_PART if place else _AFTER_ROWS)
        key = exp.DPipe(this=exp.DPipe(this=key, expression=before), expression=exp.Paren(this=tree))
    joined = from_rows(first, dialect.texts_joined(key, _AFTER_KEY), alias=name)
    counted = from_rows(_table(name), exp.Sum(this=column(_ROWS, name)), alias=name)
    return RepeatedKeysQuery(_named(name, keys), scalar(counted), scalar(joined))


def read_keys(written: str | None) -> RepeatedKeys | None:
    """The keys of the text that can be written as literals; None without one."""
    found, rows = [], 0
    for one in written.split(_AFTER_KEY) if written else ():
        count, _, parts = one.partition(_AFTER_ROWS)
        key = tuple(_read_part(part) for part in parts.split(_AFTER_PART))
        if None not in key:
            found.append(key)
            rows += int(count)
    return RepeatedKeys(tuple(found), rows) if found else None


def _read_part(written: str) -> bool | int | str | None:
    """A value that `ProbeDialect.written` wrote; None for a text without a literal that is equal to it."""
    kind, value = written[0], written[1:]
    if kind == "i":
        return int(value)
    if kind == "b":
        return value == "true"
    try:
        letters = bytes.fromhex(value).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in letters else letters


def has_one_of(compiler: ConditionCompiler, assertion: Unique, found: RepeatedKeys) -> exp.Expression:
    """The condition of the rows with one of the keys."""
    parts = []
    for name in assertion.columns:
        tree = compiler.dialect.returned(compiler.column(name), compiler.key_part(name))
        assert tree is not None
        parts.append(tree)
    if len(parts) == 1:
        return exp.In(this=parts[0], expressions=[_literal(value) for (value,) in found.keys])
    each = [
        all_of(
            *(
                exp.EQ(this=part.copy(), expression=_literal(value))
                for part, value in zip(parts, key, strict=True)
            )
        )
        for key in found.keys
    ]
    condition = any_of(*each)
    assert condition is not None
    return condition


def _literal(value: Any) -> exp.Expression:
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    return number(value) if isinstance(value, int) else text(value)


def _table(name: str) -> exp.Table:
    return exp.Table(this=exp.to_identifier(name, quoted=True))


def _named(name: str, query: exp.Select) -> exp.CTE:
    return exp.CTE(this=query, alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
