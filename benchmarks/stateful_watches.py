"""Polls the target of a stateful stream from outside, and reads when PostgreSQL committed each row.

The server records the time of every commit (``track_commit_timestamp``), so a coarse poll is enough. A row
that is changed twice in one measured stage would lose its first time; no stage does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.stateful_messages import LATENESS, MARKERS, NOBODY, WINDOW, Row

POLL_SECONDS = 0.1
TABLE = "results"
_MS = "(extract(epoch FROM {}) * 1000)::bigint"
_COMMITTED = "extract(epoch FROM pg_xact_commit_timestamp(xmin))"
TABLES = {
    "window": f"CREATE TABLE {TABLE} (page bigint, window_start timestamptz, window_end timestamptz,"
    " views bigint, PRIMARY KEY (page, window_start))",
    "session": f"CREATE TABLE {TABLE} (page bigint, window_start timestamptz, window_end timestamptz,"
    " views bigint, PRIMARY KEY (page, window_start))",
    "join": f"CREATE TABLE {TABLE} (left_order_id bigint PRIMARY KEY, left_customer text, left_cents bigint,"
    " left_at timestamptz, right_order_id bigint, right_method text, right_at timestamptz)",
    "cdc": f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, name text, email text, city text, balance bigint,"
    " seq bigint, sent_at bigint)",
}
_RESULTS = {
    "window": f"SELECT page, {_MS.format('window_start')}, views FROM {TABLE} WHERE page <> {NOBODY}",
    "session": f"SELECT page, {_MS.format('window_start')}, {_MS.format('window_end')}, views FROM {TABLE}"
    f" WHERE page <> {NOBODY}",
    "join": f"SELECT left_order_id, left_cents, right_method FROM {TABLE}",
    "cdc": f"SELECT id, seq, balance FROM {TABLE} WHERE id < {MARKERS}",
}
# How many rows are there; of changes, how many of the last ones
_COUNTED = {
    "cdc": f"SELECT count(*) FROM {TABLE} WHERE id >= {MARKERS}",
    **dict.fromkeys(("window", "session"), f"SELECT count(*) FROM {TABLE} WHERE page <> {NOBODY}"),
    "join": f"SELECT count(*) FROM {TABLE}",
}


class ResultTable:
    """The target of one contestant, used by one thread. ``stream`` is what the case computes."""

    def __init__(self, url: str, stream: str) -> None:
        import psycopg

        self._stream = stream
        self._missing = psycopg.errors.UndefinedTable
        self._connection = psycopg.connect(url, autocommit=True)

    def count(self) -> int:
        """How many rows are visible; 0 before the table is there."""
        try:
            return int(self._fetch(_COUNTED[self._stream])[0][0])
        except self._missing:
            return 0

    def rows(self) -> list[Row]:
        return self._fetch(_RESULTS[self._stream])

    def last_commit(self) -> float:
        """When the last of the rows was committed, in seconds since 1970."""
        return float(self._fetch(f"SELECT max({_COMMITTED}) FROM {TABLE}")[0][0])

    def latencies(self, first: int, began: int, ended: int) -> list[float]:
        """Seconds from when a row could be known until it was committed, in order of length.

        ``first`` is the number of the first steady message, and the times are those of the first and of the
        last one. A window is complete when a message behind its end and the lateness is due; a change is
        due at its own time.
        """
        if self._stream == "cdc":
            found = self._fetch(
                f"SELECT {_COMMITTED}, sent_at FROM {TABLE} WHERE id < {MARKERS} AND seq >= {first}"
            )
        else:
            start = _MS.format("window_start")
            late = WINDOW + LATENESS
            found = self._fetch(
                f"SELECT {_COMMITTED}, {start} + {late} FROM {TABLE} WHERE page <> {NOBODY}"
                f" AND {start} >= {began} AND {start} + {late} <= {ended}"
            )
        return sorted(float(committed) - due / 1_000 for committed, due in found)

    def other_bytes(self) -> int:
        """The size of the tables next to the target: what a contestant keeps in the target's database."""
        [(found,)] = self._fetch(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'"
            f" AND nspname NOT IN ('pg_catalog', 'information_schema') AND relname <> '{TABLE}'"
        )
        return int(found)

    def close(self) -> None:
        self._connection.close()

    def _fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()


def state_bytes(folder: Path) -> int:
    """The size of a contestant's state: Spark's state stores, or ematix-flow's state files."""
    return sum(_sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    for pattern in ("checkpoint/state/**/*", "state/streams/*/checkpoints/*/windows/**/*"):
        for file in folder.glob(pattern):
            try:
                if file.is_file():
                    yield file.stat().st_size
            except FileNotFoundError:  # a file of a version that is no longer needed
                continue
