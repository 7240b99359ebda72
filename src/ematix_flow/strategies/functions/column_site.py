"""The context of a computed value: the engine, the column, and a way to compute it in its own level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ematix_flow.strategies.functions.base import SqlFunctions, TypedValue


@dataclass(frozen=True)
class ColumnSite:
    """Handed to markers and casts.

    ``own_level`` makes a plain column of a value, by computing it in a SELECT of its own inside the next
    one. Code that uses a value twice calls it first, so that a chain of markers does not double in size
    with every step.
    """

    functions: SqlFunctions
    column: str
    own_level: Callable[[TypedValue], TypedValue]
