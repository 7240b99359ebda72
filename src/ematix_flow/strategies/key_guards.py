"""Guards of merge and scd2: one row for each key, no null keys, and a limit on deletions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from ematix_flow.errors import FlowError, RowRejected, ShrinkRefused
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import (
    IncomingRows,
    LoadGuard,
    ShrinkLimit,
    StrategyDialect,
    column,
    null_safe_equal,
    subquery,
)
from ematix_flow.strategies.truncate import check_shrink

_MAX_SHOWN = 5
_PLACE, _COUNT = internal_name("place"), internal_name("count")


def key_guards(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, *, one_row_a_key: bool
) -> list[LoadGuard]:
    """Refuse null keys, and several rows with one key if no column orders them."""
    keys = incoming.matching.keys
    rows = subquery(incoming.select, "s")
    missing = exp.or_(*[exp.Is(this=column(k, "s"), expression=exp.Null()) for k in keys])
    shown = exp.select(*[column(k, "s") for k in keys]).from_(rows.copy()).where(missing).limit(_MAX_SHOWN)
    out = [LoadGuard(shown, lambda found, _: _null_keys_error(table, keys, found) if found else None)]
    if one_row_a_key:
        grouped = [dialect.comparable(column(k, "s"), table.column(k).type) for k in keys]
        count = exp.Count(this=exp.Star())
        shown_keys = [
            exp.alias_(g.copy(), internal_name(f"key{i}"), quoted=True) for i, g in enumerate(grouped)
        ]
        repeated = (
            exp.select(*shown_keys, count)
            .from_(rows)
            .group_by(*grouped)
            .having(exp.GT(this=count.copy(), expression=exp.Literal.number(1)))
            .limit(_MAX_SHOWN)
        )
        out.append(
            LoadGuard(repeated, lambda found, _: _repeated_keys_error(table, keys, found) if found else None)
        )
    return out


def last_of_each_key(
    dialect: StrategyDialect, table: TableSpec, incoming: IncomingRows, order: str
) -> exp.Select:
    """The row with the highest ``order`` of each key. The row hash decides between equal ones."""
    names = table.column_names
    keys = incoming.matching.keys
    by_key = [dialect.comparable(column(k, "r"), table.column(k).type) for k in keys]
    count = exp.Window(this=exp.Count(this=exp.Star()), partition_by=[k.copy() for k in by_key])
    counted = exp.select(*[column(n, "r") for n in names], exp.alias_(count, _COUNT, quoted=True)).from_(
        subquery(incoming.select, "r")
    )
    # hash only keys that occur more than once
    content = dialect.row_hash([(n, table.column(n).type, column(n, "r")) for n in names if n not in keys])
    several = exp.GT(this=column(_COUNT, "r"), expression=exp.Literal.number(1))
    ordering = [
        exp.Ordered(this=dialect.comparable(column(order, "r"), table.column(order).type), desc=True),
        exp.Ordered(this=exp.Case(ifs=[exp.If(this=several, true=content)]), desc=True),
    ]
    place = exp.Window(this=exp.RowNumber(), partition_by=by_key, order=exp.Order(expressions=ordering))
    numbered = exp.select(*[column(n, "r") for n in names], exp.alias_(place, _PLACE, quoted=True)).from_(
        subquery(counted, "r")
    )
    first = exp.EQ(this=column(_PLACE, "n"), expression=exp.Literal.number(1))
    return exp.select(*[column(n, "n") for n in names]).from_(subquery(numbered, "n")).where(first)


def rows_differ(
    dialect: StrategyDialect, table: TableSpec, names: tuple[str, ...], left: str, right: str
) -> exp.Expr:
    """Whether at least one column differs between the two sides; null equals null."""
    equal = [null_safe_equal(dialect, column(n, left), column(n, right), table.column(n).type) for n in names]
    return exp.not_(exp.paren(exp.and_(*equal))) if equal else exp.false()


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


def _null_keys_error(table: TableSpec, keys: tuple[str, ...], rows: list[tuple[Any, ...]]) -> RowRejected:
    return RowRejected(
        f"rows for {table.label} have a null in their key: {_list_keys(keys, rows)}",
        where=table.where,
        state=f"{table.label} is unchanged",
        next_step="filter these rows out in the source SQL, or choose a key that is never null",
    )


def _repeated_keys_error(table: TableSpec, keys: tuple[str, ...], rows: list[tuple[Any, ...]]) -> RowRejected:
    return RowRejected(
        f"several rows of one batch for {table.label} have the same key: {_list_keys(keys, rows)}",
        where=table.where,
        state=f"{table.label} is unchanged",
        next_step=(
            f"keep one of each with transforms_pre=[deduplicate_by({', '.join(map(repr, keys))}, "
            "order_by=…)], or name the column that orders them with incremental=True, watermark_column="
        ),
    )


def _list_keys(keys: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    shown = ["(" + ", ".join(f"{k}={v!r}" for k, v in zip(keys, row, strict=False)) + ")" for row in rows]
    return ", ".join(shown) + (" …" if len(rows) == _MAX_SHOWN else "")
