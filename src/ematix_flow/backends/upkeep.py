"""Keeping tables of files in shape: what is asked for, and what was done. Values only."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.spec.tables import TableSpec

SAFE = dt.timedelta(days=7)


@dataclass(frozen=True)
class Upkeep:
    """What to do. ``retain`` is how long files stay that the newest version does not need; None: as long as
    the table says, which is 7 days unless it says otherwise."""

    retain: dt.timedelta | None = None
    zorder: tuple[str, ...] = ()  # columns by whose values rows are brought together
    dry_run: bool = False
    forced: bool = False

    def __post_init__(self) -> None:
        if self.retain is not None and self.retain < dt.timedelta(0):
            raise UsageError("files cannot be kept for less than no time")
        if self.retain is not None and self.is_short and not self.forced:
            raise UsageError(
                f"to keep files for {in_words(self.retain)} only, and not for 7 days, takes them from under "
                "readers and writers that are still at work with an older version",
                state="nothing was touched",
                next_step="give --force (force=True) when you know that there are none",
            )

    @property
    def is_short(self) -> bool:
        return self.retain is not None and self.retain < SAFE


def in_words(duration: dt.timedelta) -> str:
    hours = duration.total_seconds() / 3600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"


@dataclass(frozen=True)
class Size:
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.bytes + other.bytes)

    def __sub__(self, other: Size) -> Size:
        return Size(self.files - other.files, self.bytes - other.bytes)


@dataclass(frozen=True)
class Maintained:
    """One table. ``before`` and ``after`` are the files that its newest version consists of.

    In a dry run nothing was done: ``after`` is None, ``small`` are the files that would be written anew,
    and the other numbers are what would go.
    """

    table: str
    before: Size
    after: Size | None
    removed: Size  # files that no version needs which is kept
    small: int = 0
    events: int = 0  # rows beside a history that count no more
    entries: int = 0  # of the journal, folded

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Maintainable(ABC):
    """A target whose tables are files that pile up."""

    @abstractmethod
    def maintain(self, table: TableSpec, upkeep: Upkeep) -> Sequence[Maintained]:
        """The table and what lies beside it; empty when there is none yet. Loads go on meanwhile, or wait."""
