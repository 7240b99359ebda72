"""Column types as text in files: ``"BigInt"``, ``"Numeric[10, 2]"``, ``"Text | None"``.

The text is written like a Python annotation. It is parsed, not evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ematix_flow.api.types import ColumnType, ColumnTypeMeta, data_type_of
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.tables import ColumnSpec

_TYPE_TEXT = re.compile(
    r"\s*(?P<type>\w+)\s*(?:\[\s*(?P<numbers>\d+(?:\s*,\s*\d+)*)\s*\])?\s*(?P<null>\|\s*None\s*)?", re.ASCII
)


def columns_from_text(types: Mapping[str, object], primary_key: Iterable[str] = ()) -> tuple[ColumnSpec, ...]:
    """The columns for a mapping of names to type texts. Raises DeclarationError with the column's name."""
    keys = tuple(primary_key)
    for key in keys:
        if key not in types:
            raise DeclarationError(
                f"primary_key names {key!r}, which is not a column.{did_you_mean(key, types)}"
            )
    return tuple(_parse_column(name, text, name in keys) for name, text in types.items())


def column_to_text(column: ColumnSpec) -> str:
    return f"{column.type} | None" if column.nullable else str(column.type)


def _parse_column(name: str, text: object, primary_key: bool) -> ColumnSpec:
    found = _TYPE_TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise DeclarationError(
            f"column {name!r}: {text!r} is not a column type",
            next_step='write  id = "BigInt"  or  price = "Numeric[10, 2] | None"',
        )
    known = {cls.__name__.lower(): cls for cls in _column_types()}
    chosen = known.get(found["type"].lower())
    if chosen is None:
        names = [cls.__name__ for cls in known.values()]
        raise DeclarationError(
            f"column {name!r}: {found['type']!r} is not a column type.{did_you_mean(found['type'], names)}"
        )
    nullable = found["null"] is not None
    if nullable and primary_key:
        raise DeclarationError(f"column {name!r} is in the primary key and may be null: remove '| None'")
    numbers = tuple(int(number) for number in (found["numbers"] or "").split(",") if number)
    try:
        data_type = data_type_of(chosen[numbers] if numbers else chosen)
    except DeclarationError as error:
        raise DeclarationError(f"column {name!r}: {error.what}", next_step=error.next_step) from None
    return ColumnSpec(name, data_type, nullable, primary_key)


def _column_types() -> list[ColumnTypeMeta]:
    """The types of `api.types`, without parametrised ones such as ``String[10]``."""
    return [cls for cls in ColumnType.__subclasses__() if "[" not in cls.__name__]
