"""The context of a computed value: the engine, the column, and a way to compute it in its own level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ematix_flow.strategies.functions.base import SqlFunctions, TypedValue


@dataclass(frozen=True)
class ColumnSite:
    """What markers and casts receive.

    ``own_level`` computes a value in a separate inner SELECT and returns the plain column that holds it. Code
    that uses a value twice calls it first, so that a chain of markers does not double in size with every
    step.
    """

    functions: SqlFunctions
    column: str
    own_level: Callable[[TypedValue], TypedValue]
