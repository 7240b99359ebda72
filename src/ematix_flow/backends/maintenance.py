"""Maintenance of tables that consist of files: its options and its report. Values only."""

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
    """What to do. ``retain`` is how long files stay that the newest version does not need; None: the table's
    own setting, which is 7 days by default."""

    retain: dt.timedelta | None = None
    zorder: tuple[str, ...] = ()  # columns whose values cluster the rows
    dry_run: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.retain is not None and self.retain < dt.timedelta(0):
            raise UsageError("the retention time cannot be negative")
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
    """The maintenance of one table. ``before`` and ``after`` count the files of its newest version.

    A dry run changes nothing: ``after`` is None, ``small`` counts the files that would be rewritten, and
    the other numbers are what would be removed.
    """

    table: str
    before: FileTotals
    after: FileTotals | None
    removed: FileTotals  # files that no retained version needs
    small: int = 0
    events: int = 0  # event rows that no longer matter
    entries: int = 0  # journal entries that were compacted

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class MaintainableTarget(ABC):
    """A target whose tables are files that accumulate."""

    @abstractmethod
    def maintain(self, table: TableSpec, options: MaintenanceOptions) -> Sequence[MaintenanceReport]:
        """Maintain the table and its companion; empty when it does not exist. Loads may wait meanwhile."""
