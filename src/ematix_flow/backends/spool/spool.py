"""Received messages that are not yet in every target, kept in files that Spark follows.

A batch that Spark replays must have the same messages, but a broker forgets a message once it is
acknowledged. So the spool writes messages into segments, Parquet files that never change, and acknowledges
them when every target holds their segment. The spool's folder has ``segments/`` and ``index.db``. The index
knows the segments and, for sources that are read by position, how far they were read.

Guarantees, while the folder exists and one process at a time uses it:

* Nothing is lost. A message is acknowledged, and a position is stored, only when the message is durably on
  disk; the process, the machine or the broker may die at any point.
* A message is in one segment. A message that is delivered again after its connection ended is recognised by
  a digest of all its parts. Its new receipt is acknowledged together with the stored copy, or at once when
  that copy is settled.

A message can be in two segments when

* the folder is lost, or two spools follow its source;
* it has no id, was acknowledged, and the broker died before the acknowledgement was durable (a message with
  an id is remembered for an hour of receiving, and for the newest 200,000 messages);
* the source neither marks redeliveries nor gives ids, and delivers it twice in one connection.

A message can be missed in one case: it has no id, equals another message in every byte, is marked as a
redelivery, and arrives while it is unknown whether the acknowledgement of the other message arrived (the
process died within that call, or the machine right after it). Senders of messages that may be equal should
give them ids.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ematix_flow import fault_points
from ematix_flow.backends.messages.base import LagUnit, Message, Receiver
from ematix_flow.backends.spool.due_receipts import DueReceipts
from ematix_flow.backends.spool.index import SpoolIndex, SpoolSegment, segment_number
from ematix_flow.backends.spool.known_messages import KnownMessages, digest_of
from ematix_flow.backends.spool.segment_writer import SegmentWriter
from ematix_flow.backends.spool.source_lag import SourceLag
from ematix_flow.errors import FlowError, SourceFailed

MAX_ROWS = 50_000
MAX_BYTES = 16 * 1024 * 1024
MAX_PENDING_ROWS = 200_000
MAX_PENDING_BYTES = 256 * 1024 * 1024
_MAX_POLL = 5_000

_log = logging.getLogger(__name__)


class Spool:
    """One stream's spool. `follow` fills it from one thread; all other methods may be called from any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = SpoolIndex(folder)
        self._lock = threading.RLock()  # guards the index and all message state
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._receiver: Receiver | None = None
        self._failure: BaseException | None = None
        self._known_messages = KnownMessages()
        self._pending: dict[int, SpoolSegment] = {}
        self._due_receipts = DueReceipts(self._known_messages)
        self._segment_writer = SegmentWriter(MAX_ROWS, MAX_BYTES, 0.0)
        self._generation = 0
        self._source_is_drained: bool | None = False
        self._last_message_at = 0.0
        self._drained_checked_at = self._kept_alive_at = 0.0
        self._lag = SourceLag()

    @property
    def segments(self) -> Path:
        """The folder that Spark follows, as Parquet of `message_schema`."""
        return self._index.segments

    @property
    def id(self) -> str:
        """The spool's own name. A position in one spool means nothing in another."""
        return self._index.id

    @property
    def newest_file(self) -> Path:
        """A JSON file with the number of the last segment, for readers that follow segments by number."""
        return self._index.newest_file

    def segment_paths(self, numbers: range) -> list[Path]:
        """The files of the unsettled segments among these numbers."""
        with self._lock:
            return [self.segments / self._pending[n].name for n in sorted(self._pending) if n in numbers]

    def open(self) -> Spool:
        """Open the spool and repair what a crash left. PipelineLocked when another process has it open."""
        for segment in self._index.open():
            if not segment.settled:
                self._pending[segment.number] = segment
            if segment.digests:
                self._known_messages.restore(segment.number, segment.digests, segment.settled)
        return self

    def progress(self) -> dict[str, str]:
        """All stored positions, by name."""
        with self._lock:
            return self._index.progress()

    def restore_progress(self, progress: Mapping[str, str]) -> None:
        """Store the positions of an earlier spool, which this one continues."""
        with self._lock:
            self._index.store_positions(progress)

    # -------------------------------------------------------------- receiving

    def follow(
        self,
        receiver: Receiver,
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        linger: float = 0.1,
        max_pending_rows: int = MAX_PENDING_ROWS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        thread: bool = True,
    ) -> None:
        """Take over a receiver, and fill segments from it until `close`.

        A segment is closed when it has ``max_rows`` rows or ``max_bytes`` bytes, or when its first message
        is ``linger`` seconds old. While the unsettled segments exceed the pending limits, nothing is
        received. Without ``thread`` the caller drives the spool by calling `run_once`.
        """
        if self._receiver is not None:
            raise RuntimeError("this spool already follows a receiver")
        self._receiver, self._lag.unit = receiver, receiver.lag_unit
        self._segment_writer = SegmentWriter(max_rows, max_bytes, linger)
        self._max_pending_rows, self._max_pending_bytes = max_pending_rows, max_pending_bytes
        self._generation = receiver.generation
        self._last_message_at = time.monotonic()
        if thread:
            self._thread = threading.Thread(
                target=self._receive_until_stopped, name=f"spool {self.folder.name}", daemon=True
            )
            self._thread.start()

    def run_once(self, timeout: float | None = None) -> None:
        """Run one round: acknowledge settled segments, receive messages, write a segment that is due."""
        receiver = self._receiver
        assert receiver is not None
        self._acknowledge(receiver)
        self._do_housekeeping(receiver)
        if self._is_full():
            self._write_segment()
            self._source_is_drained, self._last_message_at = False, time.monotonic()
            self._wake.wait(0.2 if timeout is None else timeout)
            self._wake.clear()
            return
        if timeout is None:
            timeout = 0.05 if self._pending else 0.25
        if self._segment_writer.messages:
            timeout = min(timeout, self._segment_writer.seconds_left())
        messages = receiver.poll(self._segment_writer.messages_to_request(_MAX_POLL), timeout)
        if receiver.generation != self._generation:
            self._write_segment()  # the rest of the old connection, without the new positions
            self._generation = receiver.generation
            self._known_messages.restart_aging(time.monotonic())
        self._segment_writer.record_progress(receiver.progress())
        self._take_messages(receiver, messages)
        if self._segment_writer.is_due():
            self._write_segment()
        self._update_drained(receiver, bool(messages))

    def _receive_until_stopped(self) -> None:
        receiver = self._receiver
        assert receiver is not None
        try:
            while not self._stop.is_set():
                self.run_once()
            self._acknowledge(receiver)
        except FlowError as error:
            self._failure = error
        except Exception as error:
            failure = SourceFailed(
                f"receiving into the spool {self.folder} failed: {type(error).__name__}: {error}",
                state="messages that are not in every target are in it, or still at their source",
            )
            failure.__cause__ = error
            self._failure = failure
        except BaseException as death:  # like a killed process: clean nothing up
            self._failure = death
            return
        self._close_receiver(receiver)

    def _close_receiver(self, receiver: Receiver) -> None:
        try:
            receiver.close()
        except Exception as error:  # unacknowledged messages are delivered again anyway
            _log.warning("cannot close the source of the spool %s: %s", self.folder, error)

    def _take_messages(self, receiver: Receiver, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._last_message_at, self._source_is_drained = time.monotonic(), False
        self._lag.count_received(len(messages))
        making = self._segment_writer
        with self._lock:
            for message in messages:
                digest = digest_of(message) if receiver.acknowledges else b""
                if digest and self._is_redelivery(receiver, message, digest):
                    continue
                if making.receipts is None:
                    making.receipts = self._known_messages.add_segment(
                        self._index.next_number(), self._generation
                    )
                if digest:
                    self._known_messages.add_message(making.receipts, digest, message.receipt)
                making.add(message)

    def _is_redelivery(self, receiver: Receiver, message: Message, digest: bytes) -> bool:
        if receiver.flags_redelivery and not message.redelivered:
            return False
        earlier = self._known_messages.find_earlier(
            digest, self._generation, by_id=not receiver.flags_redelivery
        )
        if earlier is None:
            return False
        segment, row = earlier
        self._known_messages.record_redelivery(segment, row, self._generation, message.receipt)
        if segment.settled:
            self._due_receipts.add_redelivery(segment, row)
        return True

    def _write_segment(self) -> None:
        segment = self._segment_writer.write(self._index, self._lock)
        if segment is not None:
            with self._lock:
                self._pending[segment.number] = segment

    def _is_full(self) -> bool:
        with self._lock:
            rows = sum(segment.rows for segment in self._pending.values())
            size = sum(segment.size for segment in self._pending.values())
        return rows >= self._max_pending_rows or size >= self._max_pending_bytes

    def _do_housekeeping(self, receiver: Receiver) -> None:
        now = time.monotonic()
        if now - self._kept_alive_at < 1:
            return
        self._kept_alive_at = now
        if self._pending or self._segment_writer.messages:
            receiver.keep_alive()
        self._lag.refresh(receiver, now)
        with self._lock:
            outdated = self._known_messages.outdated_segments(now)
            for segment in outdated:
                self._known_messages.drop_segment(segment)
            if outdated:
                self._index.replace_digests({segment.number: None for segment in outdated})
            self._due_receipts.forget_old_rejections()
        if self._segment_writer.has_only_progress:
            self._write_segment()

    # -------------------------------------------------------------- settling

    def settle(self, segments: Iterable[int | str], rejected: Collection[tuple[int | str, int]] = ()) -> None:
        """Mark segments that all targets hold as settled, so that their messages are acknowledged.

        ``segments`` are numbers, names or paths; unknown and settled ones are ignored. ``rejected`` are
        messages, by segment and row in its file, that the source should treat as refused where it can (for a
        queue's dead-letter exchange). The files of these segments stay until the next call, so that Spark
        can replay the batch that it has not yet committed.
        """
        wanted = {_segment_number(each) for each in segments}
        with self._lock:
            numbers = sorted(wanted & self._pending.keys())
            if numbers:
                self._index.settle(numbers)
            fault_points.point("spool.settled")
            now = time.monotonic()
            self._due_receipts.reject((_segment_number(segment), row) for segment, row in rejected)
            for number in numbers:
                del self._pending[number]
                self._due_receipts.settle(number, now)
            self._index.remove_settled(without=wanted)
        self._wake.set()

    def _acknowledge(self, receiver: Receiver) -> None:
        with self._lock:
            generation = receiver.generation
            batch = self._due_receipts.take(generation)
        if batch.is_empty:
            return
        is_confirmed = all(
            [
                not batch.rejected or receiver.reject(batch.rejected) is True,
                not batch.accepted or receiver.acknowledge(batch.accepted) is True,
            ]
        )
        fault_points.point("spool.acknowledged")
        if is_confirmed and receiver.generation == generation:
            with self._lock:
                self._index.replace_digests(self._due_receipts.forget(batch.rows))

    # -------------------------------------------------------------- state

    @property
    def failure(self) -> BaseException | None:
        """The error that ended receiving, if any."""
        return self._failure

    def raise_failure(self) -> None:
        """Raise the error that ended receiving, if any."""
        if self._failure is not None:
            raise self._failure

    def is_drained(self, idle_seconds: float) -> bool:
        """Whether all messages are in segments: the source reports it, or none came for this many seconds."""
        self.raise_failure()
        reported, idle = self._source_is_drained, time.monotonic() - self._last_message_at
        return not self._segment_writer.messages and (
            reported is True or (reported is None and idle >= idle_seconds)
        )

    def pending_rows(self) -> int:
        """How many messages are in the spool and not in every target."""
        with self._lock:
            return sum(segment.rows for segment in self._pending.values()) + len(
                self._segment_writer.messages
            )

    def pending_segments(self) -> list[str]:
        """The names of the unsettled segments, oldest first."""
        with self._lock:
            return [self._pending[number].name for number in sorted(self._pending)]

    @property
    def lag_unit(self) -> LagUnit:
        """What `lag` counts."""
        return self._lag.unit

    def lag(self) -> Mapping[str, int]:
        """The lag of each partition in `lag_unit`, at the source and in the spool; empty if unknown.

        Messages in the spool are added to those that wait at the source. The source is asked every few
        seconds, and messages received since then are subtracted. Where the source reports times, the time
        that the oldest message in the spool has waited is added.
        """
        if self._lag.unit == "milliseconds":
            return self._lag.add_milliseconds(self._waited_milliseconds())
        return self._lag.add_messages(self.pending_rows())

    def _waited_milliseconds(self) -> int:
        with self._lock:
            oldest = min(self._pending, default=None)
            path = None if oldest is None else self.segments / self._pending[oldest].name
        try:
            return 0 if path is None else max(0, int((time.time() - path.stat().st_mtime) * 1000))
        except FileNotFoundError:  # loaded in between
            return 0

    def close(self) -> None:
        """Stop receiving. Unsettled segments stay in the spool; other messages are still at their source."""
        self._stop.set()
        self._wake.set()
        receiver, self._receiver = self._receiver, None
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        elif receiver is not None:
            if self._failure is None:
                self._acknowledge(receiver)
            self._close_receiver(receiver)
        self._index.close()

    def __enter__(self) -> Spool:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _update_drained(self, receiver: Receiver, received: bool) -> None:
        now = time.monotonic()
        if received or self._segment_writer.messages:
            self._source_is_drained = False
        elif now - self._drained_checked_at >= 0.2:
            self._drained_checked_at = now
            self._source_is_drained = receiver.is_drained()


def _segment_number(segment: int | str) -> int:
    return segment if isinstance(segment, int) else segment_number(segment)
