"""What each source of a data probe can hold, and the comparison of a probe with the oracle.

A case is drawn once and fits every engine. What an engine cannot hold, the rows lose by `Engine.fit`, and the
oracle gets the same rows as the engine.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ematix_probe import assertions as a
from ematix_probe.declaration import DataPlan
from ematix_probe.running import run_data_probe
from ematix_probe.sources.base import Source, Subject
from tests.property.probe_oracle import Row, Table, expect, instant
from tests.property.probe_tables import PARENTS, Case

NOW = dt.datetime(2024, 6, 15, 12, 0, tzinfo=dt.timezone.utc)
TABLE = "Probed table"


@dataclass(frozen=True)
class Engine:
    """What an engine cannot hold, and how it quotes. `cases(never=)` leaves out the names that it refuses."""

    dialect: str
    has_nan: bool = True
    has_infinity: bool = True
    has_other_tables: bool = True
    quotes: str = '"'

    def quote(self, name: str) -> str:
        return f"{self.quotes}{name.replace(self.quotes, self.quotes * 2)}{self.quotes}"

    def fit(self, rows: Sequence[Row]) -> list[Row]:
        return [{name: self._fit(value) for name, value in row.items()} for row in rows]

    def _fit(self, value: Any) -> Any:
        if isinstance(value, float):
            if math.isnan(value) and not self.has_nan:
                return None
            if math.isinf(value) and not self.has_infinity:
                return None
        return value


POSTGRES = Engine("postgres")
DUCKDB = Engine("duckdb")  # also files, lakes and frames
SQLITE = Engine("sqlite", has_nan=False)
MYSQL = Engine("mysql", has_nan=False, has_infinity=False, quotes="`")
SPARK = Engine("spark", quotes="`")


def check_case(case: Case, engine: Engine, source: Source, subject: Subject, parents: str = PARENTS) -> None:
    """Probe a loaded case, all assertions at once, and compare each result with the oracle."""
    rows = Table(case.types, engine.fit(case.rows))
    others = Table(case.parent_types, engine.fit(case.parents)) if engine.has_other_tables else None
    written = [_referring(each.written(engine.quote), parents) for each in case.checks]
    report = run_data_probe(DataPlan("random", source, subject, tuple(written)), now=NOW)
    for check, assertion, result in zip(case.checks, written, report.assertions, strict=True):
        wanted = expect(
            assertion,
            rows,
            others,
            NOW,
            where=check.where.holds if check.where else None,
            condition=check.condition.holds if check.condition else None,
        )
        told = (wanted, result, assertion, rows)
        assert result.verdict == wanted.verdict, told
        if wanted.verdict != "error":
            assert result.failing == wanted.failing, told
            assert wanted.checked is None or result.checked == wanted.checked, told
        if assertion.by_row and result.failing:
            assert len(result.samples) == min(10, result.failing), told
            check_samples(result.samples, wanted.failing_rows, told)


def check_samples(samples: Sequence[Row], failing: Sequence[Row], told: object) -> None:
    """Samples are failing rows, none of them twice, in the order of their first column."""
    names = list(samples[0])
    found = Counter(tuple(_shown(row[name]) for name in names) for row in samples)
    possible = Counter(tuple(_shown(row[name]) for name in names) for row in failing)
    assert found <= possible, (found - possible, told)
    first = [_shown(row[names[0]]) for row in samples if row[names[0]] is not None]
    assert [row[names[0]] for row in samples[: len(samples) - len(first)]] == [None] * (
        len(samples) - len(first)
    )
    if len({type(value) for value in first}) == 1:  # SQLite gives times and texts as they were written
        assert first == sorted(first), told


def _shown(value: Any) -> Any:
    """A value in the form that all sources share, of a length that reports show."""
    if isinstance(value, (bool, int, float, Decimal)):
        return "NaN" if value != value else float(value)
    if isinstance(value, str):
        value = value.removesuffix("…")[:200]
        try:
            return instant(value) if re.match(r"\d{4}-\d\d-\d\d", value) else value
        except ValueError:
            return value
    if isinstance(value, dt.date):
        return instant(value)
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else value


def _referring(assertion: a.Assertion, parents: str) -> a.Assertion:
    if isinstance(assertion, a.ForeignKey):
        return dataclasses.replace(assertion, references=parents)
    return assertion
