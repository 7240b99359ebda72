"""What each normaliser does to a value, written once for all engines."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal

from sqlglot import exp

from ematix_flow.errors import Unsupported
from ematix_flow.spec.normalize import Normalizer
from ematix_flow.spec.normalizer_arguments import Scalar
from ematix_flow.spec.types import INTEGER_BITS, DataType
from ematix_flow.strategies.functions import parsing
from ematix_flow.strategies.functions.base import SqlFunctions, TypedValue, call, case, number, text
from ematix_flow.strategies.functions.column_site import ColumnSite
from ematix_flow.strategies.functions.parsing import DATE, MOMENT, NAIVE, TEXT, OnFailure, as_text

_EXACT_BELOW = Decimal("1e15")  # above this, rounding cannot change a double
_REALS = ("float", "double")

Apply = Callable[[Normalizer, TypedValue, ColumnSite], TypedValue]


def apply_marker(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    """The value after one marker. ``sql`` and ``derive`` hold raw SQL and belong to the projection."""
    return _MARKERS[marker.name](marker, value, site)


def _text_marker(change: Callable[[Normalizer, exp.Expression, SqlFunctions], exp.Expression]) -> Apply:
    def apply(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
        return TypedValue(change(marker, as_text(value, site).tree, site.functions), TEXT)

    return apply


def _regex_replace(marker: Normalizer, tree: exp.Expression, functions: SqlFunctions) -> exp.Expression:
    flags = marker["flags"]
    return functions.regex_replace(
        tree, marker["pattern"], marker["replacement"], everywhere="g" in flags, ignore_case="i" in flags
    )


def _null_if(tree: exp.Expression, other: exp.Expression) -> exp.Expression:
    return exp.Nullif(this=tree, expression=other)


# --- dates and times -------------------------------------------------------------------------------


def _on_failure(marker: Normalizer) -> OnFailure:
    return OnFailure(marker["on_failure"], marker["default"])


def _parse_timestamp(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    return parsing.parse_timestamp(value, marker["formats"], site, _on_failure(marker))


def _parse_date(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    return parsing.parse_date(value, marker["formats"], site, _on_failure(marker))


def _needs_time(marker: Normalizer, value: TypedValue, site: ColumnSite) -> None:
    if value.type is not None and value.kind not in ("timestamp", "timestamp_tz", "date"):
        raise Unsupported(
            f"column {site.column!r}: {marker.name}() needs a date or time, and the value is {value.type}",
            next_step=f"put parse_timestamp() before {marker.name}()",
        )


def _to_timezone(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    _needs_time(marker, value, site)
    functions = site.functions
    tree = functions.temporal(value.tree, value.type or MOMENT)
    if value.kind == "date":
        tree = functions.convert(tree, NAIVE)
    if value.kind in ("date", "timestamp"):
        tree = functions.to_utc(tree)
    return TypedValue(functions.local(tree, marker["tz"]), NAIVE)


def _date_trunc(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    _needs_time(marker, value, site)
    functions, unit = site.functions, marker["precision"]
    tree = functions.temporal(value.tree, value.type or MOMENT)
    if value.kind == "date":
        start = functions.start_of(unit, functions.convert(tree, NAIVE))
        return TypedValue(functions.convert(start, DATE), DATE)
    if value.kind == "timestamp":
        return TypedValue(functions.start_of(unit, tree), NAIVE)
    return TypedValue(functions.to_utc(functions.start_of(unit, functions.from_utc(tree))), MOMENT)


# --- numbers and booleans --------------------------------------------------------------------------


def _parse_int(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    return parsing.parse_int(value, site, _on_failure(marker))


def _parse_numeric(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    to = DataType("numeric", precision=marker["precision"], scale=marker["scale"])
    return parsing.parse_numeric(value, to, site, _on_failure(marker))


def _parse_bool(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    return parsing.parse_bool(value, marker["truthy"], marker["falsy"], site, _on_failure(marker))


def _needs_number(marker: Normalizer, value: TypedValue, site: ColumnSite) -> None:
    if value.type is not None and value.kind not in ("numeric", *_REALS, *INTEGER_BITS):
        raise Unsupported(
            f"column {site.column!r}: {marker.name}() needs a number, and the value is {value.type}",
            next_step=f"put parse_numeric(…) or parse_int() before {marker.name}()",
        )


def _round(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    _needs_number(marker, value, site)
    functions, digits = site.functions, marker["p"]
    if value.kind in INTEGER_BITS:
        if digits >= 0:
            return value
        wide = DataType("numeric", precision=38, scale=0)
        return TypedValue(functions.round(functions.convert(value.tree, wide), digits, wide), wide)
    if value.kind in _REALS:
        value = site.own_level(value)
    rounded = functions.round(value.tree.copy(), digits, value.type)
    if value.kind in _REALS:
        small = exp.LT(this=call("ABS", value.tree.copy()), expression=number(_EXACT_BELOW))
        return TypedValue(case((small, rounded), otherwise=value.tree.copy()), value.type)
    if value.type is None:
        return TypedValue(rounded, None)
    scale = min(value.type.scale or 0, max(digits, 0))
    return TypedValue(rounded, DataType("numeric", precision=38, scale=scale))


def _clamp(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    functions, low, high = site.functions, marker["low"], marker["high"]
    bounds = [b for b in (low, high) if b is not None]
    if isinstance(bounds[0], dt.date):
        _needs_time(marker, value, site)
    else:
        _needs_number(marker, value, site)
    if value.kind in INTEGER_BITS:
        low = None if low is None else math.ceil(low)
        high = None if high is None else math.floor(high)
    value = site.own_level(value)
    branches = []
    for bound, is_low in ((low, True), (high, False)):
        if bound is not None:
            limit = constant(bound, value.type, site)
            pair = (value.tree.copy(), limit) if is_low else (limit, value.tree.copy())
            branches.append((functions.less(*pair), limit.copy()))
    kind = (
        DataType("numeric", precision=38, scale=_scale(value.type, bounds))
        if value.kind == "numeric"
        else value.type
    )
    return TypedValue(case(*branches, otherwise=value.tree.copy()), kind)


def _scale(data_type: DataType | None, bounds: list[Scalar]) -> int:
    scales = [-int(Decimal(str(b)).as_tuple().exponent) for b in bounds]
    return max([(data_type.scale or 0) if data_type else 0, *scales])


# --- nulls -----------------------------------------------------------------------------------------


def _default(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    instead = constant(marker["value"], value.type, site)
    return TypedValue(exp.Coalesce(this=value.tree, expressions=[instead]), value.type)


def _nullif(marker: Normalizer, value: TypedValue, site: ColumnSite) -> TypedValue:
    other = constant(marker["value"], value.type, site)
    if value.kind == "numeric":
        value = site.own_level(value)
        same = site.functions.equal(value.tree.copy(), other)
        return TypedValue(case((same, exp.Null()), otherwise=value.tree.copy()), value.type)
    return TypedValue(_null_if(value.tree, other), value.type)


def constant(value: Scalar, data_type: DataType | None, site: ColumnSite) -> exp.Expression:
    """A marker's constant in the type of the column's value at that point."""
    fitted = value if data_type is None else _fit(value, data_type)
    if fitted is None:
        raise Unsupported(
            f"column {site.column!r}: {value!r} does not fit the value, which is {data_type} there",
            next_step="write a constant of that type, or change the order of the markers",
        )
    tree = site.functions.literal(fitted)
    return site.functions.convert(tree, data_type) if data_type and data_type.kind in _REALS else tree


def _fit(value: Scalar, data_type: DataType) -> Scalar | None:
    kind = data_type.kind
    if kind in ("text", "string", "uuid", "json", "jsonb"):
        if isinstance(value, bool):
            return str(value).lower()
        return value.isoformat(" ") if isinstance(value, dt.datetime) else str(value)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind in INTEGER_BITS or kind in ("numeric", *_REALS):
        return _fit_number(value, kind)
    if kind == "date":
        if isinstance(value, str):
            return _parse_or_none(dt.date.fromisoformat, value)
        return value if isinstance(value, dt.date) and not isinstance(value, dt.datetime) else None
    if kind in ("timestamp", "timestamp_tz"):
        return _fit_moment(value, aware=kind == "timestamp_tz")
    return None


def _fit_number(value: Scalar, kind: str) -> Scalar | None:
    if isinstance(value, (bool, dt.date)):
        return None
    try:
        exact = Decimal(str(value))
    except ArithmeticError:
        return None
    if kind in INTEGER_BITS:
        return int(exact) if exact == exact.to_integral_value() else None
    return exact


def _fit_moment(value: Scalar, *, aware: bool) -> dt.datetime | None:
    if isinstance(value, str):
        value = _parse_or_none(dt.datetime.fromisoformat, value.replace("Z", "+00:00")) or value
    if not isinstance(value, dt.datetime) and isinstance(value, dt.date):
        value = dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, dt.datetime):
        return None
    moment = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
    return moment if aware else moment.astimezone(dt.timezone.utc).replace(tzinfo=None)


def _parse_or_none(read: Callable[[str], dt.date], written: str) -> dt.date | None:
    try:
        return read(written)
    except ValueError:
        return None


_MARKERS: dict[str, Apply] = {
    "trim": _text_marker(lambda m, tree, f: f.trim(tree)),
    "lower": _text_marker(lambda m, tree, f: f.lower(tree)),
    "upper": _text_marker(lambda m, tree, f: f.upper(tree)),
    "empty_to_null": _text_marker(lambda m, tree, f: _null_if(tree, text(""))),
    "whitespace_to_null": _text_marker(lambda m, tree, f: _null_if(f.trim(tree), text(""))),
    "replace": _text_marker(lambda m, tree, f: f.replace(tree, m["old"], m["new"])),
    "regex_replace": _text_marker(_regex_replace),
    "truncate": _text_marker(lambda m, tree, f: f.left(tree, m["n"])),
    "email_normalize": _text_marker(lambda m, tree, f: f.lower(f.trim(tree))),
    "phone_normalize": _text_marker(lambda m, tree, f: f.regex_replace(tree, "[^0-9+]", "")),
    "parse_timestamp": _parse_timestamp,
    "parse_date": _parse_date,
    "to_timezone": _to_timezone,
    "date_trunc": _date_trunc,
    "parse_int": _parse_int,
    "parse_numeric": _parse_numeric,
    "parse_bool": _parse_bool,
    "round": _round,
    "clamp": _clamp,
    "default": _default,
    "nullif": _nullif,
}
