"""A declared table: columns, keys, constraints. Pure values with a JSON round trip."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.normalize import Normalizer, normalizer_from_json
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

LOADED_AT = "_loaded_at"
BATCH_ID = "_batch_id"


@dataclass(frozen=True)
class ColumnSpec:
    """One column. ``normalizers`` run left to right on the source's value."""

    name: str
    type: DataType
    nullable: bool = False
    primary_key: bool = False
    normalizers: tuple[Normalizer, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise DeclarationError("a column needs a name")
        if "\x00" in self.name:
            raise DeclarationError(f"column name {self.name!r} holds a NUL character")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type.to_json(),
            "nullable": self.nullable,
            "primary_key": self.primary_key,
            "normalizers": [n.to_json() for n in self.normalizers],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ColumnSpec:
        return cls(
            name=value["name"],
            type=DataType.from_json(value["type"]),
            nullable=value["nullable"],
            primary_key=value["primary_key"],
            normalizers=tuple(normalizer_from_json(n) for n in value["normalizers"]),
        )


@dataclass(frozen=True)
class TableSpec:
    """A table as declared. ``schema`` may be None where the backend has no schemas."""

    schema: str | None
    name: str
    columns: tuple[ColumnSpec, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    merge_keys: tuple[str, ...] = ()
    natural_keys: tuple[tuple[str, ...], ...] = ()
    doc: str | None = None
    where: SourceLocation | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise DeclarationError("a table needs a name", where=self.where)
        if not self.columns:
            raise DeclarationError(
                f"table {self.label} declares no column",
                where=self.where,
                next_step="annotate at least one column, as in  id: Annotated[BigInt, pk()]",
            )
        seen: set[str] = set()
        for column in self.columns:
            if column.name in seen:
                raise DeclarationError(
                    f"table {self.label} declares column {column.name!r} twice", where=self.where
                )
            seen.add(column.name)
        for what, groups in (
            ("unique constraint", self.unique),
            ("natural key", self.natural_keys),
            ("__merge_keys__", (self.merge_keys,) if self.merge_keys else ()),
        ):
            for group in groups:
                if not group:
                    raise DeclarationError(f"a {what} of {self.label} is empty", where=self.where)
                for name in group:
                    if name not in seen:
                        raise DeclarationError(
                            f"a {what} of {self.label} names {name!r}, which is no column of it",
                            where=self.where,
                        )

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if c.primary_key)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    def column(self, name: str) -> ColumnSpec:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def arrow_schema(self) -> pa.Schema:
        """The declared columns as they travel: without the metadata columns of a load."""
        import pyarrow as pa

        return pa.schema([pa.field(c.name, c.type.arrow(), c.nullable) for c in self.columns])

    def with_load_columns(self) -> TableSpec:
        """The table as it is created: with ``_loaded_at`` and ``_batch_id`` unless declared."""
        extra = tuple(
            ColumnSpec(name, DataType(kind))
            for name, kind in ((LOADED_AT, "timestamp_tz"), (BATCH_ID, "uuid"))
            if name not in self.column_names
        )
        return replace(self, columns=self.columns + extra)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "name": self.name,
            "columns": [c.to_json() for c in self.columns],
            "unique": [list(u) for u in self.unique],
            "merge_keys": list(self.merge_keys),
            "natural_keys": [list(k) for k in self.natural_keys],
            "doc": self.doc,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TableSpec:
        return cls(
            schema=value["schema"],
            name=value["name"],
            columns=tuple(ColumnSpec.from_json(c) for c in value["columns"]),
            unique=tuple(tuple(u) for u in value["unique"]),
            merge_keys=tuple(value["merge_keys"]),
            natural_keys=tuple(tuple(k) for k in value["natural_keys"]),
            doc=value["doc"],
        )


_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """``CustomerDim`` → ``customer_dim``, ``HTTPEvents2`` → ``http_events2``."""
    return _BOUNDARY.sub("_", name).lower()
