"""The limit on how far a load may shrink its table: by a refresh, or by the deletes of a full snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from ematix_flow.errors import FlowError, ShrinkRefused
from ematix_flow.strategies.load_guard import LoadGuard

SHRINK_CHECKED_ABOVE = 1_000


@dataclass(frozen=True)
class ShrinkLimit:
    """How many rows a load may remove before it is stopped."""

    label: str
    max_shrink: float
    allow_empty: bool


def check_shrink(
    label: str,
    before: int,
    after: int,
    *,
    max_shrink: float,
    allow_empty: bool,
    set_aside: Mapping[str, int] | None = None,
) -> None:
    """Refuse a refresh that would empty the table, or lose more rows than ``max_shrink`` allows.

    ``set_aside`` is how many rows each expectation set aside.
    """
    failing = {rule: rows for rule, rows in (set_aside or {}).items() if rows}
    if before and not after and not allow_empty:
        if failing:
            rows = sum(failing.values())
            raise ShrinkRefused(
                f"{'the only row fails' if rows == 1 else f'all {rows:,} rows fail'} "
                f"{', '.join(map(repr, failing))}, and {label} holds {before:,}",
                state=f"nothing was loaded; {label} still holds its {before:,} rows",
                next_step="correct the expectation, or the rows at the source",
            )
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


def deletion_guard(
    kept_count: exp.Select, missing_count: exp.Select, new_count: exp.Select, shrinking: ShrinkLimit
) -> LoadGuard:
    """Stop if a full snapshot leaves too few rows. The queries count kept, missing and new rows."""

    def judge(rows: list[tuple[Any, ...]], _: Mapping[str, int]) -> FlowError | None:
        left, lost, new = (int(count) for count in rows[0])
        if not lost:
            return None
        try:
            check_shrink(
                shrinking.label,
                left + lost,
                left + new,
                max_shrink=shrinking.max_shrink,
                allow_empty=shrinking.allow_empty,
            )
        except ShrinkRefused as refused:
            return refused
        return None

    counts = [exp.Subquery(this=query) for query in (kept_count, missing_count, new_count)]
    return LoadGuard(exp.select(*counts), judge)
