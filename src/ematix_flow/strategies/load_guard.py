"""A check that a strategy makes inside of a load's transaction, and that may stop the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from ematix_flow.errors import FlowError


@dataclass(frozen=True)
class LoadGuard:
    """A query whose result may stop the load. ``judge`` gets the rows and the counts so far."""

    query: exp.Expr
    judge: Callable[[list[tuple[Any, ...]], Mapping[str, int]], FlowError | None]
