"""The stages of a plan: typed values that the executor carries out and the explainer describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ematix_flow.backends.base import LoadPlan, SourceColumn, SourceQuery
from ematix_flow.plan.decisions import Decision
from ematix_flow.spec.pipelines import PostTransform, TargetSpec
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import SourceRange


@dataclass(frozen=True)
class PrepareControlTables:
    """Create the target's ledger and watermarks, if they are missing."""


@dataclass(frozen=True)
class CopyRows:
    """Spark tasks read Arrow batches and write staging in the same Python worker."""

    query: SourceQuery
    tasks: int


@dataclass(frozen=True)
class TransformRows:
    """Spark reads the source as a DataFrame, runs ``projection`` over it, and writes staging.

    Spark's own readers read ``native`` sources; other sources are read as Arrow batches first.
    """

    query: SourceQuery
    projection: str | None
    view: str  # the view of the source in the projection
    columns: tuple[SourceColumn, ...]
    native: bool
    tasks: int
    max_parts: int | None  # the most tasks that write staging; None: no limit
    repartition_by: tuple[str, ...] = ()  # one task writes all rows with the same values in these columns


@dataclass(frozen=True)
class ApplyRows:
    """The one transaction: it changes the table, applies the rows, and writes ledger and watermark.

    ``sql`` is set if the database computes the rows itself; ``shared_sql`` reads them from the table that it
    computed for several targets. ``by_commit``: the target has no transactions, and one commit of its table
    makes everything visible.
    """

    sql: str | None = None
    shared_sql: str | None = None
    by_commit: bool = False


@dataclass(frozen=True)
class RunPostTransform:
    step: PostTransform
    index: int


Stage = PrepareControlTables | CopyRows | TransformRows | ApplyRows


@dataclass(frozen=True)
class TargetPlan:
    """The plan of one target: how it is loaded, and the stages that do it."""

    target: TargetSpec
    load: LoadPlan
    path: Decision
    guarantee: Decision
    stages: tuple[Stage, ...]
    tuning: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def table(self) -> TableSpec:
        return self.load.table

    @property
    def range(self) -> SourceRange | None:
        return self.load.range


@dataclass(frozen=True)
class SharedRead:
    """The one read of the source that feeds all targets of a pipeline.

    ``copy``: each task writes its rows to the staging of every target. ``frame``: Spark caches the source as
    a DataFrame and computes the rows of each target from it. ``table``: the database that source and targets
    share computes the rows into ``table``. Each target takes only the rows in its range.
    """

    method: Literal["copy", "frame", "table"]
    query: SourceQuery
    tasks: int
    table: str | None = None
