"""Names in Avro and Protobuf schemas, which have letters, digits and underscores only."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def as_schema_name(text: str) -> str:
    """The text with an underscore for every character that a name cannot have."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text) or "Record"
    return name if _NAME.fullmatch(name) else f"_{name}"


def require_field_names(columns: Iterable[ColumnSpec], format_name: str) -> None:
    """SchemaMismatch for a column whose name cannot be that of a field."""
    for column in columns:
        if not _NAME.fullmatch(column.name):
            raise SchemaMismatch(
                f"{format_name} cannot name a field {column.name!r}",
                next_step="rename the column with letters, digits and _ only",
            )
