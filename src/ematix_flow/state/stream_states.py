"""What a state store keeps of a stream: an entry for each of its queries, and the rows of its state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StatePart:
    """Rows of one table of the state. ``kind`` says whether a version made or ended them."""

    version: int
    table: str
    kind: str
    number: int
    data: bytes


@dataclass(frozen=True)
class StateEntry:
    """What is stored of one query of a stream, without the rows of its state."""

    owner: str
    version: int | None = None  # None: nothing is stored yet
    facts: str | None = None
    checkpoint: str | None = None
    columns: str | None = None
    status: str | None = None
