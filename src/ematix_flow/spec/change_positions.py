"""The form of a position in a source's log: numbers of a fixed width, joined by dots, which sort as text.

Postgres sends transactions in the order of their commits, but a change has a place in the log from before
its commit. So its position is the last commit before the transaction, and then its place. The first
transaction after a snapshot does not tell that commit. It may have been open during the snapshot, and then
its changes are newer than the rows of the snapshot, although their places are earlier.
"""

from __future__ import annotations

WIDTH = 20
ZERO = "0" * WIDTH
_SNAPSHOT, _OPEN = ZERO, "9" * WIDTH  # instead of the place of a change
SNAPSHOT_PATTERN = f"{'_' * WIDTH}.{_SNAPSHOT}.%"  # of LIKE


def snapshot_position(place: str) -> str:
    """The position of rows of a snapshot that was taken at this place."""
    return f"{place}.{_SNAPSHOT}"


def open_position(place: str) -> str:
    """The position of a change whose transaction may have been open during a snapshot."""
    return f"{place}.{_OPEN}"


def is_snapshot_row(position: str) -> bool:
    return position[WIDTH + 1 : 2 * WIDTH + 1] == _SNAPSHOT


def is_open_change(position: str) -> bool:
    return position[WIDTH + 1 : 2 * WIDTH + 1] == _OPEN


def arrival(position: str) -> str:
    """Where the message was at the broker."""
    return position.rpartition(".")[2]


def just_before(change: str, row: str = "") -> str:
    """Where a row of a snapshot belongs that comes before this change."""
    return f"{snapshot_position(change[:WIDTH])}.{arrival(row) or ZERO}"
