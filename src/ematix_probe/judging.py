"""Turns the measures of an assertion into its verdict and its message. `compiling` says what is measured."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar, cast

from ematix_probe import wording
from ematix_probe.assertions import (
    Assertion,
    Between,
    CardinalityBetween,
    Drift,
    Expression,
    ForeignKey,
    Freshness,
    IsIn,
    NotNull,
    NullShare,
    PercentileBetween,
    Regex,
    RowCount,
    RowCountChange,
    SchemaMatch,
    SumBetween,
    Unique,
)
from ematix_probe.duration import format_duration
from ematix_probe.failing_values import are_samples_wanted, is_figure
from ematix_probe.report import AssertionResult, Verdict

Measures = Mapping[str, Any]
Past = Sequence[Measures]
Judgement = tuple[bool, str, dict[str, Any]]  # holds, message, the figures to keep
AnyAssertion = TypeVar("AnyAssertion", bound=Assertion)
_FAR_AHEAD_SECONDS = 24 * 3600
_NO_HISTORY = (
    "it compares with recorded runs, and there is no history: run(history=PATH), "
    "or  ematix-probe run --history PATH; in a pipeline, set EMATIX_PROBE_HISTORY"
)


def judge(
    assertion: Assertion,
    index: int,
    measures: Measures,
    *,
    now: dt.datetime,
    past: Past | None = None,
) -> AssertionResult:
    """The result of one assertion.

    ``past`` is the measures of its recorded runs, newest first; None without a history. Measures that have
    ``error``, the reason why nothing was measured, make an ``error`` verdict.
    """
    if "error" in measures:
        return error_result(assertion, index, str(measures["error"]))
    if isinstance(assertion, (Drift, RowCountChange)) and past is None:
        return error_result(assertion, index, _NO_HISTORY)
    if isinstance(assertion, Freshness):
        holds, message, figures = _freshness(assertion, measures, now)
    elif isinstance(assertion, RowCountChange):
        holds, message, figures = _row_count_change(assertion, measures, past or ())
    elif isinstance(assertion, Drift):
        holds, message, figures = _drift(assertion, measures, past or ())
    else:
        holds, message, figures = _JUDGES[type(assertion)](assertion, measures)
    verdict: Verdict = "pass" if holds else assertion.options.severity
    return AssertionResult(
        index,
        verdict,
        message,
        assertion.label,
        assertion.kind,
        measures.get("failing"),
        measures.get("checked"),
        {name: _figure(value) for name, value in figures.items()},
    )


def error_result(assertion: Assertion, index: int, message: str) -> AssertionResult:
    """The result of an assertion that could not be measured."""
    return AssertionResult(index, "error", message, assertion.label, assertion.kind)


# --- single rows ---


def _rows(singular: str, plural: str) -> Callable[[Assertion, Measures], Judgement]:
    """The judge of assertions of single rows, from what failing rows are or do."""

    def judge_rows(assertion: Assertion, measures: Measures) -> Judgement:
        failing, checked = int(measures["failing"]), int(measures["checked"])
        share = failing / checked if checked else 0.0
        figures: dict[str, Any] = {"failing": failing, "checked": checked, "failing_share": share}
        if isinstance(assertion, NotNull):
            figures["null_share"] = share
        tolerated = assertion.options.tolerate
        if checked == 0:
            return True, "there are no rows to check", figures
        words = (singular if failing == 1 else plural).format(**_words(assertion))
        shown = f" ({wording.percent(share)})" if failing else ""
        message = f"{wording.share_of_rows(failing, checked)}{shown} {words}"
        if tolerated and failing:
            message += f"; {wording.percent(tolerated)} are tolerated"
        return share <= tolerated, message, figures

    return judge_rows


def _words(assertion: Assertion) -> dict[str, str]:
    if isinstance(assertion, Between):
        return {"what": wording.outside_of(assertion.low, assertion.high)}
    if isinstance(assertion, Regex):
        return {"what": wording.literal(assertion.pattern)}
    if isinstance(assertion, IsIn):
        return {"what": wording.listed(assertion.values)}
    if isinstance(assertion, Expression):
        return {"what": " ".join(assertion.sql.split())}
    if isinstance(assertion, ForeignKey):
        return {"what": assertion.references}
    return {}


# --- the whole ---


def _row_count(assertion: RowCount, measures: Measures) -> Judgement:
    rows = int(measures["row_count"])
    low, high = assertion.at_least, assertion.at_most
    holds = (low is None or rows >= low) and (high is None or rows <= high)
    asked = wording.value_range(low, high)
    return holds, f"{_rows_counted(rows)}; asked for: {asked}", {"row_count": rows}


def _null_share(assertion: NullShare, measures: Measures) -> Judgement:
    share, failing, checked = measures["null_share"], int(measures["failing"]), int(measures["checked"])
    holds = assertion.at_least <= share <= assertion.at_most
    asked = f"at most {wording.percent(assertion.at_most)}"
    if assertion.at_least:
        asked = f"{wording.percent(assertion.at_least)} … {wording.percent(assertion.at_most)}"
    found = f"{wording.share_of_rows(failing, checked)} ({wording.percent(share)})"
    found += " is NULL" if failing == 1 else " are NULL"
    return (
        holds,
        f"{found}; asked for: {asked}",
        {"null_share": share, "failing": failing, "checked": checked},
    )


def _cardinality(assertion: CardinalityBetween, measures: Measures) -> Judgement:
    found = int(measures["cardinality"])
    low, high = assertion.low, assertion.high
    holds = (low is None or found >= low) and (high is None or found <= high)
    values = "different value" if found == 1 else "different values"
    asked = wording.value_range(low, high)
    return holds, f"{wording.count(found)} {values}; asked for: {asked}", {"cardinality": found}


def _sum(assertion: SumBetween, measures: Measures) -> Judgement:
    asked = wording.value_range(assertion.low, assertion.high)
    if measures.get("strays"):
        return False, f"there is no sum: {_strays(measures)}; asked for: {asked}", {"sum": None}
    found = measures["sum"]
    message = f"the sum is {wording.figure(found)}; asked for: {asked}"
    return bool(measures["inside"]), message, {"sum": found}


def _percentile(assertion: PercentileBetween, measures: Measures) -> Judgement:
    name = f"p{assertion.p * 100:g}"
    value = measures["percentile"]
    asked = wording.value_range(assertion.low, assertion.high)
    if measures.get("strays"):
        return False, f"there is no {name}: {_strays(measures)}; asked for: {asked}", {name: None}
    if value is None:
        return False, f"there is no {name}, because there are no values; asked for: {asked}", {name: None}
    shown = wording.time_text(value) if measures.get("is_time") else wording.figure(value)
    if not (measures.get("is_time") or is_figure(value) or are_samples_wanted()):
        shown, value = "a text that is not shown", None
    how = "by a sketch" if measures["method"] == "sketch" else "exact"
    return bool(measures["inside"]), f"{name} is {shown} ({how}); asked for: {asked}", {name: value}


def _schema(assertion: SchemaMatch, measures: Measures) -> Judgement:
    problems = measures["problems"]
    if problems:
        return False, "; ".join(problems), {"differences": len(problems)}
    number = len(assertion.columns)
    found = "the column is" if number == 1 else f"all {number} columns are"
    return True, f"{found} as asked for", {"differences": 0}


def _freshness(assertion: Freshness, measures: Measures, now: dt.datetime) -> Judgement:
    newest = measures["newest_microseconds"]
    allowed = f"at most {format_duration(assertion.within)} is allowed"
    if measures.get("strays"):
        return False, f"there is no newest value: {_strays(measures)}; {allowed}", {"age_seconds": None}
    if newest is None:
        what = "there are no rows" if not measures["checked"] else "all values are NULL"
        return False, f"{what}, so nothing is fresh; {allowed}", {"age_seconds": None}
    utc = now.astimezone(dt.timezone.utc) if now.tzinfo else now.replace(tzinfo=dt.timezone.utc)
    elapsed = utc - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    age = (elapsed // dt.timedelta(microseconds=1) - newest) / 1e6
    shown = wording.time_text(newest)
    if age < 0:
        ahead = "" if age == float("-inf") else f", {format_duration(-age)} ahead"
        message = f"the newest value is in the future{ahead}: {shown}; {allowed}"
    else:
        old = "" if age == float("inf") else f"{format_duration(age)} old: "
        message = f"the newest value is {old}{shown}; {allowed}"
    return age <= assertion.within, message, {"age_seconds": age, "newest": shown}


def warn_of_future(assertion: Assertion, result: AssertionResult) -> AssertionResult:
    """The result of a probe; freshness that passes is a warning when its newest value is a day ahead."""
    age = result.measures.get("age_seconds")
    if not isinstance(assertion, Freshness) or result.verdict != "pass" or not isinstance(age, (int, float)):
        return result
    return dataclasses.replace(result, verdict="warn") if age < -_FAR_AHEAD_SECONDS else result


# --- against the past ---


def _row_count_change(assertion: RowCountChange, measures: Measures, past: Past) -> Judgement:
    rows = int(measures["row_count"])
    figures: dict[str, Any] = {"row_count": rows}
    known = [each["row_count"] for each in past if isinstance(each.get("row_count"), (int, float))]
    if not known:
        return True, f"{_rows_counted(rows)}; no earlier run is recorded to compare with", figures
    before = int(known[0])
    change = (rows - before) / before if before else (0.0 if rows == 0 else float("inf"))
    allowed = []
    if assertion.max_drop is not None:
        allowed.append(f"a fall of {wording.percent(assertion.max_drop)}")
    if assertion.max_rise is not None:
        allowed.append(f"a rise of {wording.percent(assertion.max_rise)}")
    holds = (assertion.max_drop is None or -change <= assertion.max_drop) and (
        assertion.max_rise is None or change <= assertion.max_rise
    )
    moved = "as many as in the last run"
    if change == float("inf"):
        moved = "the last run had none"
    elif change:
        moved = f"{'a rise' if change > 0 else 'a fall'} of {wording.percent(abs(change))} from "
        moved += wording.count(before)
    return holds, f"{_rows_counted(rows)}, {moved}; allowed: {' and '.join(allowed)}", figures


def _drift(assertion: Drift, measures: Measures, past: Past) -> Judgement:
    from ematix_probe.drift import judge_drift

    name = assertion.metric if assertion.p is None else f"p{assertion.p * 100:g}"
    value = measures["percentile" if assertion.metric == "percentile" else name]
    if not (is_figure(value) or are_samples_wanted()):
        value = None
    holds, message = judge_drift(assertion, value, [each.get(name) for each in past])
    return holds, message, {name: value}


_JUDGES: Mapping[type[Assertion], Callable[[Any, Measures], Judgement]] = {
    NotNull: _rows("is NULL", "are NULL"),
    Unique: _rows("has a key that occurs more than once", "have a key that occurs more than once"),
    Between: _rows("is {what}", "are {what}"),
    Regex: _rows("does not match {what}", "do not match {what}"),
    IsIn: _rows("is none of {what}", "are none of {what}"),
    Expression: _rows("makes the condition false: {what}", "make the condition false: {what}"),
    ForeignKey: _rows("has no row in {what}", "have no row in {what}"),
    RowCount: _row_count,
    NullShare: _null_share,
    CardinalityBetween: _cardinality,
    SumBetween: _sum,
    PercentileBetween: _percentile,
    SchemaMatch: _schema,
}


def _rows_counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{wording.count(rows)} rows"


def _strays(measures: Measures) -> str:
    strays = int(measures["strays"])
    return (
        "1 value is of another type" if strays == 1 else f"{wording.count(strays)} values are of another type"
    )


def _figure(value: Any) -> float | int | str | None:
    """A measure as a report and the history keep it."""
    if isinstance(value, Decimal):
        whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if whole else float(value)
    return cast("float | int | str | None", value)
