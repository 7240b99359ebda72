"""The types of CSV columns, found in one pass over all rows and never at the cost of a value.

A column becomes a number, a date or a time only when every cell of it is written as one: a leading zero
or a plus sign makes it text, decimals with one number of places stay decimals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ematix_flow.backends.query_tables import quoted

_EXACT_DIGITS = 15  # what a double holds of any decimal
_MAX_DIGITS = 38

_NUMBER = "^-?(0|[1-9][0-9]*)([.][0-9]+)?$"
_FLOAT = "^-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?$|^NaN$|^-?Infinity$"
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
_ZONE = "(Z|[+-][0-9]{2}:?[0-9]{2})$"


def _casts(pattern: str, spark_type: str) -> str:
    """Whether every cell has the form of the type and is one: 2026-02-30 is not."""
    is_one = f"{{cell}} RLIKE '{pattern}' AND try_cast({{cell}} AS {spark_type}) IS NOT NULL"
    return f"bool_and({{cell}} IS NULL OR ({is_one}))"


# fact -> Spark SQL over {cell}, a string; a null is no cell
_FACTS = {
    "cells": "count({cell})",
    "number": f"bool_and({{cell}} RLIKE '{_NUMBER}')",
    "float": f"bool_and({{cell}} RLIKE '{_FLOAT}')",
    "boolean": "bool_and(lower({cell}) IN ('true', 'false'))",
    "date": _casts(_DATE, "DATE"),
    "zoned": _casts(_TIME + _ZONE, "TIMESTAMP"),
    "local": _casts(_TIME + "$", "TIMESTAMP_NTZ"),
    "whole_digits": "max(length(ltrim('-', split_part({cell}, '.', 1))))",
    "most_places": "max(length(split_part({cell}, '.', 2)))",
    "fewest_places": "min(length(split_part({cell}, '.', 2)))",
}


def fact_expressions(columns: Sequence[str]) -> list[str]:
    """What to ask of all rows, as expressions of one aggregation, in the order of columns and facts."""
    asked = [fact.replace("{cell}", quoted(name)) for name in columns for fact in _FACTS.values()]
    return [f"{expression} AS f{number}" for number, expression in enumerate(asked)]


def column_types(columns: Sequence[str], answers: Sequence[object]) -> dict[str, str]:
    """The Spark type of each column."""
    width = len(_FACTS)
    return {
        name: _type(dict(zip(_FACTS, answers[number * width : (number + 1) * width], strict=True)))
        for number, name in enumerate(columns)
    }


def _type(facts: Mapping[str, object]) -> str:
    if not facts["cells"]:
        return "STRING"
    if facts["number"]:
        return _number(
            int(str(facts["whole_digits"])), int(str(facts["fewest_places"])), int(str(facts["most_places"]))
        )
    for fact, spark_type in (
        ("float", "DOUBLE"),
        ("boolean", "BOOLEAN"),
        ("date", "DATE"),
        ("zoned", "TIMESTAMP"),
        ("local", "TIMESTAMP_NTZ"),
    ):
        if facts[fact]:
            return spark_type
    return "STRING"


def _number(whole: int, fewest_places: int, places: int) -> str:
    if places == 0 and whole <= 18:
        return "BIGINT"
    exact = f"DECIMAL({whole + places},{places})" if whole + places <= _MAX_DIGITS else "STRING"
    if fewest_places != places and whole + places <= _EXACT_DIGITS:
        return "DOUBLE"
    return exact
