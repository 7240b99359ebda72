"""Evaluates expectations on the rows of a load, and judges what they find.

`check_rows` runs on any session with the SQL of one of the dialects that `ematix_probe` knows. It sets no
rows aside: each kind of target does that itself, databases in `expectation_gate` and `quarantine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sqlglot import exp

from ematix_flow.backends.base import Load
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.errors import ExpectationFailed, FlowError
from ematix_flow.spec.expectations import (
    Expectation,
    ExpectationResult,
    Gate,
    Verdict,
    bounded_sample,
)
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    from ematix_probe.sources.base import ColumnInfo

_PLAIN_TYPES = {
    "small_int": "smallint",
    "integer": "integer",
    "big_int": "bigint",
    "float": "real",
    "double": "double",
    "boolean": "boolean",
    "text": "text",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_tz": "timestamptz",
    "json": "json",
    "jsonb": "json",
    "uuid": "uuid",
    "bytes": "bytes",
}

_REFUSED = ("fail", "error")
Fetch = Callable[[str], Sequence[tuple[Any, ...]]]
Reference = Callable[[str], exp.Query | exp.Table]


@dataclass(frozen=True)
class CheckedRows:
    """The rows that the gate lets pass, how many it set aside, and what each rule found.

    ``older`` is how many rows pass instead of the newest row of their key.
    """

    select: exp.Expr
    quarantined: int = 0
    results: tuple[ExpectationResult, ...] = ()
    older: int = 0


def plain_column_type(data_type: DataType) -> str:
    """A type in the words of `ematix_probe`."""
    if data_type.kind == "numeric":
        return f"numeric({data_type.precision},{data_type.scale})"
    if data_type.kind == "string":
        return f"varchar({data_type.length})"
    return _PLAIN_TYPES[data_type.kind]


def column_infos(columns: Sequence[ColumnSpec], dialect: SqlDialect | None) -> dict[str, ColumnInfo]:
    """The columns as `ematix_probe` describes them."""
    from ematix_probe.column_types import family_of
    from ematix_probe.sources.base import ColumnInfo

    found = {}
    for each in columns:
        plain = plain_column_type(each.type)
        native = dialect.native_type(each.type) if dialect is not None else ""
        found[each.name] = ColumnInfo(each.name, cast("Any", family_of(plain)), plain, each.nullable, native)
    return found


# ---------------------------------------------------------------------- checking


def check_rows(
    gate: Gate,
    load: Load,
    columns: Mapping[str, ColumnInfo],
    dialect: str,
    rows: exp.Query,
    reference: Reference,
    fetch: Fetch,
    fetch_samples: Fetch | None,
) -> tuple[ExpectationResult, ...]:
    """Evaluate every rule on the rows, in one statement or a few. Raises ExpectationFailed.

    An error that ``fetch_samples`` raises changes no verdict: there are no samples then. SamplesRefused is
    for the caller, who has to check the rows again without ``fetch_samples``.
    """
    from ematix_probe.compiling import Measured, compile_in_statements
    from ematix_probe.failing_values import are_samples_wanted
    from ematix_probe.judging import judge
    from ematix_probe.sampling import FailingAssertion, Sampler

    read_samples = fetch_samples if gate.enforced and are_samples_wanted() else None
    assertions = [rule.assertion for rule in gate.rules]
    statements = compile_in_statements(
        assertions, columns, dialect, rows, reference, with_keys=read_samples is not None
    )
    measured: list[Measured] = []
    for compiled in statements:
        measured += compiled.read(fetch(_text(compiled.query, dialect))[0])
    results = [
        _result(rule, judge(rule.assertion, index, found.values, now=load.loaded_at))
        for index, (rule, found) in enumerate(zip(gate.rules, measured, strict=True))
    ]
    failing = [index for index, result in enumerate(results) if result.failing and assertions[index].by_row]
    if failing and read_samples is not None and not _is_checked_again(gate, load, results):
        key = load.table.primary_key or load.plan.matching.keys
        sampler = Sampler(
            columns,
            dialect,
            rows,
            reference,
            key,
            partial(_fetch_harmlessly, read_samples, dialect),
        )
        wanted = [
            FailingAssertion(assertions[index], results[index].failing or 0, measured[index].repeated_keys)
            for index in failing
        ]
        for index, found_rows in zip(failing, sampler.samples(wanted), strict=True):
            results[index] = replace(results[index], samples=tuple(map(bounded_sample, found_rows)))
    found = tuple(results)
    if gate.enforced:
        refuse_failed(load, gate, found)
    return found


def _is_checked_again(gate: Gate, load: Load, results: Sequence[ExpectationResult]) -> bool:
    """Whether messages have to become dead letters first, after which the rest of the batch is checked."""
    if not gate.to_dead_letters or load.dry_run or load.dead_letters:
        return False
    if any(each.verdict in _REFUSED for each in results):
        return False
    return any(each.failing for each in results if each.action == "quarantine")


def _fetch_harmlessly(fetch_samples: Fetch, dialect: str, query: exp.Expr) -> Sequence[tuple[Any, ...]]:
    """What a database or its driver fails with is for `Sampler` an error of the source. A lost connection
    fails the next statement of the load."""
    from ematix_probe.errors import SourceFailed

    try:
        return fetch_samples(_text(query, dialect))
    except (FlowError, ValueError, ArithmeticError) as error:
        raise SourceFailed(type(error).__name__) from error


def _text(query: exp.Expr, dialect: str) -> str:
    return query.sql(dialect=dialect)


def _result(rule: Expectation, judged: Any) -> ExpectationResult:
    """The verdict of a rule. Rows that are set aside fail nothing, unless they are more than is tolerated."""
    verdict: Verdict = judged.verdict
    if verdict == "fail" and rule.action == "warn":
        verdict = "warn"
    tolerated = rule.assertion.options.tolerate
    if rule.action == "quarantine" and verdict != "error" and judged.failing:
        share = judged.failing / judged.checked if judged.checked else 0.0
        verdict = "fail" if 0 < tolerated < share else "warn"
    elif rule.action == "fail" and verdict == "warn":
        verdict = "fail"  # the action counts, not the severity of the assertion
    return ExpectationResult(
        rule.label,
        rule.assertion.kind,
        rule.action,
        verdict,
        judged.message,
        judged.failing,
        judged.checked,
        alerts=rule.alerts,
    )


def refuse_failed(load: Load, gate: Gate, results: Sequence[ExpectationResult]) -> None:
    """Raise ExpectationFailed if a rule stops the load."""
    failed = [each for each in results if each.verdict in _REFUSED]
    if not failed:
        return
    raise expectation_error(load, gate, failed, results)


def expectation_error(
    load: Load, gate: Gate, failed: Sequence[ExpectationResult], results: Sequence[ExpectationResult]
) -> ExpectationFailed:
    rules = "1 expectation fails" if len(failed) == 1 else f"{len(failed)} expectations fail"
    over = any(each.action == "quarantine" for each in failed)
    advice = "correct the rows at the source, or the rule"
    if all(each.failing is not None and each.action == "fail" for each in failed):
        advice += '; on_fail="quarantine" sets the failing rows aside and loads the rest'
    elif over:
        advice += "; tolerate= is the share of rows that may be set aside"
    error = ExpectationFailed(
        f"{rules} for {load.table.label}: " + "; ".join(_describe(each) for each in failed),
        where=gate.where,
        state=f"nothing was loaded; {load.table.label} is unchanged",
        next_step=advice,
    )
    error.results = tuple(results)
    return error


def _describe(result: ExpectationResult) -> str:
    """What a rule found, without values of rows: messages go to logs and alerts."""
    text = str(result)
    if result.share is not None and result.failing:
        text += f" ({result.share:.1%})"
    return text


def diagnose(
    gate: Gate, error: FlowError, run_alone: Callable[[Expectation], object], load: Load
) -> FlowError:
    """The error with the names of the rules that the database refuses; ``error`` if it refuses none."""
    broken = []
    for rule in gate.rules:
        try:
            run_alone(rule)
        except ExpectationFailed:
            continue
        except FlowError as own:
            broken.append(ExpectationResult(rule.label, rule.assertion.kind, rule.action, "error", own.what))
    if not broken:
        return error
    names = ", ".join(repr(each.rule) for each in broken)
    failed = ExpectationFailed(
        f"the target cannot evaluate {names}: {broken[0].message}",
        where=gate.where,
        state=f"nothing was loaded; {load.table.label} is unchanged",
        next_step="correct the rule: its SQL is that of the target",
    )
    failed.results = tuple(broken)
    return failed
