"""What a load means, in short pure Python: every database must give the same result.

Written from the meaning of the strategies, not from their SQL. A model holds the table after each
``load(rows, now)``; `table` gives its rows, without the load columns. Floats that are not a number are
equal to themselves here, as they are in a database.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.spec.tables import DELETED_AT, TableSpec
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.row_hash import row_hash

Row = dict[str, Any]
TICK = dt.timedelta(microseconds=1)
UTC = dt.timezone.utc


@dataclass
class Model:
    """``table_spec`` may grow by columns between two loads; rows from before are null in them."""

    spec: TableSpec
    matching: Matching = field(default_factory=Matching)

    def load(self, rows: list[Row], now: dt.datetime) -> None:
        raise NotImplementedError

    def table(self) -> list[Row]:
        raise NotImplementedError

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[k] for k in self.matching.keys)

    def same(self, one: Row, other: Row) -> bool:
        return all(plain(one.get(n)) == plain(other.get(n)) for n in self.matching.compare)

    def hashed(self, row: Row, names: Iterable[str]) -> bytes:
        return row_hash({n: row.get(n) for n in names}, {c.name: c.type for c in self.spec.columns})

    def rest(self) -> list[str]:
        skipped = {*self.matching.keys, *self.matching.compare, self.matching.event}
        return [n for n in self.spec.column_names if n not in skipped]

    def last_of_each_key(self, rows: list[Row]) -> dict[tuple[Any, ...], Row]:
        """By the order column, nulls first; equal ones by the hash of the columns that are not keys."""
        order = self.matching.order
        values = [n for n in self.spec.column_names if n not in self.matching.keys]

        def rank(row: Row) -> tuple[Any, ...]:
            mark = row[order] if order else None
            return (mark is not None, mark or 0, self.hashed(row, values))

        found: dict[tuple[Any, ...], Row] = {}
        for row in sorted(rows, key=rank):
            found[self.key(row)] = row
        return found


@dataclass
class Append(Model):
    rows: list[Row] = field(default_factory=list)

    def load(self, rows: list[Row], now: dt.datetime) -> None:
        self.rows += rows

    def load_from(self, rows: list[Row], column: str, low: Any) -> None:
        """Incremental: rows at the bound may already be stored, each as often as it is stored."""
        known = Counter(self._mark(row) for row in self.rows if row[column] == low)
        for row in rows:
            if known[self._mark(row)] and row[column] == low:
                known[self._mark(row)] -= 1
            else:
                self.rows.append(row)

    def _mark(self, row: Row) -> tuple[Any, ...]:
        return tuple(plain(row.get(n)) for n in self.spec.primary_key or self.spec.column_names)

    def table(self) -> list[Row]:
        return self.rows


@dataclass
class Truncate(Append):
    def load(self, rows: list[Row], now: dt.datetime) -> None:
        self.rows = rows


@dataclass
class Merge(Model):
    stored: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    def load(self, rows: list[Row], now: dt.datetime) -> None:
        batch = self.last_of_each_key(rows)
        for key, row in batch.items():
            old = self.stored.get(key)
            if old is None:
                self.stored[key] = {**row, DELETED_AT: None}
            elif not self.same(old, row) or old[DELETED_AT] is not None:
                old |= {n: row[n] for n in self.matching.update} | {DELETED_AT: None}
        for key in [k for k in self.stored if self.matching.deletes and k not in batch]:
            if self.matching.deletes == "hard":
                del self.stored[key]
            elif self.stored[key][DELETED_AT] is None:
                self.stored[key][DELETED_AT] = now

    def table(self) -> list[Row]:
        soft = self.spec.keeps == "soft_deletes"
        return [{k: v for k, v in row.items() if soft or k != DELETED_AT} for row in self.stored.values()]


@dataclass
class Version:
    row: Row
    begins: dt.datetime
    ends: dt.datetime | None = None


@dataclass
class History(Model):
    """What both kinds of scd2 share: how versions are shown."""

    def versions(self) -> Iterable[Version]:
        raise NotImplementedError

    def table(self) -> list[Row]:
        return [
            {
                **v.row,
                "valid_from": v.begins,
                "valid_to": v.ends,
                "is_current": v.ends is None,
                "row_hash": self.hashed(v.row, self.matching.compare),
            }
            for v in self.versions()
        ]


@dataclass
class ByLoadTime(History):
    """A row that differs from the open version of its key is valid from the time of the load."""

    keys: dict[tuple[Any, ...], list[Version]] = field(default_factory=dict)

    def load(self, rows: list[Row], now: dt.datetime) -> None:
        batch = self.last_of_each_key(rows)
        for key, row in batch.items():
            versions = self.keys.setdefault(key, [])
            is_open = bool(versions) and versions[-1].ends is None
            if is_open and self.same(versions[-1].row, row):
                continue
            at = max(now, _just_after(versions[-1])) if versions else now
            if is_open:
                versions[-1].ends = at
            versions.append(Version(row, at))
        for last in (v[-1] for k, v in self.keys.items() if k not in batch and v[-1].ends is None):
            ttl = self.matching.ttl_seconds
            if self.matching.deletes:
                last.ends = max(now, _just_after(last))
            elif ttl is not None and last.begins + dt.timedelta(seconds=ttl) <= now:
                last.ends = now

    def versions(self) -> Iterable[Version]:
        return (v for versions in self.keys.values() for v in versions)


@dataclass
class ByEventTime(History):
    """A function of the points in time of each key and their rows; None is a delete."""

    keys: dict[tuple[Any, ...], dict[dt.datetime, Row | None]] = field(default_factory=dict)
    now: dt.datetime = dt.datetime(1970, 1, 1, tzinfo=UTC)
    brought: int = 0  # rows of the last load that opened or replaced a version
    outranked: int = 0  # rows of the last load that are not valid at their time, nor a return

    def load(self, rows: list[Row], now: dt.datetime) -> None:
        before = {key: dict(known) for key, known in self.keys.items()}
        self._add(rows, now)
        new = {
            (key, at)
            for key, known in self.keys.items()
            for at, row in known.items()
            if row is not None and (before.get(key, {}).get(at) is not row)
        }
        opened = {(key, v.begins) for key in self.keys for v in self.of_key(key)}
        counted = {(key, at) for key, at in new & opened if at == self._own(key, at)}
        self.brought = len(counted | {p for p in new & opened if (p[0], self._own(*p)) not in counted})
        self.outranked = sum(not self._held(row, before) for row in rows)

    def _own(self, key: tuple[Any, ...], at: dt.datetime) -> dt.datetime:
        """The event time in the row of a point; another time when its key returned."""
        row = self.keys[key][at]
        assert row is not None
        return self.moment(row)

    def _held(self, row: Row, before: Mapping[tuple[Any, ...], Mapping[dt.datetime, Row | None]]) -> bool:
        key, rank = self.key(row), self.rank(row)
        points = [*before.get(key, {}).items(), *self.keys[key].items()]
        returns = [each for at, each in points if each is not None and at != self.moment(each)]
        holds = self.rank(self.keys[key][self.moment(row)]) == rank
        return holds or any(self.rank(e) == rank and self.moment(e) == self.moment(row) for e in returns)

    def _add(self, rows: list[Row], now: dt.datetime) -> None:
        batch: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            batch.setdefault(self.key(row), []).append(row)
        points: list[tuple[tuple[Any, ...], dt.datetime, Row | None]] = []
        for key, events in batch.items():
            points += [(key, self.moment(row), row) for row in events]
            known = self.keys.get(key)
            last = max(events, key=lambda row: (self.moment(row), self.rank(row)))
            if known and known[max(known)] is None and self.moment(last) <= max(known):
                # deleted, and in the snapshot again without anything newer: its last row holds from now on
                points.append((key, max(now, max(known) + TICK), last))
            elif known and self.matching.deletes and self.changed_after_return(key, last):
                points.append((key, max(now, self.of_key(key)[-1].begins + TICK), last))
        for key, known in self.keys.items():
            if self.matching.deletes and key not in batch and self.of_key(key)[-1].ends is None:
                points.append((key, max(now, max(known) + TICK), None))
        for key, at, row in points:
            known = self.keys.setdefault(key, {})
            known[at] = max(known.get(at), row, key=self.rank)
        self.now = max(now, self.now)

    def changed_after_return(self, key: tuple[Any, ...], last: Row) -> bool:
        """The key returned with an older row, and this row changed, still older than the return."""
        v = self.of_key(key)[-1]
        came_back = v.ends is None and v.begins != self.moment(v.row)
        return came_back and self.moment(last) < v.begins and not self.same(v.row, last)

    def rank(self, row: Row | None) -> tuple[Any, ...]:
        """At one time an event wins over a delete; of several, the one with most values, then by hash."""
        if row is None:
            return (False,)
        values = sum(row.get(n) is not None for n in (*self.matching.compare, *self.rest()))
        return (True, values, self.hashed(row, self.matching.compare), self.hashed(row, self.rest()))

    def moment(self, row: Row) -> dt.datetime:
        at = row[self.matching.event or ""]
        if not isinstance(at, dt.datetime):
            at = dt.datetime(at.year, at.month, at.day)
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def of_key(self, key: tuple[Any, ...]) -> list[Version]:
        versions: list[Version] = []
        last = None  # the last event that confirmed the open version
        for at, row in [*sorted(self.keys[key].items()), (self.now, ...)]:
            if last is not None and self.matching.ttl_seconds is not None:
                ends = last + dt.timedelta(seconds=self.matching.ttl_seconds)
                if ends < at or (row is ... and ends == at):
                    versions[-1].ends, last = ends, None
            if row is ...:
                break
            if row is None:
                if last is not None:
                    versions[-1].ends, last = at, None
            elif last is not None and self.same(versions[-1].row, row):
                last = at
            else:
                if last is not None:
                    versions[-1].ends = at
                versions.append(Version(row, at))
                last = at
        return versions

    def versions(self) -> Iterable[Version]:
        return (v for key in self.keys for v in self.of_key(key))


def _just_after(version: Version) -> dt.datetime:
    return (version.ends or version.begins) + TICK


def plain(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and value != value else value
