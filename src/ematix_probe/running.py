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
from ematix_probe.failing_values import are_samples_wanted
from ematix_probe.history.forgiving import ForgivingHistory
from ematix_probe.history.given import prepare_history
from ematix_probe.judging import error_result, judge, warn_of_future
from ematix_probe.report import AssertionResult, RunReport, worst
from ematix_probe.sources.base import ColumnInfo, OpenSubject
from ematix_probe.sources.sql_subject import add_schema_hint

if TYPE_CHECKING:
    from ematix_probe.compiling import Measured
    from ematix_probe.declaration import DataPlan
    from ematix_probe.run_history import RunHistory
    from ematix_probe.sampling import FailingAssertion

_PAST_RUNS = 30
_SHOWN_LETTERS = 200


def run_data_probe(
    plan: DataPlan,
    *,
    history: RunHistory | ForgivingHistory | None = None,
    now: dt.datetime | None = None,
) -> RunReport:
    """Check all assertions of a plan. ``history`` gives them their past and records the run.

    A history that cannot be opened raises before anything is read. A `ForgivingHistory` does not: then the
    assertions that need the past are errors.
    """
    if not isinstance(history, ForgivingHistory):
        prepare_history(history)
    started = dt.datetime.now(dt.timezone.utc)
    time = now or started
    metadata: dict[str, Any] = {"source": plan.source.label}
    try:
        with plan.source.open(plan.subject) as opened:
            results = _check(plan, opened, history, time)
    except ProbeError as error:
        add_schema_hint(error, plan.subject)
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
    if isinstance(history, ForgivingHistory) and (unrecorded := history.error_of(plan.name)) is not None:
        return _without_past(plan, report, history, unrecorded)
    return report


def _without_past(
    plan: DataPlan, report: RunReport, history: ForgivingHistory, unrecorded: ProbeError
) -> RunReport:
    """The report of a run that could not be recorded.

    An assertion that waits for more recorded runs would pass for ever, so it is an error.
    """
    results = [
        error_result(assertion, result.assertion_index, f"this run could not be recorded: {unrecorded}")
        if result.verdict != "error" and _lacks_past(plan, assertion, history)
        else result
        for assertion, result in zip(plan.assertions, report.assertions, strict=True)
    ]
    return dataclasses.replace(report, assertions=results, verdict=worst([each.verdict for each in results]))


def _lacks_past(plan: DataPlan, assertion: Assertion, history: ForgivingHistory) -> bool:
    past = _past(plan, assertion, history)
    return past is not None and not isinstance(past, ProbeError) and len(past) < _needed_runs(assertion)


def _check(
    plan: DataPlan,
    opened: OpenSubject,
    history: RunHistory | ForgivingHistory | None,
    now: dt.datetime,
) -> list[AssertionResult]:
    columns = {column.name: column for column in opened.columns()}
    measures = measure(plan.assertions, columns, opened)
    results = []
    for index, (assertion, measured) in enumerate(zip(plan.assertions, measures, strict=True)):
        past = _past(plan, assertion, history)
        if isinstance(past, ProbeError):
            results.append(error_result(assertion, index, str(past)))
            continue
        results.append(
            warn_of_future(assertion, judge(assertion, index, measured.values, now=now, past=past))
        )
    failing = [
        index for index, result in enumerate(results) if result.failing and plan.assertions[index].by_row
    ]
    if failing and are_samples_wanted():
        from ematix_probe.sampling import FailingAssertion

        found = _sample(
            [
                FailingAssertion(
                    plan.assertions[index], results[index].failing or 0, measures[index].repeated_keys
                )
                for index in failing
            ],
            columns,
            opened,
        )
        for index, samples in zip(failing, found, strict=True):
            results[index] = dataclasses.replace(results[index], samples=samples)
    return results


def measure(
    assertions: Sequence[Assertion], columns: Mapping[str, ColumnInfo], opened: OpenSubject
) -> list[Measured]:
    """The measures of each assertion. One that cannot be measured has the measure ``error``."""
    from ematix_probe.compiling import Measured

    refused = {
        index: reason
        for index, assertion in enumerate(assertions)
        if (reason := _mismatched_reference(assertion, columns, opened)) is not None
    }
    rest = [index for index in range(len(assertions)) if index not in refused]
    measured = {index: Measured({"error": reason}) for index, reason in refused.items()}
    found = _measure_together([assertions[index] for index in rest], columns, opened) if rest else []
    measured |= zip(rest, found, strict=True)
    return [measured[index] for index in range(len(assertions))]


def _measure_together(
    assertions: Sequence[Assertion], columns: Mapping[str, ColumnInfo], opened: OpenSubject
) -> list[Measured]:
    """By one statement, or some where they measure much; each assertion of a refused one alone."""
    from ematix_probe.compiling import compile_in_statements

    try:
        statements = compile_in_statements(
            assertions,
            columns,
            opened.dialect,
            opened.rows(),
            opened.reference,
            with_keys=are_samples_wanted(),
        )
    except ProbeError as error:
        return _measure_alone(assertions, columns, opened, error)
    found: list[Measured] = []
    for compiled in statements:
        some = assertions[len(found) : len(found) + len(compiled.readers)]
        try:
            (row,) = opened.fetch(compiled.query)
            found += compiled.read(row)
        except ProbeError as error:
            found += _measure_alone(some, columns, opened, error)
    return found


def _measure_alone(
    assertions: Sequence[Assertion],
    columns: Mapping[str, ColumnInfo],
    opened: OpenSubject,
    error: ProbeError,
) -> list[Measured]:
    """After the ``error`` of all together. A single one has been measured alone."""
    from ematix_probe.compiling import Measured

    if len(assertions) == 1:
        return [Measured({"error": str(error)})]
    return [found for each in assertions for found in _measure_together([each], columns, opened)]


def _sample(
    failing: Sequence[FailingAssertion],
    columns: Mapping[str, ColumnInfo],
    opened: OpenSubject,
) -> list[list[Mapping[str, Any]]]:
    from ematix_probe.sampling import Sampler

    try:
        key = [name for name in opened.key() if name in columns]
        sampler = Sampler(columns, opened.dialect, opened.rows(), opened.reference, key, opened.fetch)
        found = sampler.samples(failing)
    except ProbeError:
        return [[] for _ in failing]
    return [[{name: _shown(value) for name, value in row.items()} for row in rows] for rows in found]


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
    plan: DataPlan, assertion: Assertion, history: RunHistory | ForgivingHistory | None
) -> Sequence[Mapping[str, Any]] | ProbeError | None:
    if history is None or not isinstance(assertion, (Drift, RowCountChange)):
        return None
    try:
        return history.past(plan.name, assertion.label, max(_PAST_RUNS, _needed_runs(assertion)))
    except ProbeError as error:
        return error


def _needed_runs(assertion: Assertion) -> int:
    return assertion.at_least_runs if isinstance(assertion, Drift) else 1
