"""Casts a value to its column's declared type without silent loss.

A cast that would round, cut or wrap refuses the value instead, as `backends.arrow.batch_casts` does for rows
that travel as Arrow: a load means the same on every path.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.time_format import ISO8601
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.functions.base import TypedValue, case, is_null, number
from ematix_flow.strategies.functions.column_site import ColumnSite
from ematix_flow.strategies.functions.parsing import (
    DATE,
    MOMENT,
    NAIVE,
    OnFailure,
    as_text,
    parse_bool,
    parse_date,
    parse_int,
    parse_numeric,
    parse_timestamp,
)

_TEXTS = frozenset({"text", "string"})
_NUMBERS = frozenset({"numeric", "float", "double", *INTEGER_BITS})
_TIMES = frozenset({"date", "timestamp", "timestamp_tz"})
_BOOLEAN_WORDS = (("true", "t", "1", "yes", "y", "on"), ("false", "f", "0", "no", "n", "off"))


def needs_cast(have: DataType | None, want: DataType, *, computed: bool) -> bool:
    """``computed``: markers computed the value, so an unknown type may be any type."""
    if have is None:
        return computed
    if have.kind in _TEXTS and want.kind in _TEXTS:
        return False
    return have != want


def cast(value: TypedValue, want: DataType, site: ColumnSite) -> TypedValue:
    """The value cast to the declared type. Raises SchemaMismatch if no value could ever fit."""
    functions, have = site.functions, value.type
    if have is None:
        return TypedValue(functions.cast(value.tree, want, site.column), want)
    if have == want or (have.kind in _TEXTS and want.kind in _TEXTS):
        return TypedValue(value.tree, want)
    tree = None
    if have.kind in _TEXTS:
        tree = _from_text(value, want, site)
    elif have.kind in _NUMBERS and want.kind in _NUMBERS:
        tree = _number(value, want, site)
    elif have.kind in _TIMES and want.kind in _TIMES:
        tree = _time(value, want, site)
    elif want.kind == "boolean" and have.kind in INTEGER_BITS:
        one, zero = (exp.EQ(this=value.tree.copy(), expression=number(n)) for n in (1, 0))
        branches = [(one, functions.literal(True)), (zero, functions.literal(False))]
        tree = _first_or_reject(value, branches, want, site, "is neither 0 nor 1")
    elif have.kind == "boolean" and want.kind in _NUMBERS:
        tree = functions.cast(parse_int(value, site, OnFailure()).tree, want)
    elif want.kind in _TEXTS:
        known = have.kind == "boolean" or have.kind in INTEGER_BITS
        tree = as_text(value, site).tree if known else functions.to_text(value.tree)
    elif {have.kind, want.kind} <= {"json", "jsonb"}:
        tree = functions.cast(value.tree, want, site.column)
    if tree is None:
        raise SchemaMismatch(
            f"column {site.column!r}: the source gives {have}, the table declares {want}",
            next_step="convert it in the source SQL, or declare another type",
        )
    return TypedValue(tree, want)


def _from_text(value: TypedValue, want: DataType, site: ColumnSite) -> exp.Expression:
    functions, failure = site.functions, OnFailure()
    if want.kind in INTEGER_BITS:
        wide = parse_int(value, site, failure)
        return wide.tree if want == wide.type else functions.cast(wide.tree, want, site.column)
    if want.kind == "numeric":
        return parse_numeric(value, want, site, failure).tree
    if want.kind == "boolean":
        return parse_bool(value, *_BOOLEAN_WORDS, site, failure).tree
    if want.kind == "date":
        return parse_date(value, (ISO8601,), site, failure).tree
    if want.kind in ("timestamp", "timestamp_tz"):
        moment = parse_timestamp(value, (ISO8601,), site, failure).tree
        return moment if want.kind == "timestamp_tz" else functions.from_utc(moment)
    return functions.cast(value.tree, want, site.column)


def _number(value: TypedValue, want: DataType, site: ColumnSite) -> exp.Expression:
    functions, have = site.functions, value.type
    assert have is not None
    plain = functions.cast(value.tree.copy(), want, site.column)
    if want.kind in ("float", "double") or have.kind in INTEGER_BITS:
        return plain
    if have.kind == "numeric":
        digits = 0 if want.kind in INTEGER_BITS else (want.scale or 0)
        if (have.scale or 0) <= digits:
            return plain
        same = functions.equal(value.tree.copy(), functions.round(value.tree.copy(), digits, have))
        return _first_or_reject(value, [(same, plain)], want, site, f"has more digits than {want}")
    if want.kind in INTEGER_BITS:
        return functions.cast(parse_int(value, site, OnFailure()).tree, want, site.column)
    exact = parse_numeric(value, want, site, OnFailure()).tree
    back = functions.convert(functions.decimal_of(value.tree.copy(), want), DataType("double"))
    same = exp.EQ(this=back, expression=functions.convert(value.tree.copy(), DataType("double")))
    return _first_or_reject(value, [(same, exact)], want, site, f"has more digits than {want}")


def _time(value: TypedValue, want: DataType, site: ColumnSite) -> exp.Expression:
    functions = site.functions
    tree = functions.temporal(value.tree, value.type or want)
    if want.kind == "date":
        naive = functions.from_utc(tree) if value.kind == "timestamp_tz" else tree
        midnight = exp.EQ(this=functions.start_of("day", naive.copy()), expression=naive.copy())
        branches = [(midnight, functions.convert(naive, DATE))]
        return _first_or_reject(value, branches, want, site, "has a time of day")
    if value.kind == "date":
        tree = functions.convert(tree, NAIVE)
        return functions.to_utc(tree) if want == MOMENT else tree
    return functions.to_utc(tree) if want == MOMENT else functions.from_utc(tree)


def _first_or_reject(
    value: TypedValue,
    branches: Sequence[tuple[exp.Expression, exp.Expression]],
    want: DataType,
    site: ColumnSite,
    what: str,
) -> exp.Expression:
    functions = site.functions
    null = (is_null(value.tree.copy()), exp.Null())
    refusal = functions.reject(site.column, functions.to_text(value.tree.copy()), what, want)
    return case(null, *branches, otherwise=refusal)
