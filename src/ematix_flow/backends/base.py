"""The contracts that a backend fulfils.

A backend is one resolved connection. It can be a `BatchSource`, a `BatchTarget`, or both. The planner
calls methods that change nothing (`describe`, `inspect`, `plan_table`). The engine then follows the
commit protocol: create staging, let tasks write parts, apply them in one transaction, drop staging.
Only a `Split` or a `Staging` is pickled into a Spark task.
"""

from __future__ import annotations

import datetime as dt
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from ematix_flow.backends.capabilities import Capabilities
from ematix_flow.backends.messages.base import MessageTarget, StreamSource
from ematix_flow.backends.split import Split
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import ExpectationResult, Gate
from ematix_flow.spec.pipelines import FileOptions, Mode
from ematix_flow.spec.row_counts import NO_ROWS, RowCounts
from ematix_flow.spec.tables import AGE, MESSAGE, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark
from ematix_flow.strategies.matching import Matching

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# ------------------------------------------------------------------ sources


@dataclass(frozen=True)
class SourceColumn:
    """A column of a query's result. ``type`` is None where the source does not know (SQLite expressions)."""

    name: str
    type: DataType | None
    native: str = ""


@dataclass(frozen=True)
class SourceQuery:
    """What to read: the user's SQL, and the range of rows that an incremental run reads."""

    sql: str
    range: SourceRange | None = None


@dataclass(frozen=True)
class ReadBound:
    """The highest value that can be read now, below which no other transaction can still commit rows."""

    high: Watermark
    held_back_by: str | None = None  # a sentence for plan and run that names the open transaction


class BatchSource(ABC):
    """A system that answers SQL with Arrow batches, read by Python tasks."""

    dialect: str  # sqlglot's name of its SQL

    @abstractmethod
    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        """SELECT of ``(alias, source column)`` pairs from ``schema.table``, everything quoted."""

    @abstractmethod
    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        """The columns of the SQL's result, without running it. Invalid SQL raises SourceFailed."""

    @abstractmethod
    def explain(self, sql: str) -> str:
        """The database's own plan of the SQL, as text."""

    def safe_read_bound(self, query: SourceQuery, data_type: DataType) -> ReadBound | None:
        """The upper bound for an incremental read that begins after this call, at most the range's own high.

        ``data_type`` is the watermark's type. None when the source cannot tell. It may wait a few seconds.
        """
        return None

    def expected_rows(self, query: SourceQuery) -> int | None:
        """The estimated number of rows, when the source has a quick and good estimate; else None."""
        return None

    @abstractmethod
    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> AbstractContextManager[Sequence[Split]]:
        """Splits that all read one snapshot, valid while the context is open.

        ``wanted`` holds the target's type of each column: a loosely typed source converts to them.
        Each split yields batches of bounded size.
        """


@dataclass(frozen=True)
class SparkSetting:
    """A setting of a Spark session, and the reason for it."""

    key: str
    value: str
    reason: str


class SparkSource(ABC):
    """A system that Spark's own readers read (files, lakes). Planning it needs the Spark session."""

    dialect = "spark"

    @abstractmethod
    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str: ...

    @abstractmethod
    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        """The SQL as a DataFrame; its table names are those of the connection."""

    def with_file_options(self, files: FileOptions) -> SparkSource:
        """The same source, with its files read by these options."""
        return self

    def with_text_columns(self, columns: Collection[str]) -> SparkSource:
        """The same source, for targets that store these columns of a query's result as text.

        A source column that the query passes on to them unchanged is read as text.
        """
        return self

    def as_batches(self, sql: str) -> BatchSource | None:
        """The same rows, read by the tasks without Spark's readers; None if only Spark can read them."""
        return None

    def settings(self) -> tuple[SparkSetting, ...]:
        """The session settings that apply while a frame of this source is computed."""
        return ()

    def size_in_bytes(self, sql: str) -> int | None:
        """The size of all files that the SQL may read; None when it is not known."""
        return None


# ------------------------------------------------------------------ tables of a target


@dataclass(frozen=True)
class LiveTable:
    """A table as it exists in the target now."""

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
    """One step that makes the live table match the declaration, as SQL or in words."""

    action: ChangeAction
    subject: str
    sql: str = ""


@dataclass(frozen=True)
class DiffLine:
    """One difference between the declared table and the live one.

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
    """What must change before a load, and what prevents it.

    ``blockers`` are the differences with which no load can be exact, whether a change fixes them or not.
    """

    changes: tuple[TableChange, ...] = ()
    differences: tuple[str, ...] = ()  # differences that no change fixes
    diff: tuple[DiffLine, ...] = ()
    blockers: tuple[str, ...] = ()
    converts_to_scd2: bool = False  # plain rows become the first versions of an scd2 table
    declined: tuple[TableChange, ...] = ()  # changes that the drift policy does not allow


# ------------------------------------------------------------------ staging and apply


@dataclass(frozen=True)
class StagedPart:
    """What one task attempt wrote. Only parts that the task reported to the driver are applied.

    ``note`` is what the target itself needs to know of the part.
    """

    part: str
    rows: int
    bytes: int
    note: str = ""


RowCheck = Callable[["pa.RecordBatch"], None]  # raises RowRejected for a row that the target cannot store


class Staging(Protocol):
    """Picklable handle of one attempt's staging, written from inside Spark tasks."""

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Write all batches as ``part``. A part that fails half way is never read."""
        ...


@dataclass(frozen=True)
class SameDatabaseRows:
    """Rows that the target database computes itself. ``sql`` yields the declared columns in order."""

    sql: str


@dataclass(frozen=True)
class StagedRows:
    """Rows that tasks have written to staging."""

    staging: Staging
    parts: tuple[StagedPart, ...]


@dataclass(frozen=True)
class QuarantineFilter:
    """Rows of a quarantine table: those of one pipeline, or of these those of one rule or one batch."""

    pipeline: str
    rule: str | None = None
    batch: str | None = None  # the run that set them aside


@dataclass(frozen=True)
class QuarantinedRows:
    """Rows of a quarantine table: those that a replay loads again, or a purge deletes.

    ``counted`` is how many there were when the user confirmed. A database purges only exactly as many.
    """

    table: TableSpec
    chosen: QuarantineFilter
    counted: int | None = None


LoadRows = SameDatabaseRows | StagedRows | QuarantinedRows


@dataclass(frozen=True)
class LoadPlan:
    """How one target is loaded, as the planner decided: its table, the strategy and its options."""

    table: TableSpec  # as declared, without the load columns
    mode: Mode | Literal["cdc", "cdc_scd2"]
    matching: Matching = field(default_factory=Matching)
    range: SourceRange | None = None
    max_shrink: float = 0.5
    allow_empty: bool = False
    files: FileOptions = field(default_factory=FileOptions)
    partition_by: tuple[str, ...] = ()
    table_plan: TablePlan = field(default_factory=TablePlan)  # the table's changes; they commit with the rows
    gate: Gate | None = None  # what is checked in the rows before they become visible
    quarantine_plan: TablePlan = field(default_factory=TablePlan)  # the changes of the quarantine table
    stages_older: bool = False  # staging also has the older rows of each key, every row with its age

    @property
    def names_messages(self) -> bool:
        """Whether staging has the message that each row comes from: a failing one becomes a dead letter."""
        return self.gate is not None and self.gate.to_dead_letters

    @property
    def staged(self) -> TableSpec:
        """The table of staged rows. NULL may be staged in columns whose NULLs the gate keeps out."""
        table = self.table.staged()
        checked = self.gate.checked_columns if self.gate is not None else frozenset()
        columns = tuple(replace(c, nullable=True) if c.name in checked else c for c in table.columns)
        if self.stages_older:
            columns = (*columns, ColumnSpec(AGE, DataType("big_int")))
        if self.names_messages:
            columns = (*columns, ColumnSpec(MESSAGE, DataType("text")))
        return table if columns == table.columns else replace(table, columns=columns)


@dataclass(frozen=True)
class Load:
    """One load of one target: its plan, and the attempt and batch that carry it out."""

    pipeline: str
    target: str
    plan: LoadPlan
    run_id: uuid.UUID
    loaded_at: dt.datetime
    batch_key: str | None = None  # None: the range that is read, known once the rows are there
    positions: tuple[str | None, str | None] | None = None  # start and end of a stream's batch
    dry_run: bool = False  # count what would change, commit nothing; the table may not exist yet
    dead_letters: Mapping[str, str] = field(default_factory=dict)  # messages not to load, and their rules

    @property
    def table(self) -> TableSpec:
        return self.plan.table

    def source_bounds(self, high: Watermark | None) -> tuple[str | None, str | None]:
        """Start and end of what this load read, as the ledger records it; ``high`` is the new watermark."""
        if self.positions is not None:
            return self.positions
        low = self.plan.range.low if self.plan.range else None
        return (low.encode() if low else None, high.encode() if high else None)


@dataclass(frozen=True)
class LoadResult:
    """What the transaction did. ``duplicate``: the ledger held the batch already, and nothing was done."""

    rows: RowCounts = NO_ROWS
    watermark: Watermark | None = None
    duplicate: bool = False
    expectations: tuple[ExpectationResult, ...] = ()  # what the gate found

    @property
    def quarantined(self) -> int:
        """The rows that were set aside."""
        return sum(each.quarantined for each in self.expectations)


STREAM_BATCHES = "stream:"  # begins the key of each batch of a stream
STREAM_BATCHES_KEPT = dt.timedelta(days=7)  # how long a ledger keeps their entries, if it drops any


@dataclass(frozen=True)
class LedgerEntry:
    """A committed batch. A ledger does not know how many rows were unchanged or outranked."""

    pipeline: str
    target: str
    batch_key: str
    run_id: str
    source_from: str | None
    source_to: str | None
    rows: RowCounts
    committed_at: dt.datetime


class BatchTarget(ABC):
    """A system that a pipeline loads into."""

    forgets_batches: ClassVar[bool] = False  # whether `forget_batches` drops anything

    def with_files(self, files: FileOptions) -> BatchTarget:
        """The same target, which reads existing files of other programs by these options."""
        return self

    @abstractmethod
    def inspect(self, table: TableSpec) -> LiveTable | None:
        """The live table, or None when there is none."""

    @abstractmethod
    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        """Compare the declaration (load columns included) with the live table.

        ``matching`` says how rows that become scd2 versions are hashed and dated.
        """

    @abstractmethod
    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """Make the plan's changes, and create what the ledger and the watermarks need.

        It is safe when another process does the same. A run calls it without changes and leaves them to
        `apply`, so that a load that fails creates no table.
        """

    @abstractmethod
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        """Hold the pipeline's lock on this target for the whole run; PipelineLocked when it is taken."""

    @abstractmethod
    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None: ...

    @abstractmethod
    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        """Committed batches, newest first; empty when nothing was ever committed."""

    def forget_batches(self, pipeline: str, target: str, before: dt.datetime) -> None:
        """Drop the ledger entries of a stream's batches before that time: such a batch cannot come again."""
        return

    @abstractmethod
    def create_staging(self, load: Load, schema: pa.Schema) -> Staging:
        """Create staging, where tasks write rows of ``schema`` (the declared columns)."""

    def row_check(self, table: TableSpec) -> RowCheck | None:
        """A check that refuses rows that this target cannot store, before they are staged. Picklable.

        None when staging or the load itself refuses such rows.
        """
        return None

    @abstractmethod
    def apply(self, load: Load, rows: LoadRows) -> LoadResult:
        """One transaction: table changes, strategy, ledger row, watermark. All or nothing."""

    @abstractmethod
    def drop_staging(self, staging: Staging) -> None: ...

    @abstractmethod
    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        """Drop the staging that crashed runs of this pipeline left. The caller holds the lock."""

    def with_partitions(self, partition_by: tuple[str, ...]) -> BatchTarget:
        """The same target, for planning a table that is partitioned by these columns."""
        return self

    def warnings(self) -> tuple[str, ...]:
        """Warnings for the plan about how this target is loaded."""
        return ()

    def commit_method(self, plan: LoadPlan) -> tuple[str, str] | None:
        """How a load of this plan commits its rows, and why, where the target has several methods."""
        return None

    @abstractmethod
    def run_sql(self, sql: str) -> int:
        """Run one statement in its own transaction, for post-load transforms; the rows affected."""


# ------------------------------------------------------------------ the backend itself


class SparkTarget(ABC):
    """A target that Spark's own writers write (lakes). The caller gives it the Spark session."""

    @abstractmethod
    def use_spark(
        self, spark: Callable[[], SparkSession], errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """``spark`` starts the engine when it is first called; planning may need it too.

        ``errors(what)`` turns what Spark raises inside its block into a FlowError.
        """


class Backend(ABC):
    """One resolved connection. It connects when a method needs it."""

    kind: str
    capabilities: Capabilities
    jar_groups: tuple[str, ...] = ()  # groups of the jar lock that a session for it must have

    def spark_conf(self) -> Mapping[str, str]:
        """The settings that a Spark session needs to reach it. They contain secrets: never show them."""
        return {}

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @abstractmethod
    def check(self) -> str:
        """Connect, and return product and version. CannotConnect when it fails."""

    @abstractmethod
    def identity(self) -> str:
        """Equal for two connections if and only if they reach the same database."""

    def is_same_database(self, other: Backend) -> bool:
        """Whether the two connections reach the same database now."""
        return self.identity() == other.identity()

    def query_context(self) -> Mapping[str, str]:
        """What a query's result depends on, other than the database: user, default schema, session settings.

        Two connections to one database with equal contexts return the same rows for every query. The keys are
        shown to people (``default database``, ``user``).
        """
        return {}

    def source(self) -> BatchSource | SparkSource | None:
        return None

    def target(self) -> BatchTarget | None:
        return None

    def stream_source(self) -> StreamSource | None:
        """The source of a stream; None when this kind cannot be one."""
        return None

    def message_target(self) -> MessageTarget | None:
        """Where a stream sends messages; None for a kind that rows are loaded into."""
        return None

    def query(self, sql: str, limit: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and at most ``limit`` rows, for the ``conn`` argument of a pipeline's function."""
        from ematix_flow.errors import Unsupported

        raise Unsupported(f"a connection of kind {self.kind!r} cannot be queried from a pipeline's function")
