"""The strategies of a load, and the counts and checks that a database and a lake share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from ematix_flow.backends.base import Load, LoadResult
from ematix_flow.backends.sql.session import SqlDialect, SqlSession
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.expectations import ExpectationResult
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies import append, change_events, change_versions, merge, scd2, truncate
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.shrink_limit import ShrinkLimit, check_shrink
from ematix_flow.strategies.sql import (
    IncomingRows,
    RowTally,
    StrategyDialect,
    StrategyStep,
    column,
    with_alias,
)

STRATEGIES: dict[
    str, Callable[[StrategyDialect, TableSpec, IncomingRows], Sequence[StrategyStep | LoadGuard | RowTally]]
] = {
    "append": append.steps,
    "truncate": truncate.steps,
    "merge": merge.steps,
    "scd2": scd2.steps,
    "cdc": change_events.steps,
    "cdc_scd2": change_versions.steps,
}
WORK_TABLES = {
    "merge": merge.work_tables,
    "scd2": scd2.work_tables,
    "cdc": change_events.work_tables,
    "cdc_scd2": change_versions.work_tables,
}


def count_incoming(
    dialect: SqlDialect, session: SqlSession, load: Load, select: exp.Expr
) -> tuple[int, Watermark | None]:
    """The number of incoming rows, and the highest watermark among them."""
    rows = with_alias(exp.Subquery(this=select.copy()), "m")
    if load.plan.range is None:
        counted = session.fetch(dialect.render(exp.select(exp.Count(this=exp.Star())).from_(rows)))
        return int(counted[0][0]), None
    mark = column(load.plan.range.column, "m")
    data_type = load.table.column(load.plan.range.column).type
    latest = dialect.as_fetchable(exp.Max(this=dialect.comparable(mark.copy(), data_type)), data_type)
    query = exp.select(exp.Count(this=exp.Star()), exp.Count(this=mark), latest).from_(rows)
    total, marked, highest = session.fetch(dialect.render(query))[0]
    require_watermarks(load, total, total - marked)
    if highest is None:
        return 0, None
    return int(total), Watermark(load.plan.range.column, data_type, dialect.to_python(highest, data_type))


def require_watermarks(load: Load, rows: int, nulls: int) -> None:
    """Refuse an incremental load with rows that have no watermark."""
    if nulls and load.plan.range is not None:
        raise RowRejected(
            f"{nulls:,} of {rows:,} rows have no watermark in column {load.plan.range.column!r}",
            state=f"{load.table.label} is unchanged",
            next_step="filter these rows out in the source SQL, or choose a column that is never null",
        )


def count_tally(
    counts: dict[str, int], step: RowTally, rows_in: int, dialect: SqlDialect, session: SqlSession
) -> None:
    """Count the rows with this outcome, unless every row has another one."""
    found = 0
    if rows_in > counts.get("brought", 0):
        found = int(session.fetch(dialect.render(step.query))[0][0])
    counts[step.fate] = found


def incoming_rows(load: Load, select: exp.Expr) -> IncomingRows:
    return IncomingRows(
        select,
        str(load.run_id),
        load.loaded_at,
        load.plan.range.low if load.plan.range else None,
        load.plan.matching,
        shrinking=ShrinkLimit(load.table.label, load.plan.max_shrink, load.plan.allow_empty),
    )


def load_result(load: Load, rows_in: int, counts: Mapping[str, int], high: Watermark | None) -> LoadResult:
    rows = RowCounts(
        read=rows_in,
        inserted=counts["insert"],
        updated=counts["update"],
        deleted=counts["delete"],
        outranked=counts.get("outranked", 0),
    )
    if "brought" in counts:  # by event time each row is counted by its outcome
        unchanged = rows_in - counts["brought"] - counts.get("outranked", 0)
    else:
        unchanged = count_unchanged_rows(load.plan.mode, rows)
    return LoadResult(replace(rows, unchanged=unchanged), high)


def count_unchanged_rows(mode: str, rows: RowCounts) -> int:
    """The rows that were neither inserted nor updated: they matched and changed nothing."""
    read = rows.read or 0
    written = {"merge": rows.written, "scd2": rows.inserted or 0}.get(mode, read)
    return max(read - written, 0)


def require_all_staged_rows(load: Load, rows: int, staged: int | None) -> None:
    """Fail when staging holds fewer rows than tasks wrote: a server that crashed may have emptied it."""
    if staged is not None and rows != staged:
        raise TargetFailed(
            f"staging of {load.table.label} holds {rows:,} rows, and {staged:,} were written to it",
            state=f"{load.table.label} is unchanged",
            next_step="run it again; check the server's log for a restart",
        )


def refuse_shrink(load: Load, counts: dict[str, int], results: Sequence[ExpectationResult] = ()) -> None:
    """``results`` are those of the rows' expectations."""
    if load.plan.mode == "truncate":
        check_shrink(
            load.table.label,
            counts["delete"],
            counts["insert"],
            max_shrink=load.plan.max_shrink,
            allow_empty=load.plan.allow_empty,
            set_aside={each.rule: each.quarantined for each in results},
        )
