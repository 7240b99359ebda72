"""The acknowledgement deadlines of received messages. Only keeps times; makes no requests."""

from __future__ import annotations

from collections.abc import Iterable


class AckDeadlines:
    """When to extend the deadline of each receipt: after half of its time."""

    def __init__(self) -> None:
        self._renew_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._renew_at)

    def start(self, receipts: Iterable[str], now: float, seconds: float) -> None:
        """Start deadlines of so many seconds."""
        for receipt in receipts:
            self._renew_at[receipt] = now + seconds / 2

    def due(self, now: float) -> list[str]:
        return [receipt for receipt, moment in self._renew_at.items() if moment <= now]

    def remove(self, receipts: Iterable[str]) -> None:
        for receipt in receipts:
            self._renew_at.pop(receipt, None)

    def receipts(self) -> list[str]:
        return list(self._renew_at)
