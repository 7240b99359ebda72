"""A declared table: columns, keys, constraints. Pure values with a JSON round trip."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.normalize import Normalizer, normalizer_from_json
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

LOADED_AT = "_loaded_at"
BATCH_ID = "_batch_id"
DELETED_AT = "_deleted_at"
VALID_FROM, VALID_TO, IS_CURRENT, ROW_HASH = "valid_from", "valid_to", "is_current", "row_hash"
EVENT_AT, IS_DELETE = "_event_at", "_is_delete"
COMPANION_COLUMNS = (EVENT_AT, IS_DELETE, ROW_HASH, LOADED_AT, BATCH_ID)  # beyond the declared ones
_COMPANION_SUFFIX, _CHANGES_SUFFIX, _NAME_BYTES = "__events", "__changes", 63

# Columns of staged changes: the operation; the position in the source's log; the columns whose values the
# change does not tell; the positions of the key's last applied change for which the row is the result; and
# from which position on the key's changes are newer than any row of a snapshot.
CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT = map(internal_name, ("change_op", "change_position", "change_kept"))
CHANGE_FROM, CHANGE_UNTIL = internal_name("change_from"), internal_name("change_until")
CHANGE_OPEN = internal_name("change_open")
AGE = internal_name("age")  # of a staged row: 0 is the newest of its key, 1 the one before it
MESSAGE = internal_name("message")  # of a staged row: which message of its batch it comes from
CHANGE_AT = internal_name("change_at")  # when the change was made, for versions
UPSERT_ROW, DELETE_ROW, MARK_ROW, TRUNCATE_ROWS = (
    "u",
    "d",
    "m",
    "t",
)  # MARK_ROW: an upsert, then a soft delete
# Of a column in CHANGE_KEPT: it has its value; the value did not change and is left out; the change has no
# such field; the value is left out, and the row that had it is deleted.
GIVEN, UNTOLD, ABSENT, LOST = "0", "1", "2", "3"
LAST_POSITION = "_position"  # of the last applied change of a key, in the companion table

# What a table contains: plain rows; rows with the time of their deletion; versions by the time of the load;
# versions by the time of events, which may arrive late; rows that change events of a source made; versions
# that such changes made.
TableContents = Literal["rows", "soft_deletes", "versions", "events", "changes", "change_versions"]


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
    keeps: TableContents = "rows"  # set by the planner from the mode of the load
    stamped: bool = True  # False: a foreign table that is loaded without load columns

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
                            f"a {what} of {self.label} names {name!r}, which is not one of its columns",
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
        """The Arrow schema of the declared columns, without the metadata columns of a load."""
        import pyarrow as pa

        return pa.schema([pa.field(c.name, c.type.arrow(), c.nullable) for c in self.columns])

    @property
    def keeps_versions(self) -> bool:
        return self.keeps in ("versions", "events", "change_versions")

    @property
    def keeps_changes(self) -> bool:
        """Whether change events of a source are applied to the table."""
        return self.keeps in ("changes", "change_versions")

    def with_load_columns(self) -> TableSpec:
        """The table as it is created: with ``_loaded_at`` and ``_batch_id`` unless declared.

        A table of versions also has their columns, and ``valid_from`` is part of each of its keys.
        """
        moment = DataType("timestamp_tz")
        extra: list[ColumnSpec] = []
        if self.keeps_versions:
            extra = [
                ColumnSpec(VALID_FROM, moment, primary_key=bool(self.primary_key)),
                ColumnSpec(VALID_TO, moment, nullable=True),
                ColumnSpec(IS_CURRENT, DataType("boolean")),
                ColumnSpec(ROW_HASH, DataType("bytes")),
            ]
        elif self.keeps == "soft_deletes":
            extra = [ColumnSpec(DELETED_AT, moment, nullable=True)]
        if self.stamped or self.keeps_versions:
            extra += [ColumnSpec(LOADED_AT, moment), ColumnSpec(BATCH_ID, DataType("uuid"))]
        added = tuple(c for c in extra if c.name not in self.column_names)
        if not self.keeps_versions:
            return replace(self, columns=self.columns + added)
        versioned_keys = [(*group, VALID_FROM) for group in (*self.unique, *self.natural_keys) if group]
        if self.merge_keys and self.merge_keys != self.primary_key:
            versioned_keys.append((*self.merge_keys, VALID_FROM))
        return replace(
            self,
            columns=self.columns + added,
            unique=tuple(dict.fromkeys(versioned_keys)),
            natural_keys=(),
            merge_keys=(),
        )

    def companion(self) -> TableSpec | None:
        """The companion table, in the same schema; None for most tables.

        For versions by event time it holds deletes and events that changed nothing: they opened no version,
        but a late event may need them. For changes it holds the position of each key's last change.
        """
        if self.keeps != "events" and not self.keeps_changes:
            return None
        keys = self.merge_keys or self.primary_key
        if self.keeps_changes:
            return self._positions(keys)
        values = tuple(
            replace(c, nullable=c.name not in keys, primary_key=c.name in keys, normalizers=())
            for c in self.columns
        )
        moment = DataType("timestamp_tz")
        extra = (
            ColumnSpec(EVENT_AT, moment, primary_key=True),
            ColumnSpec(IS_DELETE, DataType("boolean")),
            ColumnSpec(ROW_HASH, DataType("bytes"), nullable=True),
            ColumnSpec(LOADED_AT, moment),
            ColumnSpec(BATCH_ID, DataType("uuid")),
        )
        return TableSpec(self.schema, _companion_name(self.name), values + extra, where=self.where)

    def _positions(self, keys: tuple[str, ...]) -> TableSpec:
        moment = DataType("timestamp_tz")
        times = (ColumnSpec(EVENT_AT, moment, nullable=True),) if self.keeps_versions else ()
        columns = (
            *(replace(self.column(k), nullable=False, primary_key=True, normalizers=()) for k in keys),
            ColumnSpec(LAST_POSITION, DataType("text")),
            *times,
            ColumnSpec(LOADED_AT, moment),
            ColumnSpec(BATCH_ID, DataType("uuid")),
        )
        return TableSpec(self.schema, _companion_name(self.name, _CHANGES_SUFFIX), columns, where=self.where)

    def staged(self) -> TableSpec:
        """The table of staged rows: the declared columns, and for changes what each one says."""
        if not self.keeps_changes:
            return self
        names = (CHANGE_OP, CHANGE_POSITION, CHANGE_KEPT, CHANGE_FROM, CHANGE_UNTIL, CHANGE_OPEN)
        text = DataType("text")
        columns = tuple(replace(c, nullable=True, primary_key=False) for c in self.columns)
        added = tuple(ColumnSpec(name, text, nullable=True) for name in names)
        if self.keeps == "change_versions":
            added = (*added, ColumnSpec(CHANGE_AT, DataType("timestamp_tz"), nullable=True))
        return TableSpec(self.schema, self.name, columns + added, where=self.where)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "name": self.name,
            "columns": [c.to_json() for c in self.columns],
            "unique": [list(u) for u in self.unique],
            "merge_keys": list(self.merge_keys),
            "natural_keys": [list(k) for k in self.natural_keys],
            "doc": self.doc,
            "keeps": self.keeps,
            "stamped": self.stamped,
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
            keeps=value.get("keeps", "rows"),
            stamped=value.get("stamped", True),
        )


def _companion_name(name: str, suffix: str = _COMPANION_SUFFIX) -> str:
    """The companion's name, within the 63 bytes that databases allow."""
    if len(name.encode()) + len(suffix) <= _NAME_BYTES:
        return name + suffix
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    room = _NAME_BYTES - len(suffix) - len(digest) - 1
    return f"{name.encode()[:room].decode(errors='ignore')}_{digest}{suffix}"


_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def snake_case(name: str) -> str:
    """``CustomerDim`` → ``customer_dim``, ``HTTPEvents2`` → ``http_events2``."""
    return _BOUNDARY.sub("_", name).lower()
