"""SQL statements of the run log about many pipelines at once, and about runs that may be deleted.

Only builds statements; `runlog.sql` runs them.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from ematix_flow.state.runlog.tables import runs
from ematix_flow.state.sql.column_types import ExactText, UtcDateTime
from ematix_flow.state.sql.dialects import is_readable_by_postgres

PLAN = "plan"  # the metric that is long, and that no list shows
NEWEST_FIRST = (runs.c.started_at.desc(), runs.c.run_id.desc())
LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_NAMES_PER_STATEMENT = 200  # names in one statement: SQLite takes no more than 500 parts of a union


def newest_runs_statements(
    names: Sequence[str], each: int, dialect: str
) -> Iterator[tuple[sa.Select[Any], dict[str, Any]]]:
    """The statements that read the newest runs of all these pipelines, as few as the database runs well."""
    wanted = list(dict.fromkeys(names))
    if dialect == "postgresql":  # which would plan a long union for longer than it runs
        yield newest_runs_statement(None, each, dialect), {"names": wanted}
        return
    for first in range(0, len(wanted), _NAMES_PER_STATEMENT):
        portion = wanted[first : first + _NAMES_PER_STATEMENT]
        yield (
            newest_runs_statement(len(portion), each, dialect),
            {f"name_{n}": name for n, name in enumerate(portion)},
        )


@functools.lru_cache(maxsize=8)
def newest_runs_statement(names: int | None, each: int, dialect: str) -> sa.Select[Any]:
    """Return the statement for the newest runs of ``names`` pipelines, each down to its newest success.

    ``names`` None: the names come as one array. It searches an index, also in a large log. It may
    return more than ``each`` runs if several started at the same time. Building the statement takes longer
    than running it, so it is cached.
    """
    asked = names_array() if names is None else names_table(names)
    inner, good = runs.alias("inner_run"), runs.alias("good")
    nth = (
        sa.select(inner.c.started_at)
        .where(inner.c.pipeline == asked.c.pipeline)
        .order_by(inner.c.started_at.desc(), inner.c.run_id.desc())
        .limit(1)
        .offset(each - 1)
    )
    success = sa.select(sa.func.max(good.c.started_at)).where(
        good.c.pipeline == asked.c.pipeline, good.c.status == "succeeded"
    )
    always = sa.literal(LONG_AGO, UtcDateTime)
    since = sa.select(
        asked.c.pipeline,
        sa.func.coalesce(nth.scalar_subquery(), always).label("nth"),
        sa.func.coalesce(success.scalar_subquery(), always).label("success"),
    ).subquery("since")
    later = (runs.c.started_at >= since.c.nth, runs.c.started_at >= since.c.success)
    joined = since.join(runs, sa.and_(runs.c.pipeline == since.c.pipeline, *later))
    return sa.select(*listed_columns(dialect)).select_from(joined).order_by(runs.c.pipeline, *NEWEST_FIRST)


def listed_columns(dialect: str) -> tuple[sa.ColumnElement[Any], ...]:
    """The columns of a run as lists read them: without the plan, which stays in the database."""
    others = (column for column in runs.c if column is not runs.c.metrics)
    return (*others, sa.type_coerce(_metrics_without_plan(dialect), sa.JSON).label("metrics"))


def _metrics_without_plan(dialect: str) -> sa.ColumnElement[Any]:
    if dialect == "postgresql":
        each = sa.func.json_each(runs.c.metrics).table_valued("key", "value")
        kept = sa.func.json_object_agg(each.c.key, each.c.value)
        found = sa.select(sa.func.coalesce(kept, sa.literal_column("'{}'::json")))
        without = found.where(each.c.key != PLAN).correlate(runs).scalar_subquery()
        return sa.case((is_readable_by_postgres(runs.c.metrics), without), else_=runs.c.metrics)
    if dialect == "duckdb":
        return sa.func.json_merge_patch(runs.c.metrics, sa.literal_column(f"'{{\"{PLAN}\": null}}'"))
    return sa.func.json_remove(runs.c.metrics, f"$.{PLAN}")


def next_pipeline_statement(name: str | None) -> sa.Select[Any]:
    """Return the statement for the next pipeline by name; it reads only the index."""
    query = sa.select(sa.func.min(runs.c.pipeline))
    return query if name is None else query.where(runs.c.pipeline > name)


def needed_runs_statements(pipeline: str) -> tuple[sa.Select[Any], ...]:
    """Return the statements for runs that are never deleted: the newest success and the newest batch."""
    own = sa.select(runs.c.run_id).where(runs.c.pipeline == pipeline)
    return tuple(
        own.where(condition).order_by(*NEWEST_FIRST).limit(1)
        for condition in (runs.c.status == "succeeded", runs.c.batch.is_not(None))
    )


def keep_boundary_statement(pipeline: str, keep: int) -> sa.Select[Any]:
    """Return the statement for the start time of the newest run after the newest ``keep`` runs."""
    query = sa.select(runs.c.started_at).where(runs.c.pipeline == pipeline)
    return query.order_by(*NEWEST_FIRST).offset(keep).limit(1)


def purgeable_runs_statement(
    pipeline: str, before: dt.datetime, until: dt.datetime, needed: Sequence[str], most: int
) -> sa.Select[Any]:
    """Return the statement for the oldest runs of a pipeline that may be deleted."""
    return (
        sa.select(runs.c.run_id)
        .where(
            runs.c.pipeline == pipeline,
            runs.c.started_at < before,
            runs.c.started_at <= until,
            runs.c.status != "running",
            runs.c.run_id.not_in(needed),
        )
        .order_by(runs.c.started_at, runs.c.run_id)
        .limit(most)
    )


def names_table(count: int) -> sa.Subquery:
    """Return the names as a table; every database supports a union, but not the same list of values."""
    kind = ExactText(512)
    rows = " UNION ALL ".join(f"SELECT :name_{n} AS pipeline" for n in range(count))
    parameters = (sa.bindparam(f"name_{n}", type_=kind) for n in range(count))
    return sa.text(rows).bindparams(*parameters).columns(sa.column("pipeline", kind)).subquery("asked")


def names_array() -> sa.Subquery:
    rows = sa.text("SELECT unnest(CAST(:names AS text[])) AS pipeline")
    return rows.columns(sa.column("pipeline", ExactText(512))).subquery("asked")
