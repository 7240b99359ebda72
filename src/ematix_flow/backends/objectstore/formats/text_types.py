"""Infers the types of columns that are stored as text, from all values and without losing one.

A column becomes a number, a date or a time only when every cell is written as one: a leading zero or a plus
sign makes it text, decimals with one number of places stay decimals, and a double has at most 15 digits.
Spark inspects the cells of CSV files; this process inspects the values in names of partition folders.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXACT_DIGITS = 15  # the digits of a decimal that a double always holds
_FLOAT_DIGITS = 6  # the same of a float
_MAX_DIGITS = 38

_END = "(?![^a]|a)"  # "$" would also match before a line end at the end of a text
_NUMBER = f"^(?!-[0.]+{_END})-?(0|[1-9][0-9]*)([.][0-9]+)?{_END}"  # only a float has a negative zero
# no significant sixteenth digit: a double would lose it
_FEW_DIGITS = f"(?!-?[0.]*[1-9]([.]?[0-9]){{{_EXACT_DIGITS - 1}}}[0-9.]*[1-9])"
_FLOAT = f"^{_FEW_DIGITS}-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?{_END}|^NaN{_END}|^-?Infinity{_END}"
_WORD_OR_ZERO = f"^-?([NI]|[0.]+([eE]|{_END}))"
_SMALLEST, _LARGEST = sys.float_info.min, sys.float_info.max  # beyond them digits are lost
_DATE = f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{_END}"
_TIME = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
_ZONE = f"(Z|[+-][0-9]{{2}}:?[0-9]{{2}}){_END}"


def _casts_sql(pattern: str, spark_type: str) -> str:
    """SQL: whether every cell has the form of the type and is valid; 2026-02-30 is not."""
    is_one = f"{{cell}} RLIKE '{pattern}' AND try_cast({{cell}} AS {spark_type}) IS NOT NULL"
    return f"bool_and({{cell}} IS NULL OR ({is_one}))"


# fact -> Spark SQL over {cell}, a string; nulls do not count
_FACTS = {
    "cells": "count({cell})",
    "number": f"bool_and({{cell}} RLIKE '{_NUMBER}')",
    # a short number always fits, and is cheap to check
    "float": f"bool_and((length({{cell}}) <= {_EXACT_DIGITS} AND {{cell}} RLIKE '{_NUMBER}') "
    f"OR ({{cell}} RLIKE '{_FLOAT}' AND ({{cell}} RLIKE '{_WORD_OR_ZERO}' "
    f"OR abs(try_cast({{cell}} AS DOUBLE)) BETWEEN {_SMALLEST!r}D AND {_LARGEST!r}D)))",
    "boolean": "bool_and(lower({cell}) IN ('true', 'false'))",
    "date": _casts_sql(_DATE, "DATE"),
    "zoned": _casts_sql(_TIME + _ZONE, "TIMESTAMP"),
    "local": _casts_sql(_TIME + _END, "TIMESTAMP_NTZ"),
    "whole_digits": "max(length(ltrim('-', split_part({cell}, '.', 1))))",
    "most_places": "max(length(split_part({cell}, '.', 2)))",
    "fewest_places": "min(length(split_part({cell}, '.', 2)))",
}


_NUMBERS = ("cells", "number", "float", "whole_digits", "most_places", "fewest_places")
# One cell excludes other types (no number is a date), so only these facts are checked for the others.
_FAMILIES = {
    "BOOLEAN": ("cells", "boolean"),
    "DATE": ("cells", "date"),
    "TIMESTAMP": ("cells", "zoned"),
    "TIMESTAMP_NTZ": ("cells", "local"),
}


@dataclass(frozen=True)
class InferredTypes:
    """The Spark type of each column, the columns that have a value, and whether some text could not be
    decoded."""

    types: dict[str, str]
    columns_with_values: frozenset[str]
    has_undecodable_text: bool


def infer_types(
    cells: DataFrame, columns: Sequence[str], known: Mapping[str, str] | None = None
) -> InferredTypes:
    """Infer the types of all columns in one pass.

    ``known`` are types from a sample, for columns that had a value in it. A column that was text in the
    sample is text; for the others only the open questions are checked.
    """
    asked = [(name, fact) for name in columns for fact in _facts_to_check((known or {}).get(name))]
    expressions = [f"{_FACTS[fact].replace('{cell}', quote_name(name))}" for name, fact in asked]
    texts = [name for name in columns if (known or {}).get(name, "STRING") == "STRING"]
    odd = " OR ".join(f"contains({quote_name(name)}, '\ufffd')" for name in texts) or "false"
    expressions.append(f"coalesce(bool_or({odd}), false)")
    row = cells.selectExpr(*(f"{each} AS f{number}" for number, each in enumerate(expressions))).collect()[0]
    facts: dict[str, dict[str, object]] = {name: {} for name in columns}
    for (name, fact), answer in zip(asked, row, strict=False):
        facts[name][fact] = answer
    types = {name: type_from_facts(facts[name]) if facts[name] else "STRING" for name in columns}
    seen = frozenset(name for name in columns if facts[name].get("cells"))
    return InferredTypes(types, seen, bool(row[-1]))


def _facts_to_check(known: str | None) -> Sequence[str]:
    if known is None:
        return tuple(_FACTS)
    if known == "STRING":
        return ()
    return _FAMILIES.get(known, _NUMBERS)


def type_from_facts(facts: Mapping[str, object]) -> str:
    """The Spark type of a column with these facts. A missing fact counts as false."""
    if not facts["cells"]:
        return "STRING"
    if facts.get("number"):
        return _number_type(
            int(str(facts["whole_digits"])), int(str(facts["fewest_places"])), int(str(facts["most_places"]))
        )
    for fact, spark_type in (
        ("float", "DOUBLE"),
        ("boolean", "BOOLEAN"),
        ("date", "DATE"),
        ("zoned", "TIMESTAMP"),
        ("local", "TIMESTAMP_NTZ"),
    ):
        if facts.get(fact):
            return spark_type
    return "STRING"


def _number_type(whole: int, fewest_places: int, places: int) -> str:
    if places == 0 and whole <= 18:
        return "BIGINT"
    exact = f"DECIMAL({whole + places},{places})" if whole + places <= _MAX_DIGITS else "STRING"
    if fewest_places != places and whole + places <= _EXACT_DIGITS:
        return "DOUBLE"
    return exact


# ------------------------------------------------------------------ types that are given

_WHOLE = f"^-?(0|[1-9][0-9]*){_END}"
_ANY_FLOAT = f"^-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?{_END}"
_NOT_FINITE = f"^NaN{_END}|^-?Infinity{_END}"
_MOMENTS = {
    "date": _DATE,
    "timestamp": f"{_TIME}{_END}|{_DATE}",
    "timestamp_tz": f"{_TIME}({_ZONE}|{_END})|{_DATE}",
}
_LARGEST_OF = {"float": 3.4028234663852886e38, "double": _LARGEST}


def cast_cell_sql(cell: str, wanted: DataType, spark_type: str) -> str:
    """SQL that casts a text cell to the given type; null when the cell is not written as one.

    It accepts the same forms as type inference, so that nothing is lost: 007 is not a number, and a time with
    a zone is not a time without one.
    """
    kind, value = wanted.kind, f"try_cast({cell} AS {spark_type})"
    if kind in _MOMENTS:
        return f"CASE WHEN {cell} RLIKE '{_MOMENTS[kind]}' THEN {value} END"
    if kind in ("small_int", "integer", "big_int"):
        return f"CASE WHEN {cell} RLIKE '{_WHOLE}' THEN {value} END"
    if kind == "numeric":
        places = f"[.](?=[0-9])[0-9]{{0,{wanted.scale}}}0*"
        return f"CASE WHEN {cell} RLIKE '^-?(0|[1-9][0-9]*)({places})?{_END}' THEN {value} END"
    if kind in _LARGEST_OF:
        finite = f"{cell} RLIKE '{_ANY_FLOAT}' AND abs({value}) <= {_LARGEST_OF[kind]!r}D"
        exact = f"NOT coalesce({is_lossy_whole_sql(cell, spark_type)}, false)"
        return f"CASE WHEN {cell} RLIKE '{_NOT_FINITE}' OR ({finite} AND {exact}) THEN {value} END"
    if kind == "boolean":
        return f"CASE WHEN lower({cell}) IN ('true', 'false') THEN {value} END"
    if kind == "bytes":
        return f"try_to_binary({cell}, 'base64')"
    return cell


def is_beyond_double_sql(cell: str) -> str:
    """SQL: whether a text cell is a number beyond the range of DOUBLE."""
    size = f"abs(try_cast({cell} AS DOUBLE))"
    too_large = f"({cell} RLIKE '^-?[0-9]' AND {size} > {_LARGEST!r}D)"
    return f"({too_large} OR ({cell} RLIKE '^-?[0.]*[1-9]' AND {size} < {_SMALLEST!r}D))"


def is_lossy_whole_sql(cell: str, spark_type: str) -> str:
    """SQL: whether a text cell is a whole number that FLOAT or DOUBLE cannot represent."""
    as_float = f"try_cast(try_cast({cell} AS {spark_type}) AS DECIMAL({_MAX_DIGITS},0))"
    same = f"coalesce(try_cast({cell} AS DECIMAL({_MAX_DIGITS},0)) = {as_float}, false)"
    return f"({cell} RLIKE '{_WHOLE}' AND length({cell}) > {_FLOAT_DIGITS} AND NOT {same})"


# ------------------------------------------------------------------ values in memory


def infer_type_of_texts(values: Iterable[str | None]) -> str:
    """Infer the Spark type that holds all of these values. None is a null."""
    cells = {value for value in values if value is not None}
    numbers = [cell.lstrip("-").partition(".") for cell in cells]
    facts: dict[str, object] = {
        "cells": len(cells),
        "number": all(re.match(_NUMBER, cell) for cell in cells),
        "float": all(_is_float(cell) for cell in cells),
        "boolean": all(cell.lower() in ("true", "false") for cell in cells),
        "date": all(_matches(_DATE, dt.date.fromisoformat, cell) for cell in cells),
        "zoned": False,  # a folder's name has no zone
        "local": all(_matches(_TIME + _END, dt.datetime.fromisoformat, cell) for cell in cells),
        "whole_digits": max((len(whole) for whole, _, _ in numbers), default=0),
        "most_places": max((len(places) for _, _, places in numbers), default=0),
        "fewest_places": min((len(places) for _, _, places in numbers), default=0),
    }
    return type_from_facts(facts)


def _is_float(cell: str) -> bool:
    if re.match(_FLOAT, cell) is None:
        return False
    return re.match(_WORD_OR_ZERO, cell) is not None or _SMALLEST <= abs(float(cell)) <= _LARGEST


def _matches(pattern: str, parse: Callable[[str], object], cell: str) -> bool:
    try:
        return re.match(pattern, cell) is not None and parse(cell) is not None
    except ValueError:
        return False
