"""Loads with a source that changes from round to round, and what their targets must hold after each.

Every load of `LOADS` runs once a round. The source of round ``n`` and the target after it are functions
of ``n`` alone, so a test may kill, restart or race any process and still knows every row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.fault.databases import Database
from tests.fault.forked_runs import MODULE

Row = tuple[Any, ...]
BASE = dt.datetime(2026, 1, 1)
KEYS = 300
EVENTS = 250  # of the log, a round


def events(until: int) -> list[Row]:
    """The log after this many rounds: id, k, v, happened. Some events change nothing, some keys are rare."""
    return [
        (i, i * i % (KEYS // 2), i // 7 % 5, BASE + dt.timedelta(seconds=i)) for i in range(until * EVENTS)
    ]


def state(number: int) -> list[Row]:
    """The state table of a round: k, v, happened. Keys go and come back, a part changes each round."""
    return [(k, v, happened) for k in range(KEYS) if (k + number) % 11 for v, happened in [_value(k, number)]]


def growing(number: int) -> list[Row]:
    """A state table that no key ever leaves."""
    first = KEYS // 2
    return [(k, *_value(k, number, since=max((k - first) // 20 + 1, 0))) for k in range(first + 20 * number)]


def _value(k: int, number: int, since: int = 0) -> tuple[int, dt.datetime]:
    """A key's value changes every third round, in a third of the keys at a time."""
    changed = max(number - (number + k) % 3, since)
    return 10 * changed + k % 3, BASE + dt.timedelta(days=changed, seconds=k)


# ------------------------------------------------------------------ what the targets must hold


def appended_states(number: int) -> list[Row]:
    return sorted((k, v) for n in range(number + 1) for k, v, _ in state(n))


def log_rows(number: int) -> list[Row]:
    return events(number + 1)


def state_rows(number: int) -> list[Row]:
    return [(k, v) for k, v, _ in state(number)]


def growing_rows(number: int) -> list[Row]:
    return growing(number)


def event_versions(number: int) -> list[Row]:
    """k, v, valid_from, valid_to, is_current."""
    by_key: dict[int, list[tuple[int, dt.datetime]]] = {}
    for _, k, v, happened in events(number + 1):
        history = by_key.setdefault(k, [])
        if not history or history[-1][0] != v:
            history.append((v, happened))
    out: list[Row] = []
    for k, history in by_key.items():
        ends = [*(start for _, start in history[1:]), None]
        out += [(k, v, start, end, int(end is None)) for (v, start), end in zip(history, ends, strict=True)]
    return sorted(out, key=lambda row: row[:3])


def snapshot_versions(number: int) -> list[Row]:
    """k, v, is_current: a version begins at the time of a load, which the model does not know."""
    open_now: dict[int, int] = {}
    closed: list[Row] = []
    for n in range(number + 1):
        found = {k: v for k, v, _ in state(n)}
        for k, v in list(open_now.items()):
            if found.get(k) != v:
                closed.append((k, v, 0))
                del open_now[k]
        open_now.update(found)
    return sorted([*closed, *((k, v, 1) for k, v in open_now.items())])


@dataclass(frozen=True)
class LoadKind:
    """One declared pipeline. ``slotted``: only the slot distinguishes its rounds."""

    name: str
    source: str
    columns: str
    options: str
    query: str  # how a test reads the target back
    expected: Callable[[int], list[Row]]
    slotted: bool = False
    broken: str = ""  # a query that finds what no reader may ever see

    @property
    def selected(self) -> str:
        return ", ".join(line.partition(":")[0].strip() for line in self.columns.splitlines())

    def after(self, number: int) -> list[Row]:
        """The target's rows after that round; -1 is before the first."""
        return [] if number < 0 else self.expected(number)


_KV = "k: BigInt\n    v: Integer"
_KEYED = "k: Annotated[BigInt, pk()]\n    v: Integer"
_ONE_CURRENT = (
    "SELECT k FROM {table} GROUP BY k HAVING sum(CASE WHEN is_current THEN 1 ELSE 0 END) > 1"
    " OR count(DISTINCT valid_from) <> count(*)"
)
LOADS = (
    LoadKind("append_all", "state_now", _KV, 'mode="append"', "k, v", appended_states, slotted=True),
    LoadKind(
        "append_new",
        "event_log",
        "id: Annotated[BigInt, pk()]\n    k: BigInt\n    v: Integer\n    happened: Timestamp",
        'mode="append", incremental=True, watermark_column="id"',
        "id, k, v, happened",
        log_rows,
    ),
    LoadKind("replace_all", "state_now", _KEYED, 'mode="truncate"', "k, v", state_rows, slotted=True),
    LoadKind(
        "merge_all",
        "state_now",
        _KEYED,
        'mode="merge", handle_deletes="hard"',
        "k, v",
        state_rows,
        slotted=True,
    ),
    LoadKind(
        "merge_new",
        "state_growing",
        f"{_KEYED}\n    happened: Timestamp",
        'mode="merge", incremental=True, watermark_column="happened"',
        "k, v, happened",
        growing_rows,
    ),
    LoadKind(
        "versions_of_events",
        "event_log",
        f"{_KV}\n    happened: Timestamp",
        'mode="scd2", keys=["k"], event_timestamp_column="happened", compare_columns=["v"], '
        'incremental=True, watermark_column="happened"',
        "k, v, valid_from, valid_to, is_current",
        event_versions,
        broken=_ONE_CURRENT,
    ),
    LoadKind(
        "versions_of_states",
        "state_now",
        _KV,
        'mode="scd2", keys=["k"], handle_deletes="soft"',
        "k, v, is_current",
        snapshot_versions,
        slotted=True,
        broken=_ONE_CURRENT,
    ),
)
BY_NAME = {load.name: load for load in LOADS}
FULL_REFRESH = BY_NAME["replace_all"]


@dataclass(frozen=True)
class History:
    """One load from ``source`` to ``target``; the same database twice is the same_db path."""

    load: LoadKind
    source: Database
    target: Database

    @property
    def label(self) -> str:
        return f"target:loads.{self.load.name}"

    @property
    def table(self) -> str:
        return self.target.table("loads", self.load.name)

    def write_module(self, folder: Path) -> None:
        (folder / f"{MODULE}.py").write_text(_PIPELINES.format(load=self.load, history=self))

    def create(self) -> None:
        moment = "TIMESTAMP" if self.source.kind != "mysql" else "DATETIME(6)"
        self.source.execute(
            f"CREATE TABLE event_log (id BIGINT PRIMARY KEY, k BIGINT, v INTEGER, happened {moment})",
            f"CREATE TABLE state_now (k BIGINT PRIMARY KEY, v INTEGER, happened {moment})",
            f"CREATE TABLE state_growing (k BIGINT PRIMARY KEY, v INTEGER, happened {moment})",
        )

    def advance(self, number: int) -> None:
        """Change the source to its rows of that round."""
        if self.load.source == "event_log":
            self.source.fill("event_log", events(number + 1)[number * EVENTS :])
            return
        rows = state(number) if self.load.source == "state_now" else growing(number)
        self.source.execute(f"DELETE FROM {self.load.source}")
        self.source.fill(self.load.source, rows)

    def slot(self, number: int) -> str | None:
        return (BASE + dt.timedelta(days=number)).isoformat() + "+00:00" if self.load.slotted else None

    def seen(self) -> tuple[int, list[Row]]:
        """How many batches the ledger holds and the target's rows, from one snapshot."""
        batches, rows = self.target.look("loads", self.load.name, self.load.query)
        return batches, sorted(rows or [], key=lambda row: tuple(map(str, row)))

    def is_there(self) -> bool:
        """Whether a reader finds the table."""
        return self.target.look("loads", self.load.name, self.load.query)[1] is not None

    def must_hold(self, number: int) -> list[Row]:
        return sorted(self.load.after(number), key=lambda row: tuple(map(str, row)))

    def moved_to(self, target: Database) -> History:
        return replace(self, target=target)


_PIPELINES = """\
from typing import Annotated

from ematix_flow import BigInt, Integer, Timestamp, ematix, pk


@ematix.connection
class source:
    {history.source.fields}


@ematix.connection
class target:
    {history.target.fields}


@ematix.table(schema="loads", name="{load.name}")
class Loaded:
    {load.columns}


@ematix.pipeline(
    target=Loaded, source_connection="source", target_connection="target", {load.options}, max_shrink=1.0
)
def load():
    return "SELECT {load.selected} FROM {load.source}"
"""
