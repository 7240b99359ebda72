"""Checks the arguments of a data probe's assertions. Each error shows the call as it is written correctly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from ematix_probe import portable_regex
from ematix_probe.assertions import Bound, Options
from ematix_probe.column_types import plain_type
from ematix_probe.errors import DeclarationError
from ematix_probe.location import caller_location
from ematix_probe.suggestions import did_you_mean

_EXAMPLES = {
    "column": 't.column("amount").not_null()',
    "add": 't.add(NotNull("amount"))',
    "not_null": 't.column("amount").not_null(severity="warn")',
    "unique": 't.unique(["order_id", "line"])',
    "between": 't.column("amount").between(0, 100)',
    "regex": 't.column("email").regex(r"^[^@]+@[^@]+$")',
    "is_in": 't.column("state").is_in(["new", "paid"])',
    "row_count": "t.row_count(at_least=1)",
    "freshness": 't.column("updated_at").freshness(within="6h")',
    "expression": 't.expression("amount >= 0")',
    "foreign_key": 't.foreign_key("customer_id", references="customers", referenced_columns=["id"])',
    "schema_match": 't.schema_match({"id": "bigint", "email": "text"})',
    "row_count_change": "t.row_count_change(max_drop=0.2)",
    "drift": 't.drift("row_count")  or  t.column("amount").drift("average", sensitivity=6)',
    "percentile_between": 't.column("amount").percentile_between(0.99, 0, 1000)',
    "cardinality_between": 't.column("country").cardinality_between(1, 200)',
    "sum_between": 't.column("amount").sum_between(0, 1_000_000)',
    "null_share": 't.column("email").null_share(at_most=0.05)',
}


def wrong(method: str, what: str) -> DeclarationError:
    return DeclarationError(
        f"{method}(): {what}", where=caller_location(), next_step=f"write  {_EXAMPLES[method]}"
    )


def options_of(
    method: str, given: Mapping[str, Any], *own: str, tolerate: bool = True, where: bool = True
) -> Options:
    """What every assertion takes, checked; ``own`` are the method's other options."""
    allowed = ["severity", "name", *(["where"] if where else []), *(["tolerate"] if tolerate else [])]
    for name in given:
        if name not in allowed:
            taken = [*own, *allowed]
            raise DeclarationError(
                f"{method}() takes no option {name!r}{did_you_mean(name, taken)}",
                where=caller_location(),
                next_step=f"it takes {', '.join(f'{each}=' for each in taken)}",
            )
    severity = given.get("severity", "fail")
    if severity not in ("fail", "warn"):
        raise wrong(method, f'severity= is "fail" or "warn", not {severity!r}')
    tolerated = given.get("tolerate", 0.0)
    if is_number(tolerated) and 1 < tolerated <= 100:
        raise DeclarationError(
            f"{method}(): tolerate= is a share from 0 to 1, not {tolerated!r}",
            where=caller_location(),
            next_step=f"write  tolerate={tolerated / 100:g}  for {tolerated:g} %",
        )
    tolerated = share(method, "tolerate", tolerated)
    for name in ("where", "name"):
        if given.get(name) is not None:
            if isinstance(given[name], str) and not given[name].strip():
                raise DeclarationError(
                    f"{method}(): {name}= is a text that is not empty, not {given[name]!r}",
                    where=caller_location(),
                    next_step=f"leave {name}= out",
                )
            text(method, f"{name}=", given[name])
    return Options(severity=severity, where=given.get("where"), tolerate=tolerated, name=given.get("name"))


def text(method: str, what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong(method, f"{what} is a text that is not empty, not {value!r}")
    return value


def column_names(method: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise wrong(method, f"it takes a list of columns, not {names!r}")
    listed = tuple(text(method, "the name of a column", name) for name in names)
    if not listed:
        raise wrong(method, "it needs at least one column")
    if len(set(listed)) != len(listed):
        raise wrong(method, f"a column is named twice: {', '.join(listed)}")
    return listed


def flag(method: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(method, f"{name}= is True or False, not {value!r}")
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def count(method: str, name: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise wrong(method, f"{name}= is a whole number from 0, not {value!r}")
    return value


def share(method: str, name: str, value: Any) -> float:
    if not is_number(value) or not 0 <= value <= 1:
        raise wrong(method, f"{name}= is a share from 0 to 1, not {value!r}")
    return float(value)


def value_range(method: str, low: Any, high: Any) -> None:
    if low is None and high is None:
        raise wrong(method, "it needs at least one bound")
    for bound in (low, high):
        if bound is not None:
            compared_value(method, bound)
    if low is None or high is None:
        return
    try:
        above = low > high
    except TypeError:
        raise wrong(method, f"{low!r} and {high!r} cannot be compared with each other") from None
    if above:
        raise wrong(method, f"the lower bound {low!r} is above the upper bound {high!r}")


def listed_values(method: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise wrong(method, f"it takes a list of values, not {values!r}")
    listed = tuple(values)
    if not listed:
        raise wrong(method, "it needs at least one value")
    for value in listed:
        if value is None:
            raise wrong(method, "None is no value: rows with NULL are ignored, and not_null() finds them")
        if not isinstance(value, bool):
            compared_value(method, value)
    return listed


def compared_value(method: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Bound):
        raise wrong(method, f"it compares with numbers, texts, dates and times, not with {value!r}")
    is_nan = value.is_nan() if isinstance(value, Decimal) else isinstance(value, float) and math.isnan(value)
    if is_nan:
        raise wrong(method, "NaN is no bound: no value is above, below or equal to it")


def percentile(method: str, p: Any) -> float:
    """``p`` as a share: from 0 to 1 it is one, above 1 it is a percentage."""
    if not is_number(p) or not 0 <= p <= 100:
        raise wrong(method, f"p= is a share from 0 to 1 or a percentage up to 100, not {p!r}")
    return float(p) if p <= 1 else p / 100


def pattern(method: str, given: Any) -> str:
    try:
        portable_regex.check_pattern(text(method, "the pattern", given))
    except portable_regex.PatternError as error:
        raise DeclarationError(
            error.what,
            where=caller_location(),
            next_step="use only syntax that all engines share, or expression() in the SQL of the source",
        ) from None
    return str(given)


def column_type(method: str, kind: Any) -> str:
    try:
        return plain_type(kind)
    except ValueError as error:
        raise wrong(method, str(error)) from None
