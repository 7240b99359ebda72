"""A broker as the spool's contract describes one: what is not acknowledged comes again, marked or not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ematix_flow.backends.messages.base import Message, Receiver


@dataclass
class Broker:
    """A queue. ``flags`` is whether it marks redelivered messages."""

    flags: bool = True
    ready: list[Message] = field(default_factory=list)
    unacknowledged: dict[int, Message] = field(default_factory=dict)
    published: list[Message] = field(default_factory=list)
    connection: int = 0
    refused: list[Message] = field(default_factory=list)
    _tags: Any = field(default_factory=lambda: itertools.count(1))

    def publish(self, value: bytes, message_id: str | None = None) -> None:
        message = Message(value, position=message_id)
        self.published.append(message)
        self.ready.append(message)

    def disconnect(self) -> None:
        """Delivered messages go back to their place at the head of the queue."""
        self.connection += 1
        back = [
            replace(self.unacknowledged[tag], redelivered=self.flags) for tag in sorted(self.unacknowledged)
        ]
        self.ready[:0] = back
        self.unacknowledged.clear()

    def deliver(self, most: int, prefetch: int) -> list[Message]:
        count = min(most, prefetch - len(self.unacknowledged), len(self.ready))
        taken, self.ready = self.ready[: max(count, 0)], self.ready[max(count, 0) :]
        out = []
        for message in taken:
            tag = next(self._tags)
            self.unacknowledged[tag] = message
            out.append(replace(message, receipt=(self.connection, tag)))
        return out

    def repeat(self) -> None:
        """Deliver the oldest once more on the same connection, as a lease that ran out does."""
        for tag in sorted(self.unacknowledged)[:1]:
            self.ready.insert(0, replace(self.unacknowledged[tag], redelivered=self.flags))


class BrokerReceiver(Receiver):
    """``dies_in_acknowledge``: the connection ends in the next such call, before or after it arrived."""

    def __init__(self, broker: Broker, prefetch: int = 20) -> None:
        broker.disconnect()
        self.broker = broker
        self.prefetch = prefetch
        self.flags_redelivery = broker.flags
        self.generation = broker.connection
        self.dies_in_acknowledge: str | None = None
        self.closed = False

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        self.generation = self.broker.connection
        return self.broker.deliver(max_messages, self.prefetch)

    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        dies, self.dies_in_acknowledge = self.dies_in_acknowledge, None
        if dies == "before":
            self.broker.disconnect()
            return False
        for connection, tag in receipts:
            if connection == self.broker.connection:
                assert tag in self.broker.unacknowledged, "acknowledged twice"
                del self.broker.unacknowledged[tag]
        if dies == "after":
            self.broker.disconnect()
            return False
        return self.generation == self.broker.connection

    def reject(self, receipts: Sequence[Any]) -> bool | None:
        for connection, tag in receipts:
            if connection == self.broker.connection:
                self.broker.refused.append(self.broker.unacknowledged[tag])
        return self.acknowledge(receipts)

    def is_drained(self) -> bool | None:
        return not self.broker.ready

    def lag(self) -> Mapping[str, int]:
        return {"queue": len(self.broker.ready)}

    def close(self) -> None:
        self.closed = True
        self.broker.disconnect()


class Log(Receiver):
    """A source that is read by position, and never sends anything by itself."""

    acknowledges = False

    def __init__(self, values: list[bytes], progress: Mapping[str, str]) -> None:
        self.values = values
        self.at = int(progress.get("log", "0"))
        self._changed: dict[str, str] = {}

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        taken = self.values[self.at : self.at + max_messages]
        messages = [Message(value, position=str(self.at + n)) for n, value in enumerate(taken)]
        self.at += len(taken)
        self._changed = {"log": str(self.at)} if taken else {}
        return messages

    def progress(self) -> Mapping[str, str]:
        return self._changed

    def acknowledge(self, receipts: Sequence[Any]) -> bool | None:
        raise AssertionError("nothing of it is acknowledged")

    def is_drained(self) -> bool | None:
        return self.at >= len(self.values)

    def close(self) -> None:
        return
