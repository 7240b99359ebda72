"""One flow of batches, written to several places at once.

Writers pull: each takes an iterable. So each has a thread and a channel with room for two batches, and
the reader waits for the slowest. What is held at any time is what the channels hold. Owns no format and
no policy beyond whether one writer's failure stops the others.
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

Writer = Callable[[Iterable["pa.RecordBatch"]], StagedPart]


class WriterStopped(Exception):
    """The flow was broken off for a reason that is not this writer's."""


def tee(
    batches: Iterable[pa.RecordBatch], writers: Sequence[Writer], *, go_on: bool
) -> list[StagedPart | BaseException]:
    """Every batch to every writer; for each what it answered, or the error that ended it.

    With ``go_on`` the others write to their end when one has failed; without, they are `WriterStopped`. When
    reading fails, all are stopped and its error is raised.
    """
    outlets = [_WriterThread(write) for write in writers]
    try:
        for batch in batches:
            taken = [outlet.put(batch) for outlet in outlets]
            if not (any(taken) if go_on else all(taken)):
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
        outlet.end(WriterStopped("the read of the source was broken off"))
    for outlet in outlets:
        outlet.join()


class _WriterThread:
    """One writer in its thread, and the channel that feeds it."""

    def __init__(self, write: Writer) -> None:
        self.outcome: StagedPart | BaseException = WriterStopped("it never began")
        self._write = write
        self._waiting: deque[pa.RecordBatch] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._reason: WriterStopped | None = None
        self._exhausted = False
        self._closed = False  # the writer is done, well or not
        self._thread = threading.Thread(target=self._run, name="ematix-flow-outlet", daemon=True)
        self._thread.start()

    def put(self, batch: pa.RecordBatch) -> bool:
        """Wait for room. False when the writer takes no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < QUEUE_SIZE)
            if not self._closed:
                self._waiting.append(batch)
                self._changed.notify_all()
            return not self._closed

    def end(self, reason: WriterStopped | None = None) -> None:
        """No more batches; with a reason, those that wait are not to be written either."""
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
        except BaseException as error:  # handed over: a thread has nobody to raise it to
            outcome = self._reason or error  # what was stopped may wrap it in an error of its own
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
