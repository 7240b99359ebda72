"""A table that several sessions change at once, for tests of change events: what Debezium follows.

Rows are inserted, updated, deleted and get new keys, some many times within a millisecond. Some notes are so
long that events of other changes leave them out.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from decimal import Decimal
from typing import Any

from ematix_flow import Annotated, BigInt, ManagedTable, Numeric, String, Text, TimestampTZ, nullable, pk

COLUMNS = ("region", "id", "note", "amount", "changed_at")
Row = tuple[str, int, str | None, Decimal | None, str | None]
_IDS = 40


class Orders(ManagedTable):
    """The table as a stream mirrors it."""

    __tablename__ = "orders"
    region: Annotated[String[20], pk()]
    id: Annotated[BigInt, pk()]
    note: Annotated[Text, nullable()]
    amount: Annotated[Numeric[12, 2], nullable()]
    changed_at: Annotated[TimestampTZ, nullable()]


def create_statement(kind: str) -> str:
    """``kind`` is postgresql or mysql."""
    moment = "timestamptz" if kind == "postgresql" else "timestamp(6) NULL"
    return (
        "CREATE TABLE orders (region varchar(20) NOT NULL, id bigint NOT NULL, note text, "
        f"amount numeric(12, 2), changed_at {moment}, PRIMARY KEY (region, id))"
    )


def comparable(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """Rows of any store in one form: decimals as such, times to the second without a zone."""
    found = []
    for region, id, note, amount, moment in rows:
        when = None if moment is None else str(moment).replace("T", " ")[:19]
        found.append(
            (
                region,
                id,
                note,
                None if amount is None else Decimal(str(amount)).quantize(Decimal("0.01")),
                when,
            )
        )
    return sorted(found, key=lambda row: row[:2])


class Workload:
    """Sessions that change the table until they are stopped. ``connect`` opens a session of the source."""

    def __init__(self, connect: Callable[[], Any], seed: int, sessions: int = 3, pause: float = 0.01) -> None:
        self._connect, self._pause = connect, pause
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed * 100 + number),), daemon=True)
            for number in range(sessions)
        ]
        self.transactions = 0
        self._failed: list[BaseException] = []

    def __enter__(self) -> Workload:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(60)
        if self._failed:
            raise self._failed[0]

    def _work(self, chance: random.Random) -> None:
        try:
            with closing(self._connect()) as connection:
                while not self._ends.wait(self._pause * chance.random() * 2):
                    run_transaction(connection, chance)
                    self.transactions += 1
        except BaseException as problem:
            self._failed.append(problem)


def run_transaction(connection: Any, chance: random.Random) -> None:
    """A few changes in one transaction; undone if it meets another session."""
    cursor = connection.cursor()
    try:
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            _change(cursor, chance)
        connection.commit()
    except Exception as problem:
        connection.rollback()
        if not any(word in str(problem).lower() for word in ("deadlock", "duplicate", "lock wait")):
            raise


def _change(cursor: Any, chance: random.Random) -> None:
    key = (chance.choice(("eu", "us")), chance.randrange(_IDS))
    amount = Decimal(chance.randrange(100_000)) / 100
    kind = chance.choice(("insert", "insert", "note", "amount", "amount", "delete", "key", "burst"))
    where = "WHERE region = %s AND id = %s"
    if kind == "insert":
        cursor.execute(f"DELETE FROM orders {where}", key)
        insert = "INSERT INTO orders VALUES (%s, %s, %s, %s, %s)"
        cursor.execute(insert, (*key, _note(chance), amount, "2026-01-02 03:04:05"))
    elif kind == "note":
        cursor.execute(f"UPDATE orders SET note = %s {where}", (_note(chance), *key))
    elif kind == "amount":
        cursor.execute(f"UPDATE orders SET amount = %s {where}", (amount, *key))
    elif kind == "delete":
        cursor.execute(f"DELETE FROM orders {where}", key)
    elif kind == "key":
        new = (chance.choice(("eu", "us")), chance.randrange(_IDS))
        # with a note: Debezium leaves a long one out also of the row with the new key
        changed = (*new, f"moved {chance.randrange(1000)}", *key)
        cursor.execute(f"UPDATE orders SET region = %s, id = %s, note = %s {where}", changed)
    else:
        for number in range(8):
            cursor.execute(f"UPDATE orders SET amount = %s {where}", (amount + number, *key))


def _note(chance: random.Random) -> str | None:
    """Now and then so long that Postgres stores it aside, and hard to compress."""
    if chance.random() < 0.1:
        return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=2_500))
    return chance.choice((None, "short", f"n{chance.randrange(1000)}", "ä'\\n\"ß"))
