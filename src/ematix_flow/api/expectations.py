"""Reads ``expectations=`` and its companions, and declares the aliases that Lakeflow users know.

``expect``, ``expect_or_drop``, ``expect_or_fail`` and their ``_all`` forms are values for ``expectations=``
and ``transforms_pre=``, and decorators below ``@ematix.pipeline``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.expectations import (
    DEAD_LETTERS,
    ON_FAIL,
    Expectation,
    ExpectationsSpec,
    OnFail,
    refuse_unusable,
)
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_probe.assertions import Assertion, Expression, Options
from ematix_probe.errors import ProbeError

Condition = str | Assertion | Callable[[Any], object]

_ATTRIBUTE = "__ematix_expectations__"
_EXAMPLE = 'write expectations=[ematix.expect("amount is positive", "amount > 0")]'


class ExpectationList:
    """Expectations with their own action: a value for ``expectations=``, or a decorator."""

    def __init__(self, name: str, rules: tuple[Expectation, ...], where: SourceLocation | None) -> None:
        self._name, self.rules, self._where = name, rules, where

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Add the expectations to the function that ``@ematix.pipeline`` above it will declare."""
        if hasattr(function, "spec") or not hasattr(function, "__name__") or not callable(function):
            raise DeclarationError(
                f"@ematix.{self._name} is above the decorator of the pipeline, which is declared already",
                where=self._where,
                next_step=f"move @ematix.{self._name} below @ematix.pipeline, next to the function",
            )
        setattr(function, _ATTRIBUTE, (*self.rules, *getattr(function, _ATTRIBUTE, ())))
        return function

    def __repr__(self) -> str:
        return f"<ematix.{self._name}: {', '.join(rule.label for rule in self.rules)}>"


def expect(name: str, condition: Condition) -> ExpectationList:
    """Load every row, and report those for which the condition is false.

    A condition is SQL of the target, an assertion, or a function of the tester of a probe.
    """
    return _build("expect", [(name, condition)], "warn")


def expect_or_drop(name: str, condition: Condition) -> ExpectationList:
    """Load the rows for which the condition is not false; the others go to the quarantine table."""
    return _build("expect_or_drop", [(name, condition)], "quarantine")


def expect_or_fail(name: str, condition: Condition) -> ExpectationList:
    """Load nothing if the condition is false for a row."""
    return _build("expect_or_fail", [(name, condition)], "fail")


def expect_all(expectations: Mapping[str, Condition]) -> ExpectationList:
    """Several of `expect`: a mapping of name and condition."""
    return _build("expect_all", _pairs("expect_all", expectations), "warn")


def expect_all_or_drop(expectations: Mapping[str, Condition]) -> ExpectationList:
    """Several of `expect_or_drop`: a mapping of name and condition."""
    return _build("expect_all_or_drop", _pairs("expect_all_or_drop", expectations), "quarantine")


def expect_all_or_fail(expectations: Mapping[str, Condition]) -> ExpectationList:
    """Several of `expect_or_fail`: a mapping of name and condition."""
    return _build("expect_all_or_fail", _pairs("expect_all_or_fail", expectations), "fail")


def _pairs(called: str, conditions: Any) -> list[tuple[Any, Any]]:
    if isinstance(conditions, Mapping) and conditions:
        return list(conditions.items())
    raise DeclarationError(
        f"{called}() takes a mapping of name and condition, not {conditions!r}",
        where=caller_location(),
        next_step=f'write {called}({{"amount is positive": "amount > 0"}})',
    )


def _build(called: str, conditions: Iterable[tuple[Any, Any]], action: OnFail) -> ExpectationList:
    where = caller_location()
    rules = [
        Expectation(each, action)
        for name, condition in conditions
        for each in _named_assertions(called, name, condition, where)
    ]
    for rule in rules:
        refuse_unusable(rule.assertion, action, where)
    return ExpectationList(called, tuple(rules), where)


def _named_assertions(
    called: str, name: Any, condition: Any, where: SourceLocation | None
) -> tuple[Assertion, ...]:
    if not isinstance(name, str) or not name.strip():
        raise DeclarationError(f"{called}() takes a name and a condition, not {name!r}", where=where)
    if isinstance(condition, str) and condition.strip():
        return (Expression(condition, options=Options(name=name)),)
    if isinstance(condition, Assertion):
        return (_named(condition, name),)
    if callable(condition):
        found = _assertions_of_function(condition, where)
        if len(found) == 1:
            return (_named(found[0], name),)
        return tuple(_named(each, f"{name}: {each.label}") for each in found)
    raise DeclarationError(
        f"the condition of {name!r} is SQL text, an assertion or a function of the tester, not {condition!r}",
        where=where,
        next_step=f'write {called}({name!r}, "amount > 0")',
    )


def _named(assertion: Assertion, name: str) -> Assertion:
    return replace(assertion, options=replace(assertion.options, name=name))


def _assertions_of_function(
    function: Callable[[Any], object], where: SourceLocation | None
) -> tuple[Assertion, ...]:
    from ematix_probe.tester import Tester

    tester = Tester()
    try:
        function(tester)
    except ProbeError as error:
        raise DeclarationError(
            error.what, where=where, state=error.state, next_step=error.next_step
        ) from error
    if not tester.assertions:
        raise DeclarationError(
            "the function of expectations= adds no assertion",
            where=where,
            next_step='call the tester, as in  lambda t: t.column("id").not_null()',
        )
    return tester.assertions


def expectations_of_function(function: Callable[..., Any]) -> tuple[Expectation, ...]:
    """The expectations that decorators below the pipeline's have added."""
    found: tuple[Expectation, ...] = getattr(function, _ATTRIBUTE, ())
    return found


def with_decorated_expectations(
    options: Mapping[str, Any], function: Callable[..., Any]
) -> Mapping[str, Any]:
    """The options of a stream, whose ``expectations`` also holds those of decorators below."""
    added = expectations_of_function(function)
    if not added:
        return options
    given = options.get("expectations")
    listed = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    return {**options, "expectations": [*listed, *added]}


def read_on_fail(on_fail: Any, on_quality_failure: Any, where: SourceLocation | None) -> OnFail:
    """The action of expectations without their own. ``on_quality_failure=`` is another name of it."""
    if on_fail is not None and on_quality_failure is not None:
        raise DeclarationError(
            "on_fail= and on_quality_failure= mean the same: give one of them", where=where
        )
    option = "on_fail" if on_quality_failure is None else "on_quality_failure"
    value = on_fail if on_quality_failure is None else on_quality_failure
    if value is None:
        return "fail"
    for known in ON_FAIL:
        if value == known:
            return known
    raise DeclarationError(f"{option}={value!r} is unknown.{did_you_mean(str(value), ON_FAIL)}", where=where)


def read_expectations(
    value: Any,
    *,
    others: Sequence[Expectation] = (),
    on_fail: Any = None,
    on_quality_failure: Any = None,
    alert_on_quality_warn: Any = False,
    quarantine: Any = None,
    where: SourceLocation | None,
) -> ExpectationsSpec:
    """``expectations=`` and its companions as one value. ``others`` are declared in other ways."""
    action = read_on_fail(on_fail, on_quality_failure, where)
    if not isinstance(alert_on_quality_warn, bool):
        raise DeclarationError(
            f"alert_on_quality_warn= takes True or False, not {alert_on_quality_warn!r}", where=where
        )
    rules: list[Expectation] = []
    of_table: OnFail | None = None
    takes_action = False  # whether a rule leaves its action out
    for item in value if isinstance(value, (list, tuple)) else () if value is None else (value,):
        if isinstance(item, str):
            if item != "table":
                raise DeclarationError(
                    f'expectations={item!r} is unknown: the only text is "table"',
                    where=where,
                    next_step=_EXAMPLE,
                )
            of_table, takes_action = action, True
        else:
            rules += _rules_of(item, action, where)
            takes_action = takes_action or not isinstance(item, (ExpectationList, Expectation))
    rules += others
    to_dead_letters = quarantine is DEAD_LETTERS
    spec = ExpectationsSpec(
        tuple(_with_alerts(rule, action, alert_on_quality_warn) for rule in rules),
        of_table,
        None if to_dead_letters else _read_quarantine(quarantine, where),
        to_dead_letters,
    )
    _check(spec, on_fail, on_quality_failure, alert_on_quality_warn, where)
    if (on_fail is not None or on_quality_failure is not None) and not takes_action:
        option = "on_fail" if on_fail is not None else "on_quality_failure"
        raise DeclarationError(
            f"{option}= is for expectations without their own action, and each of these has one",
            where=where,
            next_step=f"leave {option}= out, or give assertions, as in  lambda t: t.column(…)",
        )
    return spec


def refuse_dead_letters(spec: ExpectationsSpec, where: SourceLocation | None) -> None:
    """Refuse dead letters for a pipeline that is no stream."""
    if spec.to_dead_letters:
        raise DeclarationError(
            "quarantine=ematix.DEAD_LETTERS is for streams of messages, and this pipeline reads rows",
            where=where,
            next_step="leave quarantine= out: failing rows then go to the table <table>__quarantine",
        )


def check_quarantine_of_targets(
    spec: ExpectationsSpec, connections: Sequence[object], where: SourceLocation | None
) -> None:
    """Refuse one quarantine table for several targets: a replay could not tell whose rows it holds.

    ``connections`` are those of the targets.
    """
    if spec.quarantine is not None and any(connections.count(each) > 1 for each in connections):
        raise DeclarationError(
            f"quarantine={spec.quarantine!r} would hold the rows of several targets of one connection",
            where=where,
            next_step="leave quarantine= out: then each target has its own table, <table>__quarantine",
        )


def _rules_of(item: Any, action: OnFail, where: SourceLocation | None) -> list[Expectation]:
    if isinstance(item, ExpectationList):
        return list(item.rules)
    if isinstance(item, Expectation):
        return [item]
    found: Iterable[Assertion]
    if isinstance(item, Assertion):
        found = (item,)
    elif is_probe(item):
        found = item.plan().assertions
    elif callable(item):
        found = _assertions_of_function(item, where)
    else:
        raise DeclarationError(
            "expectations= takes a function of the tester, a data probe, a list of expect(…) values or "
            f'"table", not {item!r}',
            where=where,
            next_step=_EXAMPLE,
        )
    rules = [Expectation(each, "warn" if each.options.severity == "warn" else action) for each in found]
    for rule in rules:
        refuse_unusable(rule.assertion, rule.action, where)
    return rules


def _with_alerts(rule: Expectation, action: OnFail, alert_on_warn: bool) -> Expectation:
    """A rule that only warns sends an alert if the whole pipeline only warns, or if it was asked for."""
    follows_policy = action == "warn" and rule.assertion.options.severity != "warn"
    return replace(rule, alerts=rule.action != "warn" or alert_on_warn or follows_policy)


def split_pre_transforms(
    value: Any, where: SourceLocation | None
) -> tuple[list[Any] | None, tuple[Expectation, ...], tuple[Any, ...]]:
    """The items of ``transforms_pre=``: transforms, expectations for the gate, and probes that run first."""
    if value is None or not isinstance(value, (list, tuple)):
        return value, (), ()
    rules = [rule for item in value if isinstance(item, ExpectationList) for rule in item.rules]
    probes = tuple(item for item in value if is_probe(item))
    rest = [item for item in value if not isinstance(item, ExpectationList) and not is_probe(item)]
    return rest, tuple(rules), probes


def is_probe(item: Any) -> bool:
    """Whether the item is a data probe, which this module knows by its methods only."""
    return callable(getattr(item, "plan", None)) and callable(getattr(item, "assertion_names", None))


def _read_quarantine(value: Any, where: SourceLocation | None) -> str | None:
    if value is None:
        return None
    parts = value.split(".") if isinstance(value, str) else []
    if not 1 <= len(parts) <= 2 or not all(part.strip() for part in parts):
        raise DeclarationError(
            f"quarantine= takes the name of a table, not {value!r}",
            where=where,
            next_step='write quarantine="schema.table"; a stream of messages also takes ematix.DEAD_LETTERS',
        )
    return str(value)


def _check(
    spec: ExpectationsSpec,
    on_fail: Any,
    on_quality_failure: Any,
    alert_on_quality_warn: bool,
    where: SourceLocation | None,
) -> None:
    given = {
        "on_fail": on_fail is not None,
        "on_quality_failure": on_quality_failure is not None,
        "alert_on_quality_warn": alert_on_quality_warn,
        "quarantine": spec.quarantine is not None or spec.to_dead_letters,
    }
    for option, is_given in given.items():
        if is_given and not spec:
            raise DeclarationError(
                f"{option}= works with expectations=, which is not set", where=where, next_step=_EXAMPLE
            )
    if given["quarantine"] and not spec.sets_aside:
        raise DeclarationError(
            "quarantine= names a place for failing rows, and no expectation sets rows aside",
            where=where,
            next_step='pass on_fail="quarantine", or use expect_or_drop(…)',
        )
    if alert_on_quality_warn and "warn" not in (spec.of_table, *(rule.action for rule in spec.rules)):
        raise DeclarationError(
            "alert_on_quality_warn= is about expectations that only warn, and none does",
            where=where,
            next_step="leave it out: rows that are set aside, and loads that fail, send alerts anyway",
        )
    labels = [rule.label for rule in spec.rules]
    for label in labels:
        if labels.count(label) > 1:
            raise DeclarationError(
                f"two expectations are called {label!r}",
                where=where,
                next_step="give one of them another name, with name=",
            )
