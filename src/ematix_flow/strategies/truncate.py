"""Truncate: replace every row by the batch, keeping the table itself.

Delete and insert in one transaction: grants, views, indexes, foreign keys and triggers stay, and a
concurrent reader sees all old or all new rows. Too large a drop in rows stops the load.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.errors import ShrinkRefused
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import IncomingRows, StrategyDialect, StrategyStep, insert_rows

SHRINK_CHECKED_ABOVE = 1_000


def steps(dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows) -> list[StrategyStep]:
    delete = exp.Delete(this=dialect.table(table.schema, table.name))
    return [StrategyStep("delete", delete), insert_rows(dialect, table, incoming)]


def check_shrink(label: str, before: int, after: int, *, max_shrink: float, allow_empty: bool) -> None:
    """Refuse a refresh that would empty the table, or lose more rows than ``max_shrink`` allows."""
    if before and not after and not allow_empty:
        raise ShrinkRefused(
            f"the source gave no rows, and {label} holds {before:,}",
            state=f"{label} still holds its {before:,} rows",
            next_step="if an empty table is right, run it with --allow-empty or declare allow_empty=True",
        )
    if (
        before > SHRINK_CHECKED_ABOVE
        and after < before * (1 - max_shrink)
        and not (allow_empty and not after)
    ):
        raise ShrinkRefused(
            f"{label} would fall from {before:,} to {after:,} rows, beyond max_shrink={max_shrink:g}",
            state=f"{label} still holds its {before:,} rows",
            next_step="if the fall is right, run it once with --max-shrink 1 or raise max_shrink=",
        )
