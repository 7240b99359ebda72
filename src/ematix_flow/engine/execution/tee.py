"""Writes one stream of batches to several writers at once.

Each writer takes an iterable. So each has a thread and a queue of two batches, and the reader waits for the
slowest writer. Memory holds only the batches in the queues.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.base import StagedPart

if TYPE_CHECKING:
    import pyarrow as pa

QUEUE_SIZE = 2

BatchWriter = Callable[[Iterable["pa.RecordBatch"]], StagedPart]


class WriterStopped(Exception):
    """The writer was stopped because of another writer or the source."""


def tee(
    batches: Iterable[pa.RecordBatch], writers: Sequence[BatchWriter], *, go_on: bool
) -> list[StagedPart | BaseException]:
    """Write every batch to every writer. Returns the result or the error of each writer.

    With ``go_on`` the other writers continue after one has failed; otherwise they end with `WriterStopped`.
    If reading fails, all writers are stopped and the error is raised.
    """
    outlets = [_WriterThread(write) for write in writers]
    try:
        for batch in batches:
            accepted = [outlet.put(batch) for outlet in outlets]
            if not (any(accepted) if go_on else all(accepted)):
                _stop_writers(outlets)
                break
    except BaseException:
        _stop_writers(outlets)
        raise
    for outlet in outlets:
        outlet.end()
    for outlet in outlets:
        outlet.join()
    return [outlet.outcome for outlet in outlets]


def _stop_writers(outlets: Sequence[_WriterThread]) -> None:
    for outlet in outlets:
        outlet.end(WriterStopped("the read of the source was interrupted"))
    for outlet in outlets:
        outlet.join()


class _WriterThread:
    """One writer in its thread, and its queue."""

    def __init__(self, write: BatchWriter) -> None:
        self.outcome: StagedPart | BaseException = WriterStopped("it never began")
        self._write = write
        self._waiting: deque[pa.RecordBatch] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._reason: WriterStopped | None = None
        self._exhausted = False
        self._closed = False  # the writer has ended, with or without an error
        self._thread = threading.Thread(target=self._run, name="ematix-flow-outlet", daemon=True)
        self._thread.start()

    def put(self, batch: pa.RecordBatch) -> bool:
        """Wait for room in the queue. Returns False if the writer has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < QUEUE_SIZE)
            if not self._closed:
                self._waiting.append(batch)
                self._changed.notify_all()
            return not self._closed

    def end(self, reason: WriterStopped | None = None) -> None:
        """End the batches. With a reason, waiting batches are not written."""
        with self._changed:
            self._ended = True
            self._reason = self._reason or reason
            self._changed.notify_all()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            outcome: StagedPart | BaseException = self._write(self._batches())
            if not self._exhausted:
                outcome = RuntimeError("the writer ended before the rows did")
        except BaseException as error:  # passed to the caller of join
            outcome = self._reason or error  # a stopped writer may have wrapped the reason in another error
        with self._changed:
            self.outcome = outcome
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if self._reason is not None:
                    raise self._reason
                if not self._waiting:
                    self._exhausted = True
                    return
                batch = self._waiting.popleft()
                self._changed.notify_all()
            yield batch
