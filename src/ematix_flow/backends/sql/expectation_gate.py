"""The expectation gate of a database: checks the rows of a load inside its transaction, and sets failing ones
aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import Load
from ematix_flow.backends.gated_target import MessagesFail
from ematix_flow.backends.sql.database import SqlDatabase
from ematix_flow.backends.sql.older_rows import OLDER_TABLE, add_older, older_rows, rules_of_older
from ematix_flow.backends.sql.quarantine import (
    BATCH_TABLE,
    GATED_TABLE,
    delete_read_again,
    delete_superseded,
    fail_messages,
    failing_counts,
    failing_messages,
    fill_gated,
    insert_quarantined,
    passing_select,
    select_any,
)
from ematix_flow.backends.sql.rule_checks import CheckedRows, check_rows, column_infos, diagnose
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.errors import CannotConnect, ExpectationFailed, FlowError, LoadError
from ematix_flow.spec.expectations import POSITION, Expectation, ExpectationResult, Gate
from ematix_flow.spec.tables import AGE, MESSAGE
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.sql import column

_MOST_DEAD_LETTERS = 100_000  # of one batch: this process holds what identifies them
_NAMED_AT_ONCE = 500  # messages in one statement


class RulesRefused(Exception):
    """The database refused to evaluate the rules. The transaction may be of no use any more."""

    def __init__(self, error: FlowError) -> None:
        super().__init__(error.what)
        self.error = error


@dataclass(frozen=True)
class ExpectationGate:
    """The gate of one load on one open session. ``rows`` yields the rows of the load outside of it too.

    ``with_older`` also yields the older rows of each key, if they are staged; ``with_messages`` yields the
    rows with the message that each comes from. ``with_samples``: whether failing rows are read to be shown.
    """

    database: SqlDatabase
    session: SqlSession
    load: Load
    rows: exp.Expr
    work: Mapping[str, exp.Table]
    replayed: bool = False  # rows of the quarantine table, which have a source position
    with_older: exp.Expr | None = None
    with_messages: exp.Expr | None = None
    with_samples: bool = True

    def check(self, select: exp.Expr) -> CheckedRows:
        """Evaluate the rules on ``select``, and divide the rows.

        Raises ExpectationFailed or RulesRefused, or MessagesFail for rows whose messages have to become dead
        letters first, or SamplesRefused.
        """
        gate = self.load.plan.gate
        if gate is None or not gate.rules:
            return CheckedRows(select)
        try:
            results = self._evaluate(gate, select)
        except (ExpectationFailed, CannotConnect):
            raise
        except FlowError as error:
            raise RulesRefused(error) from error
        failing = any(each.failing for each in results if each.action == "quarantine")
        if not gate.sets_aside or not (failing or self.load.dead_letters):
            return CheckedRows(select, 0, results)
        gated = self.work[GATED_TABLE]
        names = list(self.load.table.column_names)
        if self.replayed:  # the rows keep the source position that they had
            names.append(POSITION)
            select = exp.select(*[column(n) for n in names]).from_(self.work[BATCH_TABLE].copy())
        if self.with_messages is not None:
            names.append(MESSAGE)
            select = self.with_messages
        self._execute(self._fill(gate, names, select, gated))
        if gate.to_dead_letters:
            self._leave_out_dead_letters(gated)
        counts = {str(rule): int(n) for rule, n in self.session.fetch(self._render(failing_counts(gated)))}
        results = tuple(
            replace(each, quarantined=counts.get(each.rule, 0), dead_letters=gate.to_dead_letters)
            if each.action == "quarantine"
            else each
            for each in results
        )
        passing = passing_select(self.load.table, gated)
        older = self._add_older(gate, gated)
        if older:
            results = self._check_others(gate, passing, results)
        return CheckedRows(passing, sum(counts.values()), results, older)

    def _leave_out_dead_letters(self, gated: exp.Table) -> None:
        """Make rows of dead letters fail, also if they pass now. Raises MessagesFail for further ones.

        A rehearsal only leaves its failing rows out.
        """
        known, label = self.load.dead_letters, self.load.table.label
        found = self.session.fetch(self._render(failing_messages(gated, _MOST_DEAD_LETTERS + 1)))
        failing = {str(message): str(rule) for message, rule in found}
        new = {message: rule for message, rule in failing.items() if message not in known}
        if new and not self.load.dry_run:
            if len(found) > _MOST_DEAD_LETTERS:
                raise LoadError(
                    f"more than {_MOST_DEAD_LETTERS:,} messages of one batch fail expectations of {label}",
                    state=f"nothing was loaded; {label} is unchanged",
                    next_step="max_rows_per_batch= divides the batch; a quarantine table has no such limit",
                )
            raise MessagesFail(new, label)
        passing: dict[str, list[str]] = {}
        for message, rule in known.items():
            if message not in failing:
                passing.setdefault(rule, []).append(message)
        for rule, messages in passing.items():
            for start in range(0, len(messages), _NAMED_AT_ONCE):
                some = messages[start : start + _NAMED_AT_ONCE]
                self._execute(fail_messages(some, rule, gated, self.database.dialect))

    def _fill(self, gate: Gate, names: Sequence[str], rows: exp.Expr, into: exp.Table) -> exp.Insert:
        """INSERT of the rows with the first rule that each fails."""
        dialect = self.database.dialect
        columns = column_infos(self.load.table.columns, dialect)
        return fill_gated(gate, names, columns, dialect, _as_query(rows), self._reference, into)

    def _add_older(self, gate: Gate, gated: exp.Table) -> int:
        """Let the newest passing row of each key pass whose newest row fails. Returns how many there are."""
        if self.with_older is None:
            return 0
        older = self.work[OLDER_TABLE]
        rows = older_rows(self.load, self.with_older, gated)
        names = [*self.load.table.column_names, AGE]
        if not self._execute(self._fill(rules_of_older(gate), names, rows, older)):
            return 0
        return self._execute(add_older(self.load, self.database.dialect, older, gated))

    def _check_others(
        self, gate: Gate, passing: exp.Expr, results: tuple[ExpectationResult, ...]
    ) -> tuple[ExpectationResult, ...]:
        """Evaluate the rules that set nothing aside again, on the rows that are loaded."""
        others = tuple(rule for rule in gate.rules if rule.action != "quarantine")
        if not others:
            return results
        again = {each.rule: each for each in self._evaluate(replace(gate, rules=others), passing)}
        return tuple(again.get(each.rule, each) for each in results)

    def set_aside(self, select: exp.Expr, checked: CheckedRows, high: Watermark | None) -> None:
        """Write the failing rows that `check` found in ``select`` to the quarantine table."""
        gate = self.load.plan.gate
        if gate is None:
            return
        fault_points.point("gate.checked")
        if gate.quarantine is None:
            return
        gone = delete_read_again(self.load, gate, self.database.dialect)
        if gone is not None:
            self._execute(gone)
        older = delete_superseded(self.load, gate, self.database.dialect, _as_query(select))
        if older is not None and not self.replayed:
            one = select_any(older, self.load.pipeline, self.database.dialect)
            if self.session.fetch(self._render(one)):
                self._execute(older)
        if checked.quarantined:
            gated = self.work[GATED_TABLE]
            dialect, replayed = self.database.dialect, self.replayed
            self._execute(insert_quarantined(self.load, gate, dialect, gated, high, replayed=replayed))
            fault_points.point("gate.quarantined")

    def diagnose(self, error: FlowError) -> FlowError:
        """The error that names the rules that the database refuses; ``error`` if it refuses none."""
        gate = self.load.plan.gate
        assert gate is not None
        try:
            self.session.fetch("SELECT 1")
        except FlowError:
            return error  # the session is lost, and no rule is to blame
        return diagnose(gate, error, self._run_alone, self.load)

    def _run_alone(self, rule: Expectation) -> None:
        gate = self.load.plan.gate
        assert gate is not None
        self.session.begin()
        try:
            self._evaluate(replace(gate, rules=(rule,), enforced=False), self.rows)
        finally:
            self.session.rollback()

    def _evaluate(self, gate: Gate, select: exp.Expr) -> tuple[ExpectationResult, ...]:
        dialect = self.database.dialect
        columns = column_infos(self.load.table.columns, dialect)
        return check_rows(
            gate,
            self.load,
            columns,
            dialect.name,
            _as_query(select),
            self._reference,
            self.session.fetch,
            self.session.fetch_samples if self.with_samples else None,
        )

    def _reference(self, table: str) -> exp.Query | exp.Table:
        schema, _, name = table.rpartition(".")
        return self.database.dialect.table(schema or None, name)

    def _execute(self, statement: exp.Expr) -> int:
        return self.session.execute(self._render(statement))

    def _render(self, statement: exp.Expr) -> str:
        return self.database.dialect.render(statement)


def _as_query(select: exp.Expr) -> exp.Query:
    assert isinstance(select, exp.Query)
    return select
