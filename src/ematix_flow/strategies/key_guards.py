"""Guards of merge and scd2 on the keys of a batch: none is null, and each has one row."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from ematix_flow.errors import RowRejected
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.sql import (
    IncomingRows,
    StrategyDialect,
    column,
    subquery,
)

_MAX_SHOWN = 5


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
