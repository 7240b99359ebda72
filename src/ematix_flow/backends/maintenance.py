"""Keeping tables of files in shape: what is asked for, and what was done. Values only."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ematix_flow.errors import UsageError
from ematix_flow.spec.tables import TableSpec

SAFE_RETENTION = dt.timedelta(days=7)


@dataclass(frozen=True)
class MaintenanceOptions:
    """What to do. ``retain`` is how long files stay that the newest version does not need; None: as long as
    the table says, which is 7 days unless it says otherwise."""

    retain: dt.timedelta | None = None
    zorder: tuple[str, ...] = ()  # columns by whose values rows are brought together
    dry_run: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.retain is not None and self.retain < dt.timedelta(0):
            raise UsageError("files cannot be kept for less than no time")
        if self.retain is not None and self.is_below_safe_retention and not self.force:
            raise UsageError(
                f"to keep files for {duration_text(self.retain)} only, and not for 7 "
                "days, takes them from under "
                "readers and writers that are still at work with an older version",
                state="nothing was touched",
                next_step="give --force (force=True) when you know that there are none",
            )

    @property
    def is_below_safe_retention(self) -> bool:
        return self.retain is not None and self.retain < SAFE_RETENTION


def duration_text(duration: dt.timedelta) -> str:
    hours = duration.total_seconds() / 3600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"


@dataclass(frozen=True)
class FileTotals:
    files: int = 0
    bytes: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(self.files + other.files, self.bytes + other.bytes)

    def __sub__(self, other: FileTotals) -> FileTotals:
        return FileTotals(self.files - other.files, self.bytes - other.bytes)


@dataclass(frozen=True)
class MaintenanceReport:
    """One table. ``before`` and ``after`` are the files that its newest version consists of.

    In a dry run nothing was done: ``after`` is None, ``small`` are the files that would be written anew,
    and the other numbers are what would go.
    """

    table: str
    before: FileTotals
    after: FileTotals | None
    removed: FileTotals  # files that no version needs which is kept
    small: int = 0
    events: int = 0  # rows beside a history that count no more
    entries: int = 0  # of the journal, folded

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class MaintainableTarget(ABC):
    """A target whose tables are files that pile up."""

    @abstractmethod
    def maintain(self, table: TableSpec, upkeep: MaintenanceOptions) -> Sequence[MaintenanceReport]:
        """The table and what lies beside it; empty when there is none yet. Loads go on meanwhile, or wait."""
