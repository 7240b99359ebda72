"""Which receipts of a spool's messages are due: to be acknowledged, or rejected, at the source.

Owns no lock and calls no source: `Spool` guards it, and the receiver sends what `DueReceipts.take` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.spool.known_messages import KnownMessages, SegmentReceipts, has_id


@dataclass(frozen=True)
class ReceiptBatch:
    """Receipts to send to the source; ``rows`` are the rows that they acknowledge, by segment."""

    accepted: Sequence[Any]
    rejected: Sequence[Any]
    rows: Mapping[int, Sequence[int]]

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.accepted


class DueReceipts:
    """Settled messages whose receipts were not sent yet."""

    def __init__(self, known: KnownMessages) -> None:
        self._known = known
        self._settled: list[int] = []  # numbers of segments
        self._rejected: set[tuple[int, int]] = set()  # segment and row
        self._late: list[tuple[SegmentReceipts, int]] = []  # redelivered after their segment was settled

    def settle(self, number: int, now: float) -> None:
        """Acknowledge the messages of a segment that all targets hold."""
        segment = self._known.segments.get(number)
        if segment is not None:
            segment.settled, segment.aging_since = True, now
            self._settled.append(number)

    def reject(self, messages: Iterable[tuple[int, int]]) -> None:
        """Reject these messages instead, when their segments are settled."""
        self._rejected.update(messages)

    def add_redelivery(self, segment: SegmentReceipts, row: int) -> None:
        """Acknowledge a message again that was delivered again after its segment was settled."""
        self._late.append((segment, row))

    def forget_old_rejections(self) -> None:
        self._rejected = {each for each in self._rejected if each[0] in self._known.segments}

    def take(self, generation: int) -> ReceiptBatch:
        """The receipts that are due, without those of another generation, which are void."""
        settled, self._settled = self._settled, []
        due, self._late = self._late, []
        rows: dict[int, list[int]] = {}
        accepted: list[Any] = []
        rejected: list[Any] = []
        for number in settled:
            segment = self._known.segments.get(number)
            if segment is None:
                continue
            if not segment.digests:  # the source needs no acknowledgement
                del self._known.segments[number]
            due += [(segment, row) for row in range(len(segment.receipts))]
            accepted += segment.extra_receipts
            segment.extra_receipts = []
        for segment, row in due:
            accepted += segment.extra_receipts  # it was delivered more than once since then
            segment.extra_receipts = []
            receipt, segment.receipts[row] = segment.receipts[row], None
            if receipt is not None and segment.generation_of(row) == generation:
                is_rejected = (segment.number, row) in self._rejected
                (rejected if is_rejected else accepted).append(receipt)
                rows.setdefault(segment.number, []).append(row)
        return ReceiptBatch(accepted, rejected, rows)

    def forget(self, rows: Mapping[int, Sequence[int]]) -> dict[int, bytes | None]:
        """Forget rows that the source knows are done, and return the digests that are left, by segment.

        Messages with an id stay known for a while.
        """
        digests: dict[int, bytes | None] = {}
        for number, done in rows.items():
            segment = self._known.segments[number]
            self._known.forget_rows(segment, [r for r in done if not has_id(segment.digests[r] or b"\0")])
            digests[number] = segment.packed_digests()
        return digests
