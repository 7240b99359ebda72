"""How many rows a load read and what became of them: one value for loads, results, ledgers and run logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class RowCounts:
    """The rows of a load, a run or a batch. A count is None if it is unknown.

    A load knows all of its counts. A ledger and a run log may know only some of them.
    """

    read: int | None = 0
    inserted: int | None = 0
    updated: int | None = 0
    deleted: int | None = 0
    unchanged: int | None = 0
    outranked: int | None = 0  # scd2 by event time: another row with the same event time wins

    def __add__(self, other: RowCounts) -> RowCounts:
        """The counts of both. A count that one of them does not know is unknown."""
        return RowCounts(
            _add(self.read, other.read),
            _add(self.inserted, other.inserted),
            _add(self.updated, other.updated),
            _add(self.deleted, other.deleted),
            _add(self.unchanged, other.unchanged),
            _add(self.outranked, other.outranked),
        )

    @property
    def written(self) -> int:
        """The rows that were inserted or updated."""
        return (self.inserted or 0) + (self.updated or 0)

    def to_json(self) -> dict[str, int | None]:
        return {
            "rows_read": self.read,
            "rows_inserted": self.inserted,
            "rows_updated": self.updated,
            "rows_deleted": self.deleted,
            "rows_unchanged": self.unchanged,
            "rows_outranked": self.outranked,
        }


NO_ROWS = RowCounts()
UNKNOWN_ROWS = RowCounts(None, None, None, None, None, None)


def _add(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class RowCountProperties(ABC):
    """The counts of ``rows`` as users read them from a result, which knows all of them."""

    @property
    @abstractmethod
    def rows(self) -> RowCounts: ...

    @property
    def rows_read(self) -> int:
        return self.rows.read or 0

    @property
    def rows_inserted(self) -> int:
        return self.rows.inserted or 0

    @property
    def rows_updated(self) -> int:
        return self.rows.updated or 0

    @property
    def rows_deleted(self) -> int:
        return self.rows.deleted or 0

    @property
    def rows_unchanged(self) -> int:
        return self.rows.unchanged or 0

    @property
    def rows_outranked(self) -> int:
        return self.rows.outranked or 0
