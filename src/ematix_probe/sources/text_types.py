"""Guesses the types of columns in CSV and JSON lines, so that no value loses anything.

DuckDB proposes a type for each column. One pass over the texts of all rows checks it by the rules by which
the pipelines of ematix_flow type such files: a column whose texts do not all fit is text. In CSV there are
three differences. A decimal is no double, whose sums are not exact. A double may have more than 15 digits, if
it is written with the same ones. And 1e5 is text, as it may be a code, while 1e+05 and 1.0E5 are doubles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlglot
from sqlglot import exp

from ematix_probe.sources.interrupting import run_interruptibly

Facts = Mapping[str, Any]
_TEXT = "VARCHAR"
_MAX_DIGITS = 38
_BIGINT_DIGITS = 18
_EXACT_DIGITS = 15  # the digits of a decimal that a double always holds

_WHOLE_NUMBER = "-?(0|[1-9][0-9]*)"
_NUMBER = r"(0|-?[1-9][0-9]*)([.][0-9]+)?|-0[.]0*[1-9][0-9]*"  # only a double has a negative zero
# 1e+5 and 1.0E5 are numbers, while 1e5 may be a code
_FLOAT = rf"{_WHOLE_NUMBER}([.][0-9]+)?([eE][+-][0-9]+)?|{_WHOLE_NUMBER}[.][0-9]+[eE][0-9]+"
_JSON_NUMBER = rf"{_WHOLE_NUMBER}([.][0-9]+)?([eE][+-]?[0-9]+)?|(?i:nan|-?inf(inity)?)"
_LONG_IN_JSON = r"[:\[,]-?([0-9]{16,}|[0-9.]+[eE][+]?[0-9]{3,})[,\]}]"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"

_POINT = "strpos(cell, '.')"
_DOUBLE = "TRY_CAST(cell AS DOUBLE)"
_AS_DOUBLE = f"CAST({_DOUBLE} AS VARCHAR)"
_HAS_EXPONENT = "(contains(cell, 'e') OR contains(cell, 'E'))"


def _matches(pattern: str) -> str:
    return f"regexp_full_match(cell, '{pattern}')"


def _all(condition: str) -> str:
    return f"bool_and({condition}) FILTER (WHERE cell IS NOT NULL)"


def _digits(text: str) -> str:
    """The significant digits of a number."""
    return f"trim(replace(split_part(lower({text}), 'e', 1), '.', ''), '-0')"


_KEEPS_DIGITS = f"{_digits('cell')} = {_digits(_AS_DOUBLE)}"  # not if a double is infinite or zero instead
_AS_DECIMAL, _AS_FLOAT = 1, 2
_AS_BOTH = _AS_DECIMAL | _AS_FLOAT
# In which types a cell loses nothing, as bits. The first cases are the common ones, and cheap.
_EXACT_TYPES = f"""CASE
    WHEN strlen(cell) <= {_EXACT_DIGITS} AND {_matches(_NUMBER)} THEN {_AS_BOTH}
    WHEN strlen(cell) > {_EXACT_DIGITS} AND {_AS_DOUBLE} = cell
        THEN CASE WHEN {_HAS_EXPONENT} THEN {_AS_FLOAT} ELSE {_AS_BOTH} END
    WHEN {_matches(_NUMBER)} THEN CASE WHEN {_KEEPS_DIGITS} THEN {_AS_BOTH} ELSE {_AS_DECIMAL} END
    WHEN {_matches(_FLOAT)} THEN CASE WHEN {_KEEPS_DIGITS} THEN {_AS_FLOAT} ELSE 0 END
    WHEN cell IN ('NaN', 'Infinity', '-Infinity') THEN {_AS_FLOAT}
    WHEN cell IS NOT NULL THEN 0 END"""

# fact -> DuckDB's SQL over cell, a text; NULL does not count
_FACTS = {
    "cells": "count(cell)",
    "exact_types": f"bit_and({_EXACT_TYPES})",
    "whole_digits": f"max(CASE WHEN {_POINT} = 0 THEN strlen(cell) ELSE {_POINT} - 1 END "
    "- CASE WHEN starts_with(cell, '-') THEN 1 ELSE 0 END)",
    "places": f"max(CASE WHEN {_POINT} = 0 THEN 0 ELSE strlen(cell) - {_POINT} END)",
    "boolean": "bool_and(lower(cell) IN ('true', 'false'))",
    "date": _all("strlen(cell) = 10 AND coalesce(CAST(TRY_CAST(cell AS DATE) AS VARCHAR) = cell, FALSE)"),
    "zoned": _all(f"{_matches(_TIME + _ZONE)} AND TRY_CAST(cell AS TIMESTAMPTZ) IS NOT NULL"),
    "local": _all(f"{_matches(_TIME)} AND TRY_CAST(cell AS TIMESTAMP) IS NOT NULL"),
    # of JSON, whose fractions are doubles
    "number": f"bool_and({_matches(_NUMBER)})",
    "json_number": f"bool_and({_matches(_JSON_NUMBER)})",
    "lossy": f"bool_or(CASE WHEN strlen(cell) <= {_EXACT_DIGITS} AND NOT {_HAS_EXPONENT} THEN FALSE "
    f"WHEN {_matches(_WHOLE_NUMBER)} "
    f"THEN NOT coalesce(TRY_CAST({_DOUBLE} AS DECIMAL(38,0)) = TRY_CAST(cell AS DECIMAL(38,0)), FALSE) "
    f"WHEN {_matches('-?[0-9].*')} THEN NOT isfinite(coalesce({_DOUBLE}, 'inf'::DOUBLE)) ELSE FALSE END)",
    "long_inside": f"bool_or(regexp_matches(cell, '{_LONG_IN_JSON}'))",
}
_CSV_NUMBERS = ("cells", "exact_types", "whole_digits", "places")
_JSON_NUMBERS = ("cells", "number", "json_number", "lossy", "whole_digits", "places")
_TIMES = {"DATE": "date", "TIMESTAMP WITH TIME ZONE": "zoned", "TIMESTAMP": "local"}
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")


def csv_types(
    rows: exp.Query, proposed: Mapping[str, str], read: Callable[[str], Sequence[Any]]
) -> dict[str, str]:
    """The types of columns of CSV. ``rows`` has all columns as text."""
    asked = {name: _csv_facts(kind) for name, kind in proposed.items()}
    facts = _find_facts(rows, asked, read)
    return {name: _csv_type(facts[name]) for name in proposed}


def json_types(
    rows: Callable[[Sequence[str]], exp.Query],
    proposed: Mapping[str, str],
    is_sample: bool,
    read: Callable[[str], Sequence[Any]],
) -> dict[str, str]:
    """The types of columns of JSON lines. ``rows`` returns a query with these columns as text.

    ``is_sample``: DuckDB has not seen all rows.
    """
    texts = [name for name, kind in proposed.items() if kind == _TEXT]
    asked = {name: _json_facts(kind, is_sample) for name, kind in proposed.items()}
    if texts:  # DuckDB takes times with fractions for texts; all rows are read only if the first are times
        first = _find_facts(rows(texts).limit(100), dict.fromkeys(texts, ("cells", "local")), read)
        asked |= {name: ("cells", "local") for name in texts if first[name].get("local")}
    asked = {name: needed for name, needed in asked.items() if needed}
    facts = _find_facts(rows(list(asked)), asked, read) if asked else {}
    return {name: _json_type(kind, facts.get(name)) for name, kind in proposed.items()}


def run(connection: Any) -> Callable[[str], Sequence[Any]]:
    """What reads the first row of a statement."""

    def read(sql: str) -> Sequence[Any]:
        return run_interruptibly(lambda: connection.execute(sql).fetchone(), connection.interrupt) or ()

    return read


def _find_facts(
    rows: exp.Query, asked: Mapping[str, Sequence[str]], read: Callable[[str], Sequence[Any]]
) -> dict[str, dict[str, Any]]:
    """The facts of each column, all in one statement."""
    facts: dict[str, dict[str, Any]] = {name: {} for name in asked}
    pairs = [(name, fact) for name, wanted in asked.items() for fact in wanted]
    if pairs:
        query = exp.select(*(_of_column(name, fact) for name, fact in pairs)).from_(rows.subquery("texts"))
        for (name, fact), answer in zip(pairs, read(query.sql(dialect="duckdb")), strict=True):
            facts[name][fact] = answer
    return facts


def _of_column(name: str, fact: str) -> exp.Expression:
    tree = sqlglot.parse_one(_FACTS[fact], dialect="duckdb")
    return tree.transform(
        lambda node: exp.column(name, quoted=True) if isinstance(node, exp.Column) else node
    )


def _is_number(kind: str) -> bool:
    return kind.startswith("DECIMAL") or kind.endswith("INT") or kind in ("INTEGER", "FLOAT", "DOUBLE")


def _time_facts(kind: str) -> Sequence[str]:
    return next((("cells", fact) for name, fact in _TIMES.items() if kind.startswith(name)), ())


# ------------------------------------------------------------------ CSV


def _csv_facts(kind: str) -> Sequence[str]:
    if _is_number(kind):
        return _CSV_NUMBERS
    return ("cells", "boolean") if kind == "BOOLEAN" else _time_facts(kind)


def _csv_type(facts: Facts) -> str:
    if facts.get("cells") and "exact_types" in facts:
        return _csv_number(int(facts["exact_types"]), int(facts["whole_digits"]), int(facts["places"]))
    return "BOOLEAN" if facts.get("boolean") else _time_type(facts)


def _csv_number(exact_types: int, whole: int, places: int) -> str:
    if exact_types & _AS_DECIMAL and whole + places <= _MAX_DIGITS:
        return _exact_number(whole, places)
    return "DOUBLE" if exact_types & _AS_FLOAT else _TEXT


def _exact_number(whole: int, places: int) -> str:
    if not places and whole <= _BIGINT_DIGITS:
        return "BIGINT"
    return f"DECIMAL({whole + places},{places})" if whole + places <= _MAX_DIGITS else _TEXT


def _time_type(facts: Facts) -> str:
    found = (kind for kind, fact in _TIMES.items() if facts.get("cells") and facts.get(fact))
    return next(found, _TEXT)


# ------------------------------------------------------------------ JSON


def _json_facts(kind: str, is_sample: bool) -> Sequence[str]:
    if _is_nested(kind):
        return ("long_inside",) if re.search(r"\bDOUBLE\b", kind) else ()
    if _is_number(kind):
        return _JSON_NUMBERS if is_sample or kind not in _WHOLE else ()
    if kind == "BOOLEAN":
        return ("cells", "boolean") if is_sample else ()
    return _time_facts(kind)


def _json_type(kind: str, facts: Facts | None) -> str:
    if _is_nested(kind):
        return _nested_type(kind, bool(facts and facts["long_inside"]))
    if facts is None:
        return kind if kind in (*_WHOLE, "BOOLEAN", "JSON") or "NULL" in kind else _TEXT
    if kind == "BOOLEAN":
        return kind if facts["boolean"] else _TEXT
    return _json_number(facts) if _is_number(kind) else _time_type(facts)


def _json_number(facts: Facts) -> str:
    if not facts["cells"] or not facts["json_number"]:
        return _TEXT
    if facts["number"] and (facts["lossy"] or not facts["places"]):
        return _exact_number(int(facts["whole_digits"]), int(facts["places"]))
    return _TEXT if facts["lossy"] else "DOUBLE"


def _is_nested(kind: str) -> bool:
    return kind.endswith("]") or kind.startswith(("STRUCT", "MAP"))


def _nested_type(kind: str, has_long_numbers: bool) -> str:
    """The type with texts for what is no JSON number, boolean or text, and for doubles that lose digits."""
    lossy = r"TIMESTAMP(?:_\w+)?(?: WITH TIME ZONE)?|TIME(?: WITH TIME ZONE)?|DATE|UUID|INTERVAL"
    if has_long_numbers:
        lossy += "|DOUBLE"
    pattern = rf'"(?:[^"]|"")*"|\b(?:{lossy})(?=[,)\[]|$)'  # a field's name comes before a blank
    return re.sub(pattern, lambda found: found[0] if found[0][0] == '"' else _TEXT, kind)
