"""`row_hash` as rendered SQL: a load uses it several times, and syntax trees of it are slow to copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sqlglot import exp

from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import Columns


def render_row_hash(columns: Columns, dialect: str, build: Callable[[Columns], exp.Expr]) -> exp.Expr:
    """The tree that ``build`` makes of the columns, rendered once for the same columns."""
    shown = tuple((name, kind, value.sql(dialect=dialect, identify=True)) for name, kind, value in columns)
    return exp.Var(this=_rendered(shown, dialect, build))


@lru_cache(maxsize=256)
def _rendered(
    columns: tuple[tuple[str, DataType, str], ...], dialect: str, build: Callable[[Columns], exp.Expr]
) -> str:
    tree = build([(name, kind, exp.Var(this=value)) for name, kind, value in columns])
    return tree.sql(dialect=dialect, identify=True)
