"""Watchers that poll a stream's target from outside: how many rows it has, and when each was first seen.

A poll is cheap for a target of any size: it reads only what has come since the last one. The rows of one
commit become visible at one time, so it is enough to note the commit and to read its rows at the end.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.endpoint import Endpoint

POLL_SECONDS = 0.02
_BLOCK_BYTES = 8192
_LOOKED_AT_AGAIN = 128  # blocks: a table may be filled up a little before its end


class Watch(ABC):
    """A watcher of one target, used by one thread."""

    @abstractmethod
    def poll(self) -> int:
        """How many rows are visible."""

    @abstractmethod
    def sums(self) -> tuple[int, int, int]:
        """The number of rows, the sum of their ids, and of their amounts in cents, read again."""

    @abstractmethod
    def seen(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        """Of the rows with these ids: when each was sent (ms since 1970) and seen (s since 1970)."""

    @abstractmethod
    def close(self) -> None: ...

    def latencies(self, first: int, last: int) -> list[float]:
        """Seconds from sent to seen, in order of length."""
        return sorted(seen - sent / 1000 for sent, seen in self.seen(first, last))


def watch(endpoint: Endpoint, topic: str) -> Watch:
    kinds = {
        "postgres": lambda: PostgresWatch(endpoint.location),
        "delta": lambda: DeltaWatch(endpoint.location),
    }
    return kinds[endpoint.kind]() if endpoint.kind in kinds else KafkaWatch(endpoint.location, topic)


class PostgresWatch(Watch):
    """Each row names the transaction that wrote it: the poll counts by transaction.

    It begins at the end of the table when no transaction was writing, because earlier blocks no longer
    change.
    """

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)
        self._from = 0
        self._rows: dict[str, int] = {}
        self._seen: dict[str, float] = {}

    def poll(self) -> int:
        # in this order: a writer of blocks before the end has committed if none is open after that
        [(size,)] = self._fetch("SELECT pg_relation_size('events')")
        writing = self._fetch("SELECT FROM pg_stat_activity WHERE backend_xid IS NOT NULL LIMIT 1")
        counted = self._fetch(
            f"SELECT xmin::text, count(*) FROM events WHERE ctid >= '({self._from},0)'::tid GROUP BY xmin"
        )
        now = time.time()
        for transaction, rows in counted:
            self._seen.setdefault(transaction, now)
            self._rows[transaction] = max(rows, self._rows.get(transaction, 0))
        if not writing:
            self._from = max(self._from, size // _BLOCK_BYTES - _LOOKED_AT_AGAIN)
        return sum(self._rows.values())

    def sums(self) -> tuple[int, int, int]:
        [found] = self._fetch("SELECT count(*), coalesce(sum(id), 0), round(sum(amount) * 100) FROM events")
        return int(found[0]), int(found[1]), int(found[2] or 0)

    def seen(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        rows = self._fetch(f"SELECT xmin::text, sent_at FROM events WHERE id >= {first} AND id < {last}")
        return ((sent_at, self._seen[transaction]) for transaction, sent_at in rows)

    def close(self) -> None:
        self._connection.close()

    def _fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()  # type: ignore[call-overload,no-any-return]


class DeltaWatch(Watch):
    """The log has one file for each commit, which appears whole and names the files of rows that it adds."""

    def __init__(self, folder: str) -> None:
        self._table = Path(folder) / "events"
        self._seen: dict[str, float] = {}  # file of rows -> when
        self._next = 0
        self._rows = 0

    def poll(self) -> int:
        from pyarrow import parquet

        while (commit := self._table / "_delta_log" / f"{self._next:020}.json").exists():
            now = time.time()
            for line in commit.read_text(encoding="utf-8").splitlines():
                added = json.loads(line).get("add")
                if added is not None:
                    self._seen[added["path"]] = now
                    self._rows += parquet.read_metadata(self._table / added["path"]).num_rows
            self._next += 1
        return self._rows

    def sums(self) -> tuple[int, int, int]:
        import pyarrow.compute as pc
        from deltalake import DeltaTable

        rows = DeltaTable(self._table).to_pyarrow_table(columns=["id", "amount"])
        return rows.num_rows, pc.sum(rows["id"]).as_py(), round(pc.sum(rows["amount"]).as_py() * 100)

    def seen(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        from pyarrow import parquet

        for path, at in self._seen.items():
            rows = parquet.read_table(self._table / path, columns=["id", "sent_at"]).to_pydict()
            for number, sent_at in zip(rows["id"], rows["sent_at"], strict=True):
                if first <= number < last:
                    yield sent_at, at

    def close(self) -> None:
        return


class KafkaWatch(Watch):
    """A reader of committed messages."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "benchmark-watch",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": int(POLL_SECONDS * 1000),
            }
        )
        there = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in there])
        self._sums = (0, 0, 0)
        self._seen: list[tuple[int, int, float]] = []  # id, sent, seen

    def poll(self) -> int:
        import orjson

        rows, ids, cents = self._sums
        messages = self._consumer.consume(5_000, timeout=POLL_SECONDS / 2)
        now = time.time()
        for message in messages:
            if message.error() is None:
                row = orjson.loads(message.value())
                rows, ids, cents = rows + 1, ids + row["id"], cents + round(row["amount"] * 100)
                self._seen.append((row["id"], row["sent_at"], now))
        self._sums = (rows, ids, cents)
        return rows

    def sums(self) -> tuple[int, int, int]:
        """The totals of what was read, after nothing more comes."""
        before = -1
        while before != (before := self.poll()):
            pass
        return self._sums

    def seen(self, first: int, last: int) -> Iterator[tuple[int, float]]:
        return ((sent_at, at) for number, sent_at, at in self._seen if first <= number < last)

    def close(self) -> None:
        self._consumer.close()
