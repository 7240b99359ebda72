"""The few contracts that a backend fulfils.

A backend is one resolved connection. It may be a `BatchSource`, a `Target`, or both. The planner asks
it questions that change nothing (`describe`, `inspect`, `plan_table`); the engine asks it to act, in
the order of the commit protocol: create staging, let tasks write parts, apply in one transaction,
drop staging. What is pickled into a Spark task is only a `Split` or a `Staging`.
"""

from __future__ import annotations

import datetime as dt
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.messages.contract import MessageTarget, StreamSource
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.strategies.matching import Matching

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.messages.contract import MessageTarget, StreamSource


# ------------------------------------------------------------------ what a source tells the planner


@dataclass(frozen=True)
class SourceColumn:
    """A column of a query's result. ``type`` is None where the source does not know (SQLite expressions)."""

    name: str
    type: DataType | None
    native: str = ""


@dataclass(frozen=True)
class SourceQuery:
    """What to read: the SQL as written, and for an incremental run the range to keep."""

    sql: str
    range: SourceRange | None = None


@dataclass(frozen=True)
class ReadBound:
    """How far a range can be read so that nothing is committed below afterwards, and who keeps it there."""

    high: Watermark
    held_back_by: str | None = None  # words for plan and run, when it is worth telling


class Split(Protocol):
    """A share of a query, picklable, read inside a Spark task. Holds no open handle."""

    def read(self) -> Iterator[pa.RecordBatch]: ...


class BatchSource(ABC):
    """A system that answers SQL with Arrow batches, read by Python tasks."""

    dialect: str  # sqlglot's name of its SQL

    @abstractmethod
    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        """SELECT of ``(alias, source column)`` pairs from ``schema.table``, everything quoted."""

    @abstractmethod
    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        """The columns the SQL yields, without running it. Wrong SQL raises SourceFailed."""

    @abstractmethod
    def explain(self, sql: str) -> str:
        """Let the database check and plan the SQL; its plan as text."""

    def safe_read_bound(self, query: SourceQuery, data_type: DataType) -> ReadBound | None:
        """The bound for an incremental read that begins after this call, not beyond the range's own high.

        ``data_type`` is the watermark's. None where a source cannot tell. May wait a little, never long.
        """
        return None

    def expected_rows(self, query: SourceQuery) -> int | None:
        """About how many rows it will yield, when the source can tell that at once and well; else None."""
        return None

    @abstractmethod
    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> AbstractContextManager[Sequence[Split]]:
        """Splits that all see one moment of the data, valid while the context is open.

        ``wanted`` are the target's types by column: a loosely typed source reads by them.
        Each split yields batches of bounded size.
        """


@dataclass(frozen=True)
class SparkSetting:
    """A setting of a session, and why."""

    key: str
    value: str
    reason: str


class SparkSource(ABC):
    """A system that Spark reads with its own readers (files, lakes); planning it needs the session."""

    dialect = "spark"

    @abstractmethod
    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str: ...

    @abstractmethod
    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        """The SQL as a DataFrame; the tables in it resolve under the connection."""

    def with_file_options(self, files: FileOptions) -> SparkSource:
        """The same source, with its files read by these options."""
        return self

    def with_text_columns(self, columns: Collection[str]) -> SparkSource:
        """The same source, for targets that keep these columns of a query's result as text.

        What the query hands on to them unchanged is not read as anything else.
        """
        return self

    def settings(self) -> tuple[SparkSetting, ...]:
        """What the session is set to while a frame of this source is computed."""
        return ()

    def size_in_bytes(self, sql: str) -> int | None:
        """The bytes of all files that the SQL may read; None where that is not known."""
        return None


# ------------------------------------------------------------------ what a target tells the planner


@dataclass(frozen=True)
class LiveTable:
    """A table as it is in the target now."""

    columns: tuple[ColumnSpec, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    native: Mapping[str, str] = field(default_factory=dict)  # column -> the backend's own type text
    limits: Mapping[str, DataType] = field(default_factory=dict)  # column -> what a CHECK of ours allows
    drop_clauses: Mapping[tuple[str, ...], str] = field(
        default_factory=dict
    )  # key -> the ALTER that drops it
    pinned: Mapping[str, str] = field(default_factory=dict)  # column -> what keeps its type from changing
    referred_by: tuple[str, ...] = ()  # tables whose foreign keys refer to this one


ChangeAction = Literal[
    "create_schema",
    "create_table",
    "create_folder",
    "add_column",
    "widen_column",
    "relax_null",
    "set_not_null",
    "add_unique",
    "change_key",
    "fill",
    "rebuild_table",
]


@dataclass(frozen=True)
class TableChange:
    """One step that makes the live table fit the declaration, as SQL or as words."""

    action: ChangeAction
    subject: str
    sql: str = ""


@dataclass(frozen=True)
class DiffLine:
    """The declared table against the live one, a line each.

    ``+`` is added, ``~`` changes from ``was`` to ``now``, ``=`` is left alone, ``!`` is refused.
    """

    mark: Literal["+", "~", "=", "!"]
    subject: str
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        detail = f"{self.was} -> {self.now}" if self.was and self.now else self.was or self.now
        return f"{self.mark} {self.subject}" + (f"  {detail}" if detail else "")


@dataclass(frozen=True)
class TablePlan:
    """What must change before a load, and what stands in its way.

    ``stops`` are those differences, mended by a change or not, with which no load can be exact.
    """

    changes: tuple[TableChange, ...] = ()
    differences: tuple[str, ...] = ()  # drift that no change above mends
    diff: tuple[DiffLine, ...] = ()
    blockers: tuple[str, ...] = ()
    converts_to_scd2: bool = False  # plain rows become the first versions of an scd2 table
    declined: tuple[TableChange, ...] = ()  # what the policy of the load does not do


# ------------------------------------------------------------------ staging and apply


@dataclass(frozen=True)
class StagedPart:
    """What one task attempt wrote; only parts whose message reached the driver are applied."""

    part: str
    rows: int
    bytes: int


RowCheck = Callable[["pa.RecordBatch"], None]  # RowRejected for a row that the target has no value for


class Staging(Protocol):
    """Picklable handle of one attempt's staging, written from inside Spark tasks."""

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Write all batches as ``part``; a part that fails half way is never referred to again."""
        ...


@dataclass(frozen=True)
class SameDatabaseRows:
    """Rows that the target computes itself: ``sql`` yields the declared columns in order."""

    sql: str


@dataclass(frozen=True)
class StagedRows:
    """Rows that tasks have written aside."""

    staging: Staging
    parts: tuple[StagedPart, ...]


@dataclass(frozen=True)
class Load:
    """Everything one load of one target is about. The strategy applies ``rows`` to ``table``."""

    pipeline: str
    target: str
    table: TableSpec  # as declared, without the load columns
    mode: str
    run_id: uuid.UUID
    loaded_at: dt.datetime
    matching: Matching = field(default_factory=Matching)
    batch_key: str | None = None  # None: the range it reads, known once the rows are there
    range: SourceRange | None = None
    positions: tuple[str | None, str | None] | None = None  # of a stream's batch: where it begins and ends
    max_shrink: float = 0.5
    allow_empty: bool = False
    files: FileOptions = field(default_factory=FileOptions)
    partition_by: tuple[str, ...] = ()
    table_plan: TablePlan = field(default_factory=TablePlan)  # to the table; they commit with the rows
    dry_run: bool = False  # count what would change, commit nothing; the table may not exist yet

    def source_bounds(self, high: Watermark | None) -> tuple[str | None, str | None]:
        """From where to where this load has read, as the ledger keeps it; ``high`` is the new watermark."""
        if self.positions is not None:
            return self.positions
        low = self.range.low if self.range else None
        return (low.encode() if low else None, high.encode() if high else None)


@dataclass(frozen=True)
class LoadResult:
    """What the transaction did. ``duplicate`` means the ledger already held the batch: nothing done."""

    rows_in: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    rows_unchanged: int = 0
    rows_outranked: int = 0  # of scd2 by event time: another row holds at the same event time
    watermark: Watermark | None = None
    duplicate: bool = False


@dataclass(frozen=True)
class LedgerEntry:
    pipeline: str
    target: str
    batch_key: str
    run_id: str
    source_from: str | None
    source_to: str | None
    rows_in: int
    rows_inserted: int
    rows_updated: int
    rows_deleted: int
    committed_at: dt.datetime


class BatchTarget(ABC):
    """A system that a pipeline loads into."""

    def with_files(self, files: FileOptions) -> BatchTarget:
        """The same target; files of others that are there already are read by these options."""
        return self

    @abstractmethod
    def inspect(self, table: TableSpec) -> LiveTable | None:
        """The live table, or None when there is none."""

    @abstractmethod
    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        """Compare the declaration (load columns included) with what lives.

        ``matching`` is what rows that become versions are hashed and dated by.
        """

    @abstractmethod
    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """Carry out the plan's changes, and make what ledger and watermarks need.

        Safe when another process did the same a moment ago. A run calls it with no changes and leaves
        those to `apply`, so that a load that fails creates no table.
        """

    @abstractmethod
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        """Hold the pipeline's lock on this target for the whole run; PipelineLocked when taken."""

    @abstractmethod
    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None: ...

    @abstractmethod
    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        """Committed batches, newest first; empty when nothing was ever committed."""

    def forget_batches(self, pipeline: str, target: str, before: dt.datetime) -> None:
        """Drop ledger entries of a stream's batches that old: none of them can come again."""
        return

    @abstractmethod
    def create_staging(self, load: Load, schema: pa.Schema) -> Staging:
        """A place for tasks to write rows of ``schema`` (the declared columns)."""

    def row_check(self, table: TableSpec) -> RowCheck | None:
        """What refuses rows of the declared columns that this target cannot hold, before they are staged.

        Picklable. None where a staging or the load itself finds them out.
        """
        return None

    @abstractmethod
    def apply(self, load: Load, rows: SameDatabaseRows | StagedRows) -> LoadResult:
        """One transaction: table changes, strategy, ledger row, watermark. All or nothing."""

    @abstractmethod
    def drop_staging(self, staging: Staging) -> None: ...

    @abstractmethod
    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        """Drop staging that a crashed run of this pipeline left. Called while the lock is held."""

    def with_partitions(self, partition_by: tuple[str, ...]) -> BatchTarget:
        """The same target, for a plan of a table whose files are divided by these columns."""
        return self

    def warnings(self) -> tuple[str, ...]:
        """What a person should know of how this target is loaded, for the plan's warnings."""
        return ()

    @abstractmethod
    def run_sql(self, sql: str) -> int:
        """One statement in its own transaction, for post-load transforms; rows affected."""


# ------------------------------------------------------------------ the backend itself


class SparkTarget(ABC):
    """A target that Spark writes with its own writers (lakes): whoever opens it brings the session."""

    @abstractmethod
    def use_spark(
        self, spark: Callable[[], SparkSession], errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """``spark`` starts the engine when it is first called; asking a question may need it too.

        What Spark raises within ``errors(what)`` is raised as an error of ours.
        """


class Backend(ABC):
    """One resolved connection. Opens nothing until it is asked to."""

    kind: str
    capabilities: Capabilities
    jar_groups: tuple[str, ...] = ()  # groups of the jar lock that a session for it must have

    def spark_conf(self) -> Mapping[str, str]:
        """What a running session must be told to reach it. Secrets are among it: never to be shown."""
        return {}

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @abstractmethod
    def check(self) -> str:
        """Connect for real and say to what (product and version). CannotConnect when it fails."""

    @abstractmethod
    def identity(self) -> str:
        """Equal for two connections exactly when they reach the same database."""

    def is_same_database(self, other: Backend) -> bool:
        """Whether the two connections reach one database now."""
        return self.identity() == other.identity()

    def query_context(self) -> Mapping[str, str]:
        """What of this connection, beyond its database, decides which rows a query yields.

        Names in words (``default database``, ``user``) with their values. Two connections to one database
        with equal contexts answer every query alike.
        """
        return {}

    def source(self) -> BatchSource | SparkSource | None:
        return None

    def target(self) -> BatchTarget | None:
        return None

    def stream_source(self) -> StreamSource | None:
        """What a stream follows; None where it cannot."""
        return None

    def message_target(self) -> MessageTarget | None:
        """What a stream sends messages to; None where rows are loaded instead."""
        return None

    def query(self, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and at most ``limit`` rows: for the ``conn`` that a pipeline's function gets."""
        from ematix_flow.errors import Unsupported

        raise Unsupported(f"a connection of kind {self.kind!r} cannot be queried from a pipeline's function")
