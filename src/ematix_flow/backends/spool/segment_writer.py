"""Gathers messages into a segment, and writes it in an order that a crash cannot break."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from ematix_flow import fault_points
from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.backends.messages.base import Message
from ematix_flow.backends.spool.batch_limits import PROGRESS_KEY
from ematix_flow.backends.spool.index import SpoolIndex, SpoolSegment
from ematix_flow.backends.spool.known_messages import SegmentReceipts, as_table, message_bytes
from ematix_flow.state.private_files import open_private

_ASSUMED_MESSAGE_BYTES = 16 * 1024  # bytes per message, until some have arrived


class SegmentWriter:
    """One segment at a time. Used by the receiving thread only; ``receipts`` are those of its messages."""

    def __init__(self, max_rows: int, max_bytes: int, linger: float) -> None:
        self.messages: list[Message] = []
        self.receipts: SegmentReceipts | None = None
        self._max_rows, self._max_bytes, self._linger = max_rows, max_bytes, linger
        self._progress: dict[str, str] = {}
        self._bytes = 0
        self._first_message_at = 0.0
        self._average_bytes = _ASSUMED_MESSAGE_BYTES

    def messages_to_request(self, at_most: int) -> int:
        """How many messages to ask for, at least one: limited by rows, and by bytes as estimated."""
        by_weight = (self._max_bytes - self._bytes) // self._average_bytes
        return max(1, min(self._max_rows - len(self.messages), by_weight, at_most))

    def seconds_left(self) -> float:
        """How many seconds the segment may still wait for more messages."""
        return max(0.0, self._first_message_at + self._linger - time.monotonic())

    def is_due(self) -> bool:
        full = len(self.messages) >= self._max_rows or self._bytes >= self._max_bytes
        return full or (bool(self.messages) and self.seconds_left() <= 0)

    def add(self, message: Message) -> None:
        if not self.messages:
            self._first_message_at = time.monotonic()
        self.messages.append(message)
        weight = message_bytes(message)
        self._bytes += weight
        self._average_bytes = max(1, (self._average_bytes * 15 + weight) // 16)

    def record_progress(self, progress: Mapping[str, str]) -> None:
        """Store the positions after the messages that were added."""
        self._progress.update(progress)

    @property
    def has_only_progress(self) -> bool:
        return bool(self._progress) and not self.messages

    def write(self, index: SpoolIndex, lock: AbstractContextManager[object]) -> SpoolSegment | None:
        """Write what was gathered durably, and start an empty segment. None when there was no message."""
        if not self.messages:
            if self._progress:
                with lock:
                    index.store_positions(self._progress)
                self._progress = {}
            return None
        assert self.receipts is not None
        with lock:
            positions = index.positions_to_publish(self._progress)
        size = self._write_temporary(index, self.receipts.number, positions)
        fault_points.point("spool.written")
        segment = SpoolSegment(
            self.receipts.number, len(self.messages), size, digests=self.receipts.packed_digests()
        )
        with lock:
            index.add(segment, self._progress)
            fault_points.point("spool.indexed")
            index.publish(segment)
            fault_points.point("spool.renamed")
        self.messages, self.receipts, self._progress, self._bytes = [], None, {}, 0
        return segment

    def _write_temporary(self, index: SpoolIndex, number: int, positions: Mapping[str, str] | None) -> int:
        import pyarrow.parquet as pq

        path = index.temporary_path(number)
        table = as_table(self.messages)
        if positions:
            table = table.replace_schema_metadata({PROGRESS_KEY: json.dumps(positions)})
        with index.wrap_errors("written"):
            with open_private(path, "wb") as file:
                pq.write_table(
                    table,
                    file,
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=["topic", "partition"],
                    write_statistics=False,
                )
                file.flush()
                os.fsync(file.fileno())
            flush_to_disk(index.segments)
            return path.stat().st_size
