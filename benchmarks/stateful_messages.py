"""The messages of the benchmark of stateful streams, and the rows that the target must have in the end.

Every message is a function of its number and of the time at which the steady messages begin, so that the
sender, in a separate process, and the check of the result agree.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.stream_messages import PARTITIONS, cents

BEGIN = 1_767_225_600_000  # 2026-01-01, in milliseconds since 1970: the event time of the backlog
BACKLOG_RATE = 10_000  # messages a second of event time in the backlog
HOUR = 3_600_000
LATENESS = 1_000  # milliseconds
WINDOW = 1_000
SESSION_GAP = 2_000
NOBODY = -1  # the page or user of the messages that move the watermark

Row = tuple[Any, ...]


class Message(NamedTuple):
    topic: int
    partition: int
    payload: bytes | None


@dataclass(frozen=True)
class Traffic(ABC):
    """``rows`` messages before; then ``steady`` messages at a rate, from ``began`` on, if that is not 0."""

    rows: int
    began: int = 0  # in milliseconds since 1970
    rate: int = 1_000
    steady: int = 0

    topics = 1

    def event_time(self, number: int) -> int:
        if number < self.rows:
            return BEGIN + number * 1_000 // BACKLOG_RATE
        return self.began + (number - self.rows) * 1_000 // self.rate

    @abstractmethod
    def messages(self, first: int, last: int) -> Iterator[Message]: ...

    @abstractmethod
    def closing(self, at: int) -> list[Message]:
        """The messages after all others of a stage: at this event time everything before is complete."""

    @abstractmethod
    def expected(self) -> set[Row]:
        """The rows of the target in the end, as the check of the result reads them."""

    def stage_end(self) -> int:
        """An event time far behind the last message, and before the next stage."""
        last = self.event_time(self.rows + self.steady - 1)
        return last + HOUR


@dataclass(frozen=True)
class Views(Traffic):
    """Views of pages, to be counted in windows."""

    pages: int = 1_000

    def page(self, number: int) -> int:
        return number * 7919 % self.pages

    def messages(self, first: int, last: int) -> Iterator[Message]:
        for number in range(first, last):
            yield Message(0, number % PARTITIONS, _view(number, self.page(number), self.event_time(number)))

    def closing(self, at: int) -> list[Message]:
        return [Message(0, 0, _view(NOBODY, NOBODY, at))]

    def expected(self) -> set[Row]:
        """Page, start of the window, views."""
        found: dict[tuple[int, int], int] = {}
        for number in range(self.rows + self.steady):
            at = self.event_time(number)
            key = (self.page(number), at - at % WINDOW)
            found[key] = found.get(key, 0) + 1
        return {(*key, views) for key, views in found.items()}


@dataclass(frozen=True)
class Visits(Views):
    """Views of users that visit for five seconds, ten views each, and return after a pause."""

    users: int = 5_000
    views: int = 10

    def page(self, number: int) -> int:
        """The user."""
        round_of_visits = number // (self.users * self.views)
        return number % self.users + round_of_visits % 2 * self.users

    def expected(self) -> set[Row]:
        """User, first and last time with the gap, views."""
        found: dict[tuple[int, int], list[int]] = {}
        for number in range(self.rows):
            key = (self.page(number), number // (self.users * self.views))
            found.setdefault(key, []).append(self.event_time(number))
        return {(user, at[0], at[-1] + SESSION_GAP, len(at)) for (user, _), at in found.items()}


@dataclass(frozen=True)
class Payments(Traffic):
    """Orders in one topic, payments up to four seconds later in another; one order in ten is never paid."""

    topics = 2

    def messages(self, first: int, last: int) -> Iterator[Message]:
        for number in range(first, last):
            order, side = divmod(number, 2)
            at = self.event_time(order * 2)
            if side == 0:
                yield Message(0, order % PARTITIONS, _order(order, at))
            else:  # one that is never paid has a payment of an order that is not there
                paid = order if order % 10 else -order - 1
                yield Message(1, order % PARTITIONS, _payment(paid, at + order * 31 % 4_000))

    def closing(self, at: int) -> list[Message]:
        return [Message(0, 0, _order(-(10**9), at)), Message(1, 0, _payment(-(10**9) - 1, at))]

    def expected(self) -> set[Row]:
        """Order, cents, method."""
        return {(n, cents(n), _method(n)) for n in range(self.rows // 2) if n % 10}


@dataclass(frozen=True)
class Changes(Traffic):
    """Change events of customers as Debezium writes them: inserts, then nine changes and a delete in ten.

    A steady message changes a customer that no other one changes. Tombstones follow deletes, uncounted.
    """

    @property
    def keys(self) -> int:
        return max(1, self.rows // 3)

    def messages(self, first: int, last: int) -> Iterator[Message]:
        there: set[int] = set()
        for number in range(last):
            key, op = self._next(number, there)
            if number < first:
                continue
            partition = key % PARTITIONS
            yield Message(0, partition, _change(op, key, number, self.event_time(number)))
            if op == "d":
                yield Message(0, partition, None)

    def _next(self, number: int, there: set[int]) -> tuple[int, str]:
        """The key of the change and its operation, and ``there`` as it is after it."""
        key = number if number < self.keys else number * 7919 % self.keys
        if key not in there:
            there.add(key)
            return key, "c"
        if number % 10 == 9:
            there.discard(key)
            return key, "d"
        return key, "u"

    def closing(self, at: int) -> list[Message]:
        """A customer in each partition that comes after all others."""
        first = MARKERS + (PARTITIONS if self.steady else 0)
        return [
            Message(0, key % PARTITIONS, _change("c", key, 2 * MARKERS + key, at))
            for key in range(first, first + PARTITIONS)
        ]

    def expected(self) -> set[Row]:
        """Id, number of the last change, balance."""
        found: dict[int, int] = {}
        there: set[int] = set()
        for number in range(self.rows + self.steady):
            key, op = self._next(number, there)
            if op == "d":
                del found[key]
            else:
                found[key] = number
        return {(key, number, cents(number)) for key, number in found.items()}


MARKERS = 1_000_000_000  # the ids of customers that end a stage
TRAFFIC: dict[str, type[Traffic]] = {"window": Views, "session": Visits, "join": Payments, "cdc": Changes}


def iso(at: int) -> str:
    moment = dt.datetime.fromtimestamp(at / 1_000, dt.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at % 1_000:03}Z"


def _view(number: int, page: int, at: int) -> bytes:
    return b'{"id": %d, "page": %d, "referrer": "campaign %05d", "amount": %d, "at": "%s"}' % (
        number,
        page,
        number % 20_000,
        cents(number),
        iso(at).encode(),
    )


def _order(order: int, at: int) -> bytes:
    return b'{"order_id": %d, "customer": "customer %07d", "cents": %d, "at": "%s"}' % (
        order,
        order * 7919 % 1_000_000,
        cents(order),
        iso(at).encode(),
    )


def _payment(order: int, at: int) -> bytes:
    return b'{"order_id": %d, "method": "%s", "at": "%s"}' % (
        order,
        _method(order).encode(),
        iso(at).encode(),
    )


def _method(order: int) -> str:
    return ("card", "transfer", "invoice")[order % 3]


def _change(op: str, key: int, number: int, at: int) -> bytes:
    """About 600 bytes, without a schema; the old row has only its key, as by default in Postgres."""
    row = (
        b'{"id": %d, "name": "customer %07d", "email": "customer%d@example.com", "city": "city %03d",'
        b' "balance": %d, "seq": %d, "sent_at": %d}'
    ) % (key, key, key, number % 500, cents(number), number, at)
    gone = b'{"id": %d, "name": null, "email": null, "city": null, "balance": null, "seq": null}' % key
    return (
        b'{"before": %s, "after": %s, "source": {"version": "3.2.0.Final", "connector": "postgresql",'
        b' "name": "shop", "ts_ms": %d, "snapshot": "false", "db": "shop", "sequence": "[\\"%d\\",\\"%d\\"]",'
        b' "ts_us": %d, "ts_ns": %d, "schema": "public", "table": "customers", "txId": %d, "lsn": %d,'
        b' "xmin": null}, "transaction": null, "op": "%s", "ts_ms": %d}'
    ) % (
        gone if op == "d" else b"null",
        b"null" if op == "d" else row,
        at,
        16 * number,
        16 * number + 8,
        at * 1_000,
        at * 1_000_000,
        700 + number,
        16 * number + 8,
        op.encode(),
        at,
    )
