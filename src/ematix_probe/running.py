"""Runs a data probe: one statement for all its assertions, each alone when that is refused, then samples.

All of it happens inside one consistent view of the source, where the source has one. What the data or the
source does never raises: it becomes the verdict ``error`` of the assertions that it concerns.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_probe.assertions import Assertion, Drift, ForeignKey, RowCountChange
from ematix_probe.errors import ProbeError
from ematix_probe.judging import error_result, judge, warn_of_future
from ematix_probe.report import AssertionResult, RunReport, worst
from ematix_probe.sources.base import ColumnInfo, OpenSubject

if TYPE_CHECKING:
    from ematix_probe.declaration import DataPlan
    from ematix_probe.run_history import RunHistory

SAMPLES = 10
_TOGETHER = 150  # assertions a statement: SQLite takes 2000 columns, Postgres 1664
_PAST_RUNS = 30
_SHOWN_LETTERS = 200


def run_data_probe(
    plan: DataPlan, *, history: RunHistory | None = None, now: dt.datetime | None = None
) -> RunReport:
    """Check all assertions of a plan. ``history`` gives them their past and records the run."""
    started = dt.datetime.now(dt.timezone.utc)
    time = now or started
    metadata: dict[str, Any] = {"source": plan.source.label}
    try:
        with plan.source.open(plan.subject) as opened:
            results = _check(plan, opened, history, time)
    except ProbeError as error:
        results = [
            error_result(assertion, index, str(error)) for index, assertion in enumerate(plan.assertions)
        ]
    report = RunReport(
        plan.name,
        plan.subject.label if plan.subject.query is not None else plan.subject.table,
        plan.subject.schema,
        worst([each.verdict for each in results]),
        results,
        started,
        dt.datetime.now(dt.timezone.utc),
        metadata,
    )
    if history is not None:
        history.record(report)
    return report


def _check(
    plan: DataPlan, opened: OpenSubject, history: RunHistory | None, now: dt.datetime
) -> list[AssertionResult]:
    columns = {column.name: column for column in opened.columns()}
    measures = measure(plan.assertions, columns, opened)
    results = []
    for index, (assertion, measured) in enumerate(zip(plan.assertions, measures, strict=True)):
        past = _past(plan, assertion, history)
        if isinstance(past, ProbeError):
            results.append(error_result(assertion, index, str(past)))
            continue
        result = warn_of_future(assertion, judge(assertion, index, measured, now=now, past=past))
        if result.failing and assertion.by_row:
            samples = sample_rows(assertion, columns, opened)
            result = dataclasses.replace(result, samples=samples)
        results.append(result)
    return results


def measure(
    assertions: Sequence[Assertion], columns: Mapping[str, ColumnInfo], opened: OpenSubject
) -> list[Mapping[str, Any]]:
    """The measures of each assertion. One that cannot be measured has the measure ``error``."""
    refused = {
        index: reason
        for index, assertion in enumerate(assertions)
        if (reason := _mismatched_reference(assertion, columns, opened)) is not None
    }
    rest = [index for index in range(len(assertions)) if index not in refused]
    measured: dict[int, Mapping[str, Any]] = {index: {"error": reason} for index, reason in refused.items()}
    for start in range(0, len(rest), _TOGETHER):
        some = rest[start : start + _TOGETHER]
        found = _measure_together([assertions[index] for index in some], columns, opened)
        measured |= zip(some, found, strict=True)
    return [measured[index] for index in range(len(assertions))]


def _measure_together(
    assertions: Sequence[Assertion], columns: Mapping[str, ColumnInfo], opened: OpenSubject
) -> list[Mapping[str, Any]]:
    from ematix_probe.compiling import compile_assertions

    try:
        compiled = compile_assertions(assertions, columns, opened.dialect, opened.rows(), opened.reference)
        (row,) = opened.fetch(compiled.query)
        return compiled.read(row)
    except ProbeError as error:
        if len(assertions) == 1:
            return [{"error": str(error)}]
    return [found for each in assertions for found in _measure_together([each], columns, opened)]


def sample_rows(
    assertion: Assertion, columns: Mapping[str, ColumnInfo], opened: OpenSubject, limit: int = SAMPLES
) -> list[Mapping[str, Any]]:
    """Failing rows; none when the source refuses to show them, which changes no verdict."""
    from ematix_probe.compiling import sample_columns, sample_query

    try:
        key = [name for name in opened.key() if name in columns]
        names = sample_columns(assertion, columns, opened.dialect, key)
        query = sample_query(
            assertion, columns, opened.dialect, opened.rows(), opened.reference, key, limit=limit
        )
        rows = opened.fetch(query)
    except ProbeError:
        return []
    return [dict(zip(names, map(_shown, row), strict=True)) for row in rows]


def _shown(value: Any) -> Any:
    """A value of a sample: long texts are cut."""
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if isinstance(value, str) and len(value) > _SHOWN_LETTERS:
        return value[:_SHOWN_LETTERS] + "…"
    return value[:_SHOWN_LETTERS] if isinstance(value, bytes) else value


def _mismatched_reference(
    assertion: Assertion, columns: Mapping[str, ColumnInfo], opened: OpenSubject
) -> str | None:
    """Why the columns of a foreign key cannot be compared with those that they refer to."""
    if not isinstance(assertion, ForeignKey):
        return None
    try:
        found = opened.reference_columns(assertion.references)
    except ProbeError as error:
        return str(error)
    if found is None:
        return None
    others = {column.name: column for column in found}
    for name, other in zip(assertion.columns, assertion.referenced_columns, strict=True):
        if other not in others:
            return f"{assertion.references!r} has no column {other!r}; it has {', '.join(others)}"
        one, two = columns.get(name), others[other]
        if one is not None and not _comparable(one, two):
            return (
                f"{name!r} of type {one.type} cannot be compared with {other!r} of "
                f"{assertion.references!r}, which is of type {two.type}"
            )
    return None


def _comparable(one: ColumnInfo, two: ColumnInfo) -> bool:
    numbers = ("integer", "decimal", "float")
    if one.family == two.family or "other" in (one.family, two.family):
        return True
    return one.family in numbers and two.family in numbers


def _past(
    plan: DataPlan, assertion: Assertion, history: RunHistory | None
) -> Sequence[Mapping[str, Any]] | ProbeError | None:
    if history is None or not isinstance(assertion, (Drift, RowCountChange)):
        return None
    try:
        needed = assertion.at_least_runs if isinstance(assertion, Drift) else 1
        return history.past(plan.name, assertion.label, max(_PAST_RUNS, needed))
    except ProbeError as error:
        return error
