"""The segment in the making: messages that are gathered, and the order in which they become durable."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

from ematix_flow import faults
from ematix_flow.backends.spool_index import Segment, SpoolIndex, sync_folder
from ematix_flow.backends.spool_intake import Held, as_table, weight_of
from ematix_flow.backends.spool_limits import PROGRESS
from ematix_flow.backends.streams import Message
from ematix_flow.state.private_files import open_private

_FIRST_GUESS = 16 * 1024  # bytes a message, until some came


class SegmentInMaking:
    """Used by the receiving thread alone. ``held`` is what is remembered of its messages."""

    def __init__(self, max_rows: int, max_bytes: int, linger: float) -> None:
        self.messages: list[Message] = []
        self.held: Held | None = None
        self._max_rows, self._max_bytes, self._linger = max_rows, max_bytes, linger
        self._progress: dict[str, str] = {}
        self._weight = 0
        self._began = 0.0
        self._average = _FIRST_GUESS

    def room(self, at_most: int) -> int:
        """How many messages to ask for, at least one: by rows, and by bytes as far as that can be guessed."""
        by_weight = (self._max_bytes - self._weight) // self._average
        return max(1, min(self._max_rows - len(self.messages), by_weight, at_most))

    def patience(self) -> float:
        """How many seconds it may still wait for more."""
        return max(0.0, self._began + self._linger - time.monotonic())

    def is_due(self) -> bool:
        full = len(self.messages) >= self._max_rows or self._weight >= self._max_bytes
        return full or (bool(self.messages) and self.patience() <= 0)

    def add(self, message: Message) -> None:
        if not self.messages:
            self._began = time.monotonic()
        self.messages.append(message)
        weight = weight_of(message)
        self._weight += weight
        self._average = max(1, (self._average * 15 + weight) // 16)

    def reached(self, progress: Mapping[str, str]) -> None:
        """The positions after the messages that were added."""
        self._progress.update(progress)

    @property
    def has_progress_alone(self) -> bool:
        return bool(self._progress) and not self.messages

    def write(self, index: SpoolIndex, lock: AbstractContextManager[object]) -> Segment | None:
        """Make everything durable that came so far, and begin anew. None when there was no message."""
        if not self.messages:
            if self._progress:
                with lock:
                    index.store(self._progress)
                self._progress = {}
            return None
        assert self.held is not None
        with lock:
            positions = index.few_positions(self._progress)
        size = self._write_aside(index, self.held.number, positions)
        faults.point("spool.written")
        segment = Segment(self.held.number, len(self.messages), size, digests=self.held.packed())
        with lock:
            index.add(segment, self._progress)
            faults.point("spool.indexed")
            index.publish(segment)
            faults.point("spool.renamed")
        self.messages, self.held, self._progress, self._weight = [], None, {}, 0
        return segment

    def _write_aside(self, index: SpoolIndex, number: int, positions: Mapping[str, str] | None) -> int:
        import pyarrow.parquet as pq

        path = index.temporary(number)
        table = as_table(self.messages)
        if positions:
            table = table.replace_schema_metadata({PROGRESS: json.dumps(positions)})
        with index.explained("written"):
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
            sync_folder(index.segments)
            return path.stat().st_size
