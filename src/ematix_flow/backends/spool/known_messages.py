"""Known messages: recognises a message that is delivered again.

Owns the receipts of all unacknowledged messages, and the digests by which a redelivery is recognised. Used
from one thread, except for what `Spool` guards with its lock.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.messages.base import Message, message_schema

if TYPE_CHECKING:
    import pyarrow as pa

DIGEST_BYTES = 16
FORGET_AFTER = 3600.0  # seconds of receiving after which no redelivery of a settled message is expected
MAX_REMEMBERED_ROWS = 200_000  # of settled segments
EARLIER_PROCESS = -1  # the generation of messages that an earlier process received
_ROW_BYTES = 64  # the size of a message without its texts


def digest_of(message: Message) -> bytes:
    """A digest that is equal for a message and its redelivery. The lowest bit says whether it has an id."""
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in (message.value, message.key):
        state.update(b"-" if part is None else struct.pack("<q", len(part)) + part)
    for text in (message.topic, message.partition, message.position, message.headers):
        encoded = b"" if text is None else text.encode()
        state.update(b"-" if text is None else struct.pack("<q", len(encoded)) + encoded)
    state.update(b"-" if message.timestamp is None else struct.pack("<d", message.timestamp.timestamp()))
    found = bytearray(state.digest())
    found[0] = found[0] & 0xFE | (message.position is not None)
    return bytes(found)


def has_id(digest: bytes) -> bool:
    return bool(digest[0] & 1)


def message_bytes(message: Message) -> int:
    return _ROW_BYTES + len(message.value or b"") + len(message.key or b"") + len(message.headers or "")


def as_table(messages: Sequence[Message]) -> pa.Table:
    import pyarrow as pa

    schema = message_schema()
    columns = [
        pa.array([getattr(m, name) for m in messages], schema.field(name).type) for name in schema.names
    ]
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass
class SegmentReceipts:
    """The digests and receipts of a segment's messages, row by row.

    A row of ``digests`` is None once its message cannot be delivered again. ``generation`` is that of all
    rows except those in ``redelivered_in``, which maps the row of a redelivered message to its generation.
    """

    number: int
    generation: int
    digests: list[bytes | None] = field(default_factory=list)
    receipts: list[Any] = field(default_factory=list)
    redelivered_in: dict[int, int] = field(default_factory=dict)
    extra_receipts: list[Any] = field(default_factory=list)  # of messages delivered twice in one generation
    settled: bool = False
    aging_since: float = 0.0  # monotonic; a settled segment ages from then on

    def generation_of(self, row: int) -> int:
        return self.redelivered_in.get(row, self.generation)

    def packed_digests(self) -> bytes | None:
        return b"".join(d for d in self.digests if d is not None) or None


class KnownMessages:
    """All messages that may be delivered again, by digest. Equal messages without an id are counted."""

    def __init__(self) -> None:
        self.segments: dict[int, SegmentReceipts] = {}
        self._rows: dict[bytes, list[tuple[int, int]]] = {}

    def restore(self, number: int, packed: bytes, settled: bool) -> None:
        """Restore a segment of an earlier process."""
        digests = [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]
        segment = self.add_segment(number, EARLIER_PROCESS)
        segment.settled, segment.aging_since = settled, time.monotonic()
        for digest in digests:
            self.add_message(segment, digest, None)

    def add_segment(self, number: int, generation: int) -> SegmentReceipts:
        segment = self.segments[number] = SegmentReceipts(number, generation)
        return segment

    def add_message(self, segment: SegmentReceipts, digest: bytes, receipt: Any) -> None:
        self._rows.setdefault(digest, []).append((segment.number, len(segment.digests)))
        segment.digests.append(digest)
        segment.receipts.append(receipt)

    def find_earlier(self, digest: bytes, generation: int, by_id: bool) -> tuple[SegmentReceipts, int] | None:
        """The segment and row of the stored message that this one repeats, if there is one.

        The stored message is from another generation, or, where an id alone identifies it (``by_id``), from
        any.
        """
        for number, row in self._rows.get(digest, ()):
            segment = self.segments[number]
            if segment.generation_of(row) != generation or (by_id and has_id(digest)):
                return segment, row
        return None

    def record_redelivery(self, segment: SegmentReceipts, row: int, generation: int, receipt: Any) -> None:
        """Replace a void receipt by that of the later delivery, or keep both."""
        if segment.generation_of(row) == generation and segment.receipts[row] is not None:
            segment.extra_receipts.append(segment.receipts[row])
        segment.redelivered_in[row] = generation
        segment.receipts[row] = receipt

    def forget_rows(self, segment: SegmentReceipts, rows: Iterable[int]) -> None:
        """Forget rows that cannot be delivered again."""
        for row in rows:
            digest = segment.digests[row]
            if digest is None:
                continue
            segment.digests[row] = None
            places = self._rows[digest]
            places.remove((segment.number, row))
            if not places:
                del self._rows[digest]
        if segment.settled and all(digest is None for digest in segment.digests):
            self.segments.pop(segment.number, None)

    def drop_segment(self, segment: SegmentReceipts) -> None:
        """Forget a segment that was never written."""
        self.forget_rows(segment, range(len(segment.digests)))
        self.segments.pop(segment.number, None)

    def outdated_segments(self, now: float) -> list[SegmentReceipts]:
        """Settled segments that are too old, or beyond the limit, to be remembered; oldest first."""
        settled = [segment for segment in self.segments.values() if segment.settled]
        rows = sum(len(segment.digests) for segment in settled)
        found = []
        for segment in sorted(settled, key=lambda segment: segment.number):
            if now - segment.aging_since < FORGET_AFTER and rows <= MAX_REMEMBERED_ROWS:
                break
            rows -= len(segment.digests)
            found.append(segment)
        return found

    def restart_aging(self, now: float) -> None:
        """Restart the aging of settled segments: a new generation may deliver their messages again."""
        for segment in self.segments.values():
            if segment.settled:
                segment.aging_since = now
