"""A decision of the planner or of the engine, as previews and ``flow doctor`` show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """What was decided, and why."""

    name: str
    value: str
    reason: str
