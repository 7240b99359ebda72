"""A plan: what a run will do, as an immutable value made of typed stages.

The executor and the explainer walk the same stages, so what is printed first is what is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ematix_flow.backends.base import SourceColumn, SourceQuery, TablePlan
from ematix_flow.spec.pipelines import PipelineSpec, PostTransform, TargetSpec
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.matching import Matching


@dataclass(frozen=True)
class Choice:
    """Something the planner decided, and why: shown, never hidden."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class PrepareTable:
    """Create or evolve the target table; control tables come along."""

    changes: TablePlan


@dataclass(frozen=True)
class CopyRows:
    """Spark tasks read Arrow batches and write staging in the same Python worker."""

    query: SourceQuery
    tasks: int


@dataclass(frozen=True)
class TransformRows:
    """Spark computes: the source as a DataFrame, ``projection`` over it, then staging.

    ``native`` sources are read by Spark's own readers, the others through Arrow batches first.
    """

    query: SourceQuery
    projection: str | None
    view: str  # the name under which the projection finds the source
    columns: tuple[SourceColumn, ...]
    native: bool
    tasks: int
    max_parts: int | None  # tasks that write staging, at most; None: as many as there are
    repartition_by: tuple[str, ...] = ()  # rows alike in these columns are written by one task


@dataclass(frozen=True)
class ApplyRows:
    """The one transaction. ``sql`` is set when the database computes the rows itself.

    ``shared_sql`` is the same over the table that it computed for several targets. ``by_commit``: the target
    has no transactions, and everything counts from one commit of its table on.
    """

    sql: str | None = None
    shared_sql: str | None = None
    by_commit: bool = False


@dataclass(frozen=True)
class RunPostTransform:
    step: PostTransform
    index: int


Stage = PrepareTable | CopyRows | TransformRows | ApplyRows


@dataclass(frozen=True)
class TargetPlan:
    """One target's share of the plan."""

    target: TargetSpec
    table: TableSpec
    path: Choice
    guarantee: Choice
    range: SourceRange | None
    stages: tuple[Stage, ...]
    tuning: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
    matching: Matching = field(default_factory=Matching)


@dataclass(frozen=True)
class SharedRead:
    """The one read of the source that feeds all targets of a pipeline.

    ``copy``: each task writes what it reads to every target's staging. ``frame``: Spark reads into a
    DataFrame, keeps it, and computes each target's rows from it. ``table``: the database that source and
    targets share computes the rows into ``table``. Each target takes the rows of its own range.
    """

    method: Literal["copy", "frame", "table"]
    query: SourceQuery
    tasks: int
    table: str | None = None


@dataclass(frozen=True)
class Plan:
    """Everything one run of one pipeline will do."""

    pipeline: PipelineSpec
    source_connection: str
    source_kind: str
    source_sql: str
    source_columns: tuple[SourceColumn, ...]
    targets: tuple[TargetPlan, ...]
    post: tuple[RunPostTransform, ...] = ()  # after all targets, on the first target's connection
    shared: SharedRead | None = None  # with several targets

    @property
    def has_changes(self) -> bool:
        """Whether a run would change a table's definition."""
        return any(
            isinstance(stage, PrepareTable) and stage.changes.changes
            for t in self.targets
            for stage in t.stages
        )

    def to_json(self) -> dict[str, Any]:
        from ematix_flow.plan.explain import plan_to_json

        return plan_to_json(self)

    def __str__(self) -> str:
        from ematix_flow.plan.explain import plan_to_text

        return plan_to_text(self)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"
