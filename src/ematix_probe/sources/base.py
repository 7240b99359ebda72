"""The contract of a source: a frozen value that opens one consistent view of a table or query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sqlglot import exp

ValueFamily = Literal[
    "boolean",
    "integer",
    "decimal",
    "float",
    "text",
    "bytes",
    "date",
    "timestamp",
    "timestamp_tz",
    "time",
    "other",
]


@dataclass(frozen=True)
class Subject:
    """What a probe looks at: a table (or file, or frame) of the source, or a query."""

    table: str = ""
    schema: str | None = None
    query: str | None = None

    @property
    def label(self) -> str:
        if self.query is not None:
            return " ".join(self.query.split())
        return f"{self.schema}.{self.table}" if self.schema else self.table


@dataclass(frozen=True)
class ColumnInfo:
    """A column as the source describes it. ``type`` is a type in plain words (`column_types`)."""

    name: str
    family: ValueFamily
    type: str
    nullable: bool | None = None  # None: the source does not know
    native: str = ""  # the type in the source's own words


class OpenSubject(ABC):
    """A subject that is open for reading: every statement of it sees the same rows."""

    dialect: str  # sqlglot's name of the SQL that `fetch` takes

    @abstractmethod
    def columns(self) -> Sequence[ColumnInfo]: ...

    @abstractmethod
    def rows(self) -> exp.Query | exp.Table:
        """A tree that can follow FROM and yields the subject's rows; give it an alias before use."""

    @abstractmethod
    def reference(self, table: str) -> exp.Query | exp.Table:
        """A tree of another table of the same source, for foreign keys: ``schema.table`` or ``table``."""

    @abstractmethod
    def fetch(self, query: exp.Query) -> list[tuple[Any, ...]]:
        """The rows of a query. SourceFailed when the source refuses it; later queries still work."""

    def reference_columns(self, table: str) -> Sequence[ColumnInfo] | None:
        """The columns of that other table; None when the source cannot tell without reading it."""
        return None

    def key(self) -> Sequence[str]:
        """The columns that identify a row in samples: the primary key, or nothing."""
        return ()


class Source(ABC):
    """Where a probe reads: a frozen value without an open connection. Its repr shows no secret."""

    kind: str

    @property
    def default_subject(self) -> Subject | None:
        """The subject of a probe without table= and query=: of a file or frame, which is one by itself."""
        return None

    @property
    def is_single(self) -> bool:
        """Whether the source is one table and has no others by name: a file, a frame."""
        return False

    @property
    @abstractmethod
    def label(self) -> str:
        """The source for people, secrets masked."""

    @abstractmethod
    def open(self, subject: Subject) -> AbstractContextManager[OpenSubject]:
        """Connect and open the subject. CannotConnect or SourceFailed when that fails."""
