"""Reads ``[[expectations]]`` of a stream's TOML file, and writes expectations as TOML.

Each table is one rule: a condition as ``sql``, or a ``check`` of the probes' tester with its arguments.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import fields
from typing import Any

from ematix_flow.config.toml_table import TomlTable
from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.expectations import (
    DEAD_LETTERS,
    ON_FAIL,
    Expectation,
    ExpectationsSpec,
    refuse_unusable,
)
from ematix_probe.assertions import Assertion
from ematix_probe.errors import ProbeError

_OPTIONS = ("name", "tolerate", "where", "severity")
_OF_COLUMN = {  # a check of one column, and its further arguments
    "not_null": (),
    "between": ("low", "high"),
    "regex": ("pattern",),
    "is_in": ("values",),
    "freshness": ("within",),
    "percentile_between": ("p", "low", "high", "method"),
    "cardinality_between": ("low", "high"),
    "sum_between": ("low", "high"),
    "null_share": ("at_most", "at_least"),
}
_OF_TABLE = {
    "expression": ("sql",),
    "unique": ("columns",),
    "foreign_key": ("columns", "references", "referenced_columns"),
    "row_count": ("at_least", "at_most"),
    "table": (),
}
_RANGES = ("between", "percentile_between", "cardinality_between", "sum_between")  # one end may be open


def read_expectation_tables(top: TomlTable) -> list[Any] | str | None:
    """The value of ``expectations=`` of a file: its rules, or the text ``"table"``."""
    given = top.values.get("expectations")
    if given is None or isinstance(given, str):
        return given
    return [_read_rule(table) for table in top.tables("expectations") or []]


def read_quarantine(top: TomlTable) -> Any:
    """The name of a table, or ``{ dead_letters = true }``."""
    if str(top.values.get("quarantine")).lower() in ("dead_letters", "dead-letters", "ematix.dead_letters"):
        raise top.error(
            f"quarantine names a table, and {top.values['quarantine']!r} reads like dead letters",
            "quarantine",
            next_step="write  quarantine = { dead_letters = true }",
        )
    if not isinstance(top.values.get("quarantine"), dict):
        return top.values.get("quarantine")
    table = top.table("quarantine")
    assert table is not None
    table.refuse_unknown(("dead_letters",))
    if table.values.get("dead_letters") is not True:
        raise table.error("it says nothing", next_step="write  quarantine = { dead_letters = true }")
    return DEAD_LETTERS


def _read_rule(table: TomlTable) -> Assertion | Expectation | str:
    check = table.values.get("check", "expression")
    known = (*_OF_COLUMN, *_OF_TABLE)
    if check not in known:
        raise table.error(f"check={check!r} is unknown.{did_you_mean(str(check), known)}", "check")
    arguments = ("column", *_OF_COLUMN[check]) if check in _OF_COLUMN else _OF_TABLE[check]
    if check == "table":
        table.refuse_unknown(("check",))
        return "table"
    table.refuse_unknown(("check", "on_fail", *_OPTIONS, *arguments))
    assertion = _build(table, check, arguments)
    action = table.values.get("on_fail")
    if action is None:
        return assertion  # the action is that of the file
    for each in ON_FAIL:
        if action == each:
            refuse_unusable(assertion, each, table.where("on_fail"))
            return Expectation(assertion, each)
    raise table.error(f"on_fail={action!r} is unknown.{did_you_mean(str(action), ON_FAIL)}", "on_fail")


def _build(table: TomlTable, check: str, arguments: tuple[str, ...]) -> Assertion:
    """The assertion as the tester makes it, with the tester's own checks."""
    from ematix_probe.tester import Tester

    tester = Tester()
    wanted = {key: value for key, value in table.values.items() if key in (*arguments, *_OPTIONS)}
    if "sql" in wanted:
        wanted["sql"] = table.text("sql")
    if check in _RANGES:
        wanted = {"low": None, "high": None, **wanted}
    column = wanted.pop("column", None)
    needed = {"column": column} if check in _OF_COLUMN else {"sql": wanted.get("sql", "")}
    for key, value in needed.items():
        if value is None or (check == "expression" and not value):
            raise table.error(f"it has no {key}", next_step='write  sql = "amount > 0"  or  column and check')
    try:
        getattr(tester if column is None else tester.column(column), check)(**wanted)
    except ProbeError as error:
        raise table.error(error.what, next_step=error.next_step) from error
    except TypeError:
        missing = [key for key in arguments if key not in table.values]
        raise table.error(f"the check {check!r} needs {', '.join(missing)}") from None
    return tester.assertions[0]


def expectations_to_toml(spec: ExpectationsSpec) -> dict[str, Any]:
    """The keys of a file that declare these expectations."""
    found: dict[str, Any] = {}
    if spec.of_table is not None:
        found["on_fail"] = spec.of_table
    if spec.quarantine is not None:
        found["quarantine"] = spec.quarantine
    if spec.to_dead_letters:
        found["quarantine"] = {"dead_letters": True}
    if any(rule.action == "warn" and rule.alerts for rule in spec.rules):
        found["alert_on_quality_warn"] = True
    tables = [_rule_table(rule) for rule in spec.rules]
    if spec.of_table is not None:
        tables.append({"check": "table"})
    return {**found, "expectations": tables}


def _rule_table(rule: Expectation) -> dict[str, Any]:
    assertion, options = rule.assertion, rule.assertion.options
    if assertion.kind not in (*_OF_COLUMN, *_OF_TABLE):
        raise DeclarationError(
            f"the expectation {rule.label!r} cannot be written as TOML: no file declares {assertion.kind!r}"
        )
    given = {each.name: getattr(assertion, each.name) for each in fields(assertion) if each.name != "options"}
    given |= {"name": options.name, "where": options.where, "tolerate": options.tolerate or None}
    if options.severity != "fail":
        given["severity"] = options.severity
    check = {} if assertion.kind == "expression" else {"check": assertion.kind}
    values = {key: _toml_value(rule, value) for key, value in given.items() if value is not None}
    return {**check, **values, "on_fail": rule.action}


def _toml_value(rule: Expectation, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_toml_value(rule, each) for each in value]
    if isinstance(value, (bool, int, float, str, dt.date)):
        return value
    raise DeclarationError(f"the expectation {rule.label!r} cannot be written as TOML: it holds {value!r}")
