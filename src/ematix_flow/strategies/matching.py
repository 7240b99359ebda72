"""How the rows of a load are matched with stored rows: the resolved options of merge and scd2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ChangeOptions:
    """How change events of a source are applied (``cdc=``)."""

    soft_delete_column: str | None = None  # None: a deleted row is deleted
    truncates: bool = True  # whether the batch may have a truncate of the source


@dataclass(frozen=True)
class Matching:
    """How incoming rows are matched with stored ones, and what happens to those that differ.

    The planner resolves every default: columns that decide whether a row changed, columns that are
    then written, the column that orders rows of one key.
    """

    keys: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()
    update: tuple[str, ...] = ()
    order: str | None = None  # the watermark or event column: the last row of a key wins by it
    event: str | None = None
    deletes: Literal["hard", "soft"] | None = None
    ttl_seconds: float | None = None
    changes: ChangeOptions | None = None
