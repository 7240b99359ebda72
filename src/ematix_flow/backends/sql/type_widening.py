"""Which type holds every value of another, so that a live column can be widened without loss."""

from __future__ import annotations

from ematix_flow.spec.types import INTEGER_BITS, DataType

_DIGITS = {"small_int": 5, "integer": 10, "big_int": 19}
_TEXTS = ("text", "string")


def widens(narrow: DataType, wide: DataType) -> bool:
    """Whether each value of ``narrow`` is also a value of ``wide``, with the same meaning."""
    if narrow == wide:
        return True
    if narrow.kind in INTEGER_BITS and wide.kind in INTEGER_BITS:
        return INTEGER_BITS[narrow.kind] < INTEGER_BITS[wide.kind]
    if wide.kind == "numeric":
        scale = wide.scale or 0
        whole = (wide.precision or 0) - scale
        if narrow.kind == "numeric":
            kept = narrow.scale or 0
            return whole >= (narrow.precision or 0) - kept and scale >= kept
        return whole >= _DIGITS.get(narrow.kind, whole + 1)
    if narrow.kind == "string":
        return wide.kind == "text" or (wide.kind == "string" and (wide.length or 0) > (narrow.length or 0))
    return (narrow.kind, wide.kind) == ("float", "double")


def takes_exactly_or_rejects(live: DataType, declared: DataType) -> bool:
    """Whether a live column stores each declared value exactly or refuses it, and never rounds or cuts."""
    if widens(declared, live):
        return True
    if declared.kind == "numeric" and live.kind == "numeric":
        return (declared.scale or 0) <= (live.scale or 0)
    whole = {*INTEGER_BITS, "numeric"} if declared.kind in INTEGER_BITS else set()
    return live.kind in whole or (declared.kind in _TEXTS and live.kind in _TEXTS)
