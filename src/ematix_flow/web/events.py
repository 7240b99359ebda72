"""Live events: one poller of the store for all readers.

A reader has a bounded queue. One that does not read in time is dropped, and its browser connects again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ematix_flow.errors import FlowError
from ematix_flow.web.answers import json_bytes

MOST_READERS = 200
HEARTBEAT_SECONDS = 15.0
_LONGEST_QUEUE = 512  # events that a reader may be behind
_HEARTBEAT = b": still here\n\n"
_BEGIN = b"retry: 2000\n\n"


class TooManyReaders(FlowError):
    """No more readers of events are admitted."""


class EventReader:
    """One reader: the events that it has not received yet."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_LONGEST_QUEUE + 1)

    def push(self, event: bytes) -> bool:
        """Add an event; False if the reader is too far behind."""
        if self._queue.qsize() >= _LONGEST_QUEUE:
            return False
        self._queue.put_nowait(event)
        return True

    def end(self) -> None:
        """Let the reader receive what it has, and then end."""
        if not self._queue.full():
            self._queue.put_nowait(None)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events, and a heartbeat when there is none; ends with the reader or the server."""
        try:
            yield _BEGIN
            while True:
                try:
                    event = await asyncio.wait_for(self._queue.get(), HEARTBEAT_SECONDS)
                except (asyncio.TimeoutError, TimeoutError):
                    event = _HEARTBEAT
                if event is None:
                    return
                yield event
        finally:
            self._hub.leave(self)


class EventHub:
    """All readers. Used from the event loop alone."""

    def __init__(self) -> None:
        self._readers: set[EventReader] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def join(self) -> EventReader:
        if len(self._readers) >= MOST_READERS or self._is_closed:
            raise TooManyReaders(
                f"{MOST_READERS} readers of events are connected already", next_step="try again later"
            )
        reader = EventReader(self)
        self._readers.add(reader)
        return reader

    def leave(self, reader: EventReader) -> None:
        self._readers.discard(reader)

    def publish(self, changes: list[dict[str, Any]]) -> None:
        """Send each change to every reader; it is encoded once."""
        for change in changes:
            event = b"event: change\ndata: " + json_bytes(change) + b"\n\n"
            for reader in [each for each in self._readers if not each.push(event)]:
                self.leave(reader)
                reader.end()

    def close(self) -> None:
        """End every reader: the server stops."""
        self._is_closed = True
        for reader in list(self._readers):
            reader.end()
