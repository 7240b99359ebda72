"""Expectations as frozen values: what must hold for the rows of a load, and what happens if it does not.

An assertion is a value of `ematix_probe.assertions`. Nothing here evaluates one: a target does, inside the
transaction that makes the rows visible.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_probe.assertions import (
    Assertion,
    Drift,
    ForeignKey,
    NotNull,
    RowCountChange,
    SchemaMatch,
    Unique,
    assertion_from_json,
)
from ematix_probe.redaction import mask
from ematix_probe.wording import share_of_rows

OnFail = Literal["fail", "warn", "quarantine"]
ON_FAIL: tuple[OnFail, ...] = get_args(OnFail)
Verdict = Literal["pass", "warn", "fail", "error"]

QUARANTINED_AT, QUARANTINED_BY, RULE, POSITION = "_quarantined_at", "_pipeline", "_rule", "_source_position"
QUARANTINE_BATCH = "_batch_id"
QUARANTINE_COLUMNS = (QUARANTINED_AT, QUARANTINED_BY, QUARANTINE_BATCH, RULE, POSITION)
QUARANTINE_SUFFIX = "__quarantine"
_LONGEST_VALUE = 200  # characters of a value in a sample


class DeadLetters(enum.Enum):
    """A value for ``quarantine=``, where a text is the name of a table."""

    DEAD_LETTERS = "dead_letters"

    def __repr__(self) -> str:
        return "ematix.DEAD_LETTERS"


DEAD_LETTERS = DeadLetters.DEAD_LETTERS


@dataclass(frozen=True)
class Expectation:
    """One rule. ``fail`` stops the load, ``quarantine`` sets the failing rows aside, ``warn`` loads them.

    ``alerts``: whether an alert is sent when the load succeeds although the rule fails.
    """

    assertion: Assertion
    action: OnFail
    alerts: bool = True

    @property
    def label(self) -> str:
        return self.assertion.label

    def to_json(self) -> dict[str, Any]:
        return {"assertion": self.assertion.to_json(), "action": self.action, "alerts": self.alerts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Expectation:
        return cls(assertion_from_json(value["assertion"]), value["action"], value["alerts"])


@dataclass(frozen=True)
class ExpectationsSpec:
    """The expectations of a pipeline as declared.

    ``of_table`` adds the rules that each target's declared table implies, with this action. ``quarantine`` is
    the table of the rows that are set aside, as ``schema.table``; None: next to each target. With
    ``to_dead_letters`` there is no such table: the message of each failing row becomes a dead letter.
    """

    rules: tuple[Expectation, ...] = ()
    of_table: OnFail | None = None
    quarantine: str | None = None
    to_dead_letters: bool = False

    def __bool__(self) -> bool:
        return bool(self.rules) or self.of_table is not None

    @property
    def sets_aside(self) -> bool:
        """Whether rows may be set aside, in a quarantine table or as dead letters."""
        return self.of_table == "quarantine" or any(rule.action == "quarantine" for rule in self.rules)

    def for_table(self, table: TableSpec, *, repeats_keys: bool = False) -> tuple[Expectation, ...]:
        """The rules for a target: the declared ones, and those that its table implies.

        ``repeats_keys``: a load may have several rows of a key, older and newer ones; none is unique then.
        """
        if self.of_table is None:
            return self.rules
        implied = tuple(
            Expectation(each, self.of_table)
            for each in assertions_of_table(table)
            if not (repeats_keys and isinstance(each, Unique))
        )
        return (*self.rules, *implied)

    def to_json(self) -> dict[str, Any]:
        return {
            "rules": [rule.to_json() for rule in self.rules],
            "of_table": self.of_table,
            "quarantine": self.quarantine,
            "to_dead_letters": self.to_dead_letters,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> ExpectationsSpec:
        if value is None:
            return cls()
        rules = tuple(Expectation.from_json(rule) for rule in value["rules"])
        return cls(rules, value["of_table"], value["quarantine"], value.get("to_dead_letters", False))


NO_EXPECTATIONS = ExpectationsSpec()


def assertions_of_table(table: TableSpec) -> tuple[Assertion, ...]:
    """What a declared table implies: not null where it is declared so, unique by each of its keys."""
    nulls = tuple(NotNull(c.name) for c in table.columns if not c.nullable or c.primary_key)
    groups = dict.fromkeys(key for key in (table.primary_key, *table.unique, *table.natural_keys) if key)
    return (*nulls, *(Unique(tuple(group)) for group in groups))


def refuse_unusable(assertion: Assertion, action: OnFail, where: SourceLocation | None) -> None:
    """Refuse an assertion that cannot be an expectation, or not with this action."""
    if isinstance(assertion, (Drift, RowCountChange)):
        raise DeclarationError(
            f"{assertion.label!r} compares with recorded runs, which the rows of one load do not have",
            where=where,
            next_step="put it into a data probe, and list the probe in transforms_post=",
        )
    if action == "quarantine" and not assertion.by_row:
        raise DeclarationError(
            f"{assertion.label!r} is about all rows of a load together, and has no single rows to set aside",
            where=where,
            next_step='give it the action "fail" or "warn", as in  expect_or_fail(…)',
        )


@dataclass(frozen=True)
class Gate:
    """The rules of one target's load, evaluated before its rows become visible.

    ``quarantine`` is the table for rows that are set aside; None if no rule does that, or if their messages
    become dead letters (``to_dead_letters``). With ``enforced`` False, failing rows are left out and nothing
    is judged: a rehearsal of a part of a batch.
    """

    rules: tuple[Expectation, ...]
    quarantine: TableSpec | None = None
    enforced: bool = True
    to_dead_letters: bool = False
    where: SourceLocation | None = field(default=None, compare=False)

    @property
    def sets_aside(self) -> bool:
        return self.quarantine is not None or self.to_dead_letters

    @property
    def set_aside_rules(self) -> tuple[Expectation, ...]:
        return tuple(rule for rule in self.rules if rule.action == "quarantine")

    @property
    def checked_columns(self) -> frozenset[str]:
        """Columns in which the gate lets no NULL pass, so that staging need not refuse NULL itself."""
        return frozenset(
            rule.assertion.column
            for rule in self.rules
            if isinstance(rule.assertion, NotNull)
            and rule.assertion.options.where is None
            and rule.action != "warn"
            and not (rule.action == "fail" and rule.assertion.options.tolerate)
        )


_TEXT = DataType("text")
_WHERE_FROM = (  # where each row in quarantine comes from
    ColumnSpec(QUARANTINED_AT, DataType("timestamp_tz")),
    ColumnSpec(QUARANTINED_BY, _TEXT),
    ColumnSpec(QUARANTINE_BATCH, DataType("uuid")),
    ColumnSpec(RULE, _TEXT),
    ColumnSpec(POSITION, _TEXT, nullable=True),
)


def quarantine_table(table: TableSpec, name: str | None) -> TableSpec:
    """The quarantine table of a target: its columns, all nullable, and where each row comes from."""
    values = tuple(replace(c, nullable=True, primary_key=False, normalizers=()) for c in table.columns)
    for column in _WHERE_FROM:
        if column.name in table.column_names:
            raise DeclarationError(
                f"{table.label} declares {column.name!r}, which its quarantine table needs for itself",
                next_step="give the column another name, with column_map= or AS in the source SQL",
            )
    named = named_quarantine(table.schema, table.name, name)
    return replace(named, columns=values + named.columns, where=table.where)


def named_quarantine(schema: str | None, table: str, name: str | None) -> TableSpec:
    """The quarantine table of a target of which only the name is known. ``name`` is the declared one."""
    own_schema, _, own_name = (name or "").rpartition(".")
    return TableSpec(own_schema or schema, own_name or table + QUARANTINE_SUFFIX, _WHERE_FROM, stamped=False)


def referenced_columns(assertion: Assertion) -> tuple[str, ...]:
    """The columns of the load that an assertion names, apart from those inside of SQL text."""
    if isinstance(assertion, SchemaMatch):
        return ()
    if isinstance(assertion, (Unique, ForeignKey)):
        return assertion.columns
    column = getattr(assertion, "column", None)
    return () if column is None else (column,)


@dataclass(frozen=True)
class ExpectationResult:
    """What one rule found in the rows of one load. ``samples`` are a few failing rows, values bounded.

    ``dead_letters``: the rows that were set aside are dead letters, not rows of a quarantine table.
    """

    rule: str
    kind: str
    action: OnFail
    verdict: Verdict
    message: str
    failing: int | None = None
    checked: int | None = None
    quarantined: int = 0
    samples: tuple[Mapping[str, Any], ...] = ()
    alerts: bool = False
    dead_letters: bool = False

    @property
    def share(self) -> float | None:
        if self.failing is None or self.checked is None:
            return None
        return self.failing / self.checked if self.checked else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "kind": self.kind,
            "action": self.action,
            "verdict": self.verdict,
            "message": self.message,
            "failing": self.failing,
            "checked": self.checked,
            "share": self.share,
            "quarantined": self.quarantined,
            "dead_letters": self.dead_letters,
            "samples": [dict(sample) for sample in self.samples],
            "alerts": self.alerts,
        }

    def __str__(self) -> str:
        counted = ""
        if self.failing is not None and self.checked is not None:
            counted = f": {share_of_rows(self.failing, self.checked)} fail"
        return f"{self.rule}{counted}" if counted else f"{self.rule}: {self.message}"


def bounded_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """A failing row for results and logs: values as JSON, long ones cut, passwords in URLs masked."""
    from ematix_probe.report import as_json

    def shown(value: Any) -> Any:
        value = as_json(value)
        if isinstance(value, (bool, int, float)) or value is None:
            return value
        text = mask(value if isinstance(value, str) else str(value))
        return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"

    return {str(name): shown(value) for name, value in row.items()}


def failed_results(results: Sequence[ExpectationResult]) -> tuple[ExpectationResult, ...]:
    return tuple(each for each in results if each.verdict != "pass")
