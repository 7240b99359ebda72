"""Infers columns from JSON payloads, for topics without declared columns."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ematix_flow.backends.payloads.json_decoding import NotJsonObject, parse_exact_fields
from ematix_flow.backends.payloads.json_values import JsonNumber
from ematix_flow.backends.payloads.value_conversion import has_zone
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import MAX_PRECISION, DataType

_BIG = 1 << 63
_log = logging.getLogger(__name__)


def infer_json_columns(values: Iterable[bytes | None]) -> tuple[ColumnSpec, ...]:
    """A nullable column for each field, in the order of first appearance; the same for the same samples.

    Whole numbers are BigInt, beyond its range Numeric; with fractions among them Double. A text whose every
    sample is a full ISO 8601 timestamp with a zone is TimestampTZ. Nested values are JSON. Fields of which
    samples disagree are Text. Payloads that are not JSON objects are ignored. Of names that differ in case
    only, which SQL does not distinguish, the most frequent one becomes a column, and a warning names the
    others.
    """
    seen: dict[str, set[str]] = {}
    times: Counter[str] = Counter()
    digits: dict[str, int] = {}
    for value in values:
        if not value:
            continue
        try:
            fields = parse_exact_fields(value)
        except NotJsonObject:
            continue
        for name, field in fields.items():
            if not name or "\x00" in name or not _is_encodable(name):
                continue
            shapes = seen.setdefault(name, set())
            times[name] += 1
            if field is not None:
                shapes.add(_kind_of(field))
                if isinstance(field, JsonNumber):
                    digits[name] = max(digits.get(name, 0), len(field.lstrip("-")))
    return tuple(
        ColumnSpec(name, _column_type(seen[name], digits.get(name, 0)), nullable=True)
        for name in _drop_case_variants(seen, times)
    )


def _drop_case_variants(names: Mapping[str, object], counts: Mapping[str, int]) -> list[str]:
    chosen: dict[str, str] = {}
    for name in names:
        other = chosen.setdefault(name.casefold(), name)
        if counts[name] > counts[other]:
            chosen[name.casefold()] = name
    names_left = [name for name in names if chosen[name.casefold()] == name]
    dropped = [f"{name!r} (as {chosen[name.casefold()]!r})" for name in names if name not in names_left]
    if dropped:
        _log.warning(
            "fields whose names differ only in case are one column, and these spellings are not loaded: %s; "
            "declare source_columns= to choose",
            ", ".join(dropped),
        )
    return names_left


def _kind_of(field: Any) -> str:
    if isinstance(field, JsonNumber):
        if not field.lstrip("-").isdigit():
            return "double"
        return "big_int" if len(field) < 19 or -_BIG <= int(field[:40]) < _BIG else "numeric"
    if isinstance(field, bool):
        return "boolean"
    if isinstance(field, str):
        return "timestamp_tz" if has_zone(field) else "text"
    return "json"


def _column_type(shapes: set[str], digits: int) -> DataType:
    if shapes == {"numeric"} or shapes == {"numeric", "big_int"}:
        if digits <= MAX_PRECISION:
            return DataType("numeric", precision=MAX_PRECISION, scale=0)
        return DataType("text")
    if shapes and shapes <= {"numeric", "big_int", "double"}:
        return DataType("double" if "double" in shapes else "big_int")
    return DataType(next(iter(shapes)) if len(shapes) == 1 else "text")


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
