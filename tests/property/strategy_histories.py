"""Random tables, options and histories of loads: few keys and few values, so that they meet again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.contract import APPLY_POINTS
from tests.property.hostile_names import column_names
from tests.property.strategy_model import (
    UTC,
    Append,
    ByEventTime,
    ByLoadTime,
    Merge,
    Model,
    Row,
    Truncate,
)

START = dt.datetime(2026, 1, 1, tzinfo=UTC)
_MODELS = {"append": Append, "truncate": Truncate, "merge": Merge}
# values of each type: few, and where a database may trip
VALUES: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "a text": (DataType("text"), ("", "a", "A", "é", "e\u0301", "a ", "'", "\U0001f600")),
    "number": (DataType("double"), (0.0, -0.0, 0.1, 5e-324, 1e308, float("inf"), float("nan"))),
    "amount": (
        DataType("numeric", precision=38, scale=4),
        (Decimal("0.0000"), Decimal("1.5000"), Decimal("-7")),
    ),
    "seen": (DataType("timestamp"), (dt.datetime(1, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 1))),
    "day": (DataType("date"), (dt.date(1970, 1, 1), dt.date(9999, 12, 31))),
    "flag": (DataType("boolean"), (True, False)),
    "doc": (DataType("jsonb"), ("{}", "[1, 2]", "null", '{"a": {"b": 1}}')),
    "raw": (DataType("bytes"), (b"", b"\x00\xff")),
    "ref": (
        DataType("uuid"),
        ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ),
    "select": (DataType("big_int"), (0, -1, 2**63 - 1)),
}
KEYS: dict[str, tuple[DataType, tuple[Any, ...]]] = {
    "id": (DataType("big_int"), (1, 2, -(2**63))),
    'Code "1': (DataType("text"), ("a", "A", "a ", "\U0001f600'", "")),
    "on": (DataType("date"), (dt.date(2026, 1, 1), dt.date(1, 1, 1))),
}
EVENT = "happened at"
ADDED = "added later"
_MARK = "seq"


@dataclass(frozen=True)
class Batch:
    """One load: its rows, its time and its fault. ``wide``: the added column exists."""

    rows: tuple[Row, ...]
    now: dt.datetime
    wide: bool = False
    crash_at: str | None = None  # then it is run again
    repeat: str | None = None  # "run": loaded once more by another run; "batch": with the same batch key


@dataclass(frozen=True)
class Scenario:
    mode: str
    narrow: TableSpec
    wide: TableSpec
    matching: Matching
    wide_matching: Matching
    batches: tuple[Batch, ...]

    def called(self, names: Mapping[str, str]) -> Scenario:
        """The same with other names of columns."""
        return Scenario(
            self.mode,
            _table_called(self.narrow, names),
            _table_called(self.wide, names),
            _matching_called(self.matching, names),
            _matching_called(self.wide_matching, names),
            tuple(_batch_called(batch, names) for batch in self.batches),
        )

    def model(self) -> Model:
        if self.mode == "scd2":
            return (ByEventTime if self.matching.event else ByLoadTime)(self.narrow, self.matching)
        return _MODELS[self.mode](self.narrow, self.matching)


def _table_called(table: TableSpec, names: Mapping[str, str]) -> TableSpec:
    columns = tuple(replace(c, name=names[c.name]) for c in table.columns)
    return replace(table, columns=columns, merge_keys=tuple(names[k] for k in table.merge_keys))


def _matching_called(matching: Matching, names: Mapping[str, str]) -> Matching:
    def called(group: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[n] for n in group)

    return replace(
        matching,
        keys=called(matching.keys),
        compare=called(matching.compare),
        update=called(matching.update),
        order=names[matching.order] if matching.order else None,
        event=names[matching.event] if matching.event else None,
    )


def _batch_called(batch: Batch, names: Mapping[str, str]) -> Batch:
    return replace(batch, rows=tuple({names[k]: v for k, v in row.items()} for row in batch.rows))


@st.composite
def _names_for(draw: st.DrawFn, table: TableSpec, never: Collection[str]) -> Mapping[str, str]:
    """Plain names, or names that break SQL."""
    known = table.column_names
    hostile = draw(st.one_of(st.none(), *[column_names(len(known), never=never)] * 3))
    return dict(zip(known, known if hostile is None else hostile, strict=True))


def _moments(kind: str) -> list[Any]:
    """Close together and far apart: within, at the end of and beyond a time to live of 60 s."""
    minutes = (0, 1, 2, 3, 10, 5_000)
    if kind == "date":
        return [START.date() + dt.timedelta(days=m) for m in (0, 1, 2)]
    found = [START + dt.timedelta(minutes=m) for m in minutes] + [START + dt.timedelta(microseconds=1)]
    return found if kind == "timestamp_tz" else [m.replace(tzinfo=None) for m in found]


@st.composite
def _shapes(
    draw: st.DrawFn, *, event: bool, lacking: tuple[float, ...]
) -> tuple[list[ColumnSpec], tuple[str, ...], dict[str, st.SearchStrategy[Any]]]:
    """Columns, keys, and what a row's columns may hold; ``lacking`` are floats that the database refuses."""
    keys = draw(st.sampled_from([("id",), ("id",), tuple(KEYS)[1:2], tuple(KEYS)[:2], tuple(KEYS)]))
    values = draw(st.lists(st.sampled_from(list(VALUES)), max_size=3, unique=True))
    columns = [ColumnSpec(k, KEYS[k][0], primary_key=True) for k in keys]
    fill: dict[str, st.SearchStrategy[Any]] = {k: st.sampled_from(KEYS[k][1]) for k in keys}
    for name in values:
        columns.append(ColumnSpec(name, VALUES[name][0], nullable=True))
        held = [v for v in VALUES[name][1] if str(v) not in map(str, lacking)]
        few = draw(st.lists(st.sampled_from(held), min_size=1, max_size=2))
        fill[name] = st.sampled_from([*few, None])
    if event:
        kind = draw(st.sampled_from(["timestamp_tz", "timestamp_tz", "timestamp", "date"]))
        columns.append(ColumnSpec(EVENT, DataType(kind)))
        fill[EVENT] = st.sampled_from(_moments(kind))
    return columns, keys, fill


@st.composite
def scenarios(
    draw: st.DrawFn, kinds: tuple[str, ...], lacking: tuple[float, ...] = (), never: Collection[str] = ()
) -> Scenario:
    """``kinds``: append, truncate, merge, versions (scd2 by load time), events (scd2 by event time).

    ``never`` are characters that the system takes in no name of a column.
    """
    kind = draw(st.sampled_from(kinds))
    columns, keys, fill = draw(_shapes(event=kind == "events", lacking=lacking))
    mode = "scd2" if kind in ("versions", "events") else kind
    matched = mode in ("merge", "scd2")
    deletes = None
    if matched and draw(st.booleans()):
        deletes = "soft" if mode == "scd2" else draw(st.sampled_from(["hard", "soft"]))
    ordered = matched and kind != "events" and draw(st.booleans())
    if ordered:
        columns.append(ColumnSpec(_MARK, DataType("integer"), nullable=True))
        fill[_MARK] = st.sampled_from([1, 2, 3, None])
    keeps = {"versions": "versions", "events": "events"}.get(
        kind, "soft_deletes" if deletes == "soft" else "rows"
    )
    if not matched:
        columns = [replace(c, primary_key=False) for c in columns]
    narrow = TableSpec("prop", "t", tuple(columns), keeps=keeps, merge_keys=keys if matched else ())
    values = [c.name for c in columns if c.name not in keys]
    compared = [n for n in values if n != EVENT] if mode == "scd2" else values
    update = values
    if matched and len(compared) > 1 and draw(st.integers(0, 3)) == 0:
        compared = compared[: draw(st.integers(1, len(compared)))]
    if mode == "merge" and len(values) > 1 and draw(st.integers(0, 3)) == 0:
        update = values[: draw(st.integers(1, len(values)))]
    matching = Matching()
    if matched:
        matching = Matching(
            keys,
            compare=tuple(compared),
            update=tuple(update),
            order=EVENT if kind == "events" else _MARK if ordered else None,
            event=EVENT if kind == "events" else None,
            deletes=deletes,  # type: ignore[arg-type]
            ttl_seconds=draw(st.sampled_from([None, None, 60.0])) if mode == "scd2" else None,
        )
    wide = replace(narrow, columns=(*narrow.columns, ColumnSpec(ADDED, DataType("text"), nullable=True)))
    wide_matching = matching
    if matched:
        wide_matching = replace(
            matching, compare=(*matching.compare, ADDED), update=(*matching.update, ADDED)
        )
    single = matched and kind != "events" and not ordered
    batches = draw(_batches(keys, fill, single=single, steady=matching.ttl_seconds is not None))
    scenario = Scenario(mode, narrow, wide, matching, wide_matching, batches)
    return scenario.called(draw(_names_for(wide, never)))


@st.composite
def _batches(
    draw: st.DrawFn,
    keys: tuple[str, ...],
    fill: dict[str, st.SearchStrategy[Any]],
    *,
    single: bool,
    steady: bool,
) -> tuple[Batch, ...]:
    """``single``: nothing orders rows of one key, so a batch has one of each.

    ``steady``: no clock goes back, because a time to live ends by it.
    """
    rows = st.fixed_dictionaries(fill)
    grows_at = draw(st.sampled_from([None, None, 1, 2]))
    now, out = START, []
    for number in range(draw(st.sampled_from([1, 2, 2, 3, 3, 4]))):
        found = draw(st.lists(rows, max_size=4))
        if single:
            found = list({tuple(row[k] for k in keys): row for row in found}.values())
        is_wide = grows_at is not None and number >= grows_at
        if is_wide:
            found = [{**row, ADDED: draw(st.sampled_from([None, "x"]))} for row in found]
        # time advances; sometimes it does not, or a clock is set back
        passed = [1, 30, 60, 61, 100_000, 0] + ([] if steady else [-10])
        now += dt.timedelta(seconds=draw(st.sampled_from(passed)))
        out.append(Batch(tuple(found), now, is_wide))
    struck = draw(st.integers(0, len(out) - 1))
    mishap = draw(st.sampled_from([None, "run", "batch", *APPLY_POINTS]))
    if mishap in ("run", "batch"):
        out[struck] = replace(out[struck], repeat=mishap)
    elif mishap is not None:
        out[struck] = replace(out[struck], crash_at=mishap)
    return tuple(out)


# ------------------------------------------------------------------ incremental reads


@dataclass(frozen=True)
class Polling:
    """A source that grows, and is read from the watermark on after each growth."""

    mode: str
    table: TableSpec
    matching: Matching
    column: str
    growths: tuple[Batch, ...]

    def model(self) -> Model:
        return Scenario(self.mode, self.table, self.table, self.matching, self.matching, ()).model()


@st.composite
def pollings(
    draw: st.DrawFn, kinds: tuple[str, ...], lacking: tuple[float, ...] = (), never: Collection[str] = ()
) -> Polling:
    """``kinds``: append (multiset), keyed (append by primary key), merge, versions, events."""
    kind = draw(st.sampled_from(kinds))
    columns, keys, fill = draw(_shapes(event=True, lacking=lacking))
    marks = sorted(_moments(columns[-1].type.kind))
    mode = {"versions": "scd2", "events": "scd2", "keyed": "append"}.get(kind, kind)
    if mode == "append":
        columns = [replace(c, primary_key=False, nullable=c.name != EVENT) for c in columns]
    if kind == "keyed":
        columns.insert(0, ColumnSpec("line", DataType("integer"), primary_key=True))
    keeps: Any = kind if kind in ("versions", "events") else "rows"
    matched = mode in ("merge", "scd2")
    table = TableSpec("prop", "t", tuple(columns), keeps=keeps, merge_keys=keys if matched else ())
    values = tuple(c.name for c in columns if c.name not in keys)
    matching = Matching()
    if matched:
        compare = tuple(n for n in values if n != EVENT) if mode == "scd2" else values
        matching = Matching(keys, compare, values, order=EVENT, event=EVENT if kind == "events" else None)
    now, number, growths, reached = START, 0, [], 0
    for _ in range(draw(st.integers(1, 3))):
        rows = []
        for row in draw(st.lists(st.fixed_dictionaries(fill), max_size=4)):
            number += 1
            # not below what an earlier read reached: that is what the horizon of a source is for
            place = draw(st.integers(reached, min(reached + 1, len(marks) - 1)))
            rows.append({**row, EVENT: marks[place], **({"line": number} if kind == "keyed" else {})})
        reached = max([reached, *[marks.index(row[EVENT]) for row in rows]])
        now += dt.timedelta(seconds=draw(st.sampled_from([1, 60])))
        growths.append(Batch(tuple(rows), now))
    struck = draw(st.integers(0, len(growths) - 1))
    growths[struck] = replace(growths[struck], crash_at=draw(st.sampled_from([None, *APPLY_POINTS])))
    names = draw(_names_for(table, never))
    called = tuple(_batch_called(growth, names) for growth in growths)
    return Polling(mode, _table_called(table, names), _matching_called(matching, names), names[EVENT], called)
