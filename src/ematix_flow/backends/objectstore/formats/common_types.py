"""Finds the common type of a column that has different types in several files, without losing a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_DIGITS = 38


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both query types; None if there is none."""
    import pyarrow as pa
    import pyarrow.types as t

    if one == other or t.is_null(other):
        return one
    if t.is_null(one):
        return other
    if t.is_struct(one) and t.is_struct(other):
        return _common_struct(one, other)
    if t.is_list(one) and t.is_list(other):
        item = common_type(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    if t.is_map(one) and t.is_map(other):
        key, item = common_type(one.key_type, other.key_type), common_type(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    times = {one, other}
    if times == {pa.date32(), pa.timestamp("us")}:
        return pa.timestamp("us")
    return _common_number(one, other)


def find_type_clash(one: pa.DataType, other: pa.DataType) -> tuple[str, pa.DataType, pa.DataType]:
    """The path below a column where two types have no common type, and the two types there."""
    import pyarrow.types as t

    if t.is_struct(one) and t.is_struct(other):
        there = {field.name.lower(): field for field in other}
        for field in one:
            found = there.get(field.name.lower())
            if found is not None and common_type(field.type, found.type) is None:
                path, left, right = find_type_clash(field.type, found.type)
                return f".{field.name}{path}", left, right
    if t.is_list(one) and t.is_list(other):
        path, left, right = find_type_clash(one.value_type, other.value_type)
        return f"[]{path}", left, right
    return "", one, other


def _common_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    there = {field.name.lower(): field for field in other}
    fields = []
    for field in one:
        found = there.pop(field.name.lower(), None)
        both = field.type if found is None else common_type(field.type, found.type)
        if both is None:
            return None
        fields.append((field.name, both))
    return pa.struct([*fields, *((field.name, field.type) for field in there.values())])


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa
    import pyarrow.types as t

    digits = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
    if one in digits and other in digits:
        return max(one, other, key=digits.__getitem__)
    if t.is_floating(one) and t.is_floating(other):
        return pa.float64()
    for number, floating in ((one, other), (other, one)):
        if number in digits and t.is_floating(floating) and number != pa.int64():
            return pa.float64() if number == pa.int32() else floating
    places = {kind: (count, 0) for kind, count in digits.items()}
    places |= {kind: (kind.precision, kind.scale) for kind in (one, other) if t.is_decimal(kind)}
    if one not in places or other not in places:
        return None
    scale = max(places[one][1], places[other][1])
    whole = max(precision - own for precision, own in (places[one], places[other]))
    return pa.decimal128(whole + scale, scale) if whole + scale <= _MAX_DIGITS else None
