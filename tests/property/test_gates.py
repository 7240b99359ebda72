"""Gates against a short model: random rows, rules and actions, repeated batches and replays.

After every step the target and its quarantine table hold what the model says, row by row.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow import PostgresConnection, SQLiteConnection
from ematix_flow.backends.base import QuarantinedRows, QuarantineFilter
from ematix_flow.backends.registry import open_backend
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.errors import ExpectationFailed
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, Gate, OnFail, quarantine_table
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.matching import Matching
from ematix_flow.testing.loads import load_rows, new_load
from ematix_probe.tester import Tester
from tests.reading import read_table

pytestmark = pytest.mark.timeout(3_600)

Row = tuple[int, int | None, str | None]
NAMES = ("id", "amount", "mail")
COLUMNS = (
    ColumnSpec("id", DataType("big_int")),
    ColumnSpec("amount", DataType("integer"), nullable=True),
    ColumnSpec("mail", DataType("text"), nullable=True),
)
TEXT = ColumnSpec("_rule", DataType("text"))


def repeated(rows: Sequence[Row]) -> set[int]:
    return {id for id, count in Counter(row[0] for row in rows).items() if count > 1}


# by name: the assertion, and the rows that fail it
RULES: dict[str, tuple[Callable[..., Any], Callable[[Sequence[Row]], list[bool]]]] = {
    "positive": (
        lambda t, **o: t.expression("amount > 0", name="positive", **o),
        lambda rows: [row[1] is not None and row[1] <= 0 for row in rows],
    ),
    "known": (
        lambda t, **o: t.column("amount").not_null(name="known", **o),
        lambda rows: [row[1] is None for row in rows],
    ),
    "mail": (
        lambda t, **o: t.column("mail").is_in(["a", "é", "it's"], name="mail", **o),
        lambda rows: [row[2] is not None and row[2] not in ("a", "é", "it's") for row in rows],
    ),
    "once": (
        lambda t, **o: t.unique(["id"], name="once", **o),
        lambda rows: [row[0] in repeated(rows) for row in rows],
    ),
    "short": (
        lambda t, **o: t.column("mail").regex("^.{0,2}$", name="short", **o),
        lambda rows: [row[2] is not None and len(row[2]) > 2 for row in rows],
    ),
}


@dataclass(frozen=True)
class Rule:
    name: str
    action: OnFail
    tolerate: float = 0.0

    @property
    def expectation(self) -> Expectation:
        tester = Tester()
        RULES[self.name][0](tester, **({"tolerate": self.tolerate} if self.tolerate else {}))
        return Expectation(tester.assertions[0], self.action)


@dataclass(frozen=True)
class Step:
    """A load of rows, the load of an earlier batch once more, or a replay of the rows of a rule or of all."""

    kind: str
    rows: tuple[Row, ...] = ()
    rules: tuple[Rule, ...] = ()
    mode: Any = "append"
    rule: str | None = None


rows_of_a_batch = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.sampled_from([None, -1, 0, 1, 5]),
        st.sampled_from([None, "a", "é", "it's", "b", "", "abc"]),
    ),
    max_size=8,
).map(tuple)


@st.composite
def rule_sets(draw: st.DrawFn) -> tuple[Rule, ...]:
    names = draw(st.lists(st.sampled_from(sorted(RULES)), unique=True, max_size=4))
    rules = []
    for name in names:
        action = draw(st.sampled_from(["quarantine", "quarantine", "warn", "fail"]))
        tolerate = draw(st.sampled_from([0.0, 0.0, 0.5])) if name == "known" else 0.0
        rules.append(Rule(name, action, tolerate))
    return tuple(rules)


loads = st.builds(
    Step,
    st.just("load"),
    rows_of_a_batch,
    rule_sets(),
    st.sampled_from(["append", "append", "append", "truncate"]),
)
replays = st.builds(
    Step,
    st.just("replay"),
    rules=rule_sets(),
    rule=st.sampled_from([None, *sorted(RULES)]),
)
histories = st.lists(
    st.one_of(loads, loads, replays, st.builds(Step, st.just("again"))), min_size=1, max_size=6
)


@dataclass
class Model:
    """What the target and the quarantine table must hold."""

    loaded: list[Row] = field(default_factory=list)
    aside: list[tuple[Row, str]] = field(default_factory=list)

    def check(
        self, rows: Sequence[Row], rules: Sequence[Rule]
    ) -> tuple[list[Row], list[tuple[Row, str]]] | None:
        """The rows that pass and those that are set aside; None if the load fails."""
        failing = {rule.name: RULES[rule.name][1](rows) for rule in rules}
        for rule in rules:
            share = sum(failing[rule.name]) / len(rows) if rows else 0.0
            if share > rule.tolerate and (
                rule.action == "fail" or (rule.action == "quarantine" and rule.tolerate)
            ):
                return None
        first = [
            next((r.name for r in rules if r.action == "quarantine" and failing[r.name][n]), None)
            for n in range(len(rows))
        ]
        passing = [row for row, name in zip(rows, first, strict=True) if name is None]
        return passing, [(row, name) for row, name in zip(rows, first, strict=True) if name is not None]

    def load(self, step: Step) -> bool:
        found = self.check(step.rows, step.rules)
        if found is None:
            return False
        if step.mode == "truncate":
            self.loaded = []
            if any(rule.action == "quarantine" for rule in step.rules):
                self.aside = []
        self.loaded += found[0]
        self.aside += found[1]
        return True

    def replay(self, step: Step) -> bool:
        chosen = [each for each in self.aside if step.rule in (None, each[1])]
        found = self.check([row for row, _ in chosen], step.rules)
        if found is None:
            return False
        for each in chosen:
            self.aside.remove(each)
        self.loaded += found[0]
        self.aside += found[1]
        return True


class Driven:
    """The same steps on a database, into a separate table."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.backend = open_backend(connection)
        target = self.backend.target()
        assert target is not None
        self.target, self.table = target, TableSpec("shop", name, COLUMNS)
        self.quarantine = quarantine_table(self.table, None)
        target.change_table(self.table, target.plan_table(self.table, None))
        target.change_table(self.quarantine, target.plan_table(self.quarantine, None))

    def gate(self, rules: Sequence[Rule]) -> Gate | None:
        spec = ExpectationsSpec(tuple(rule.expectation for rule in rules))
        return plan_gate(spec, self.table, Matching(), self.target, self.backend.kind, None).gate

    def load(self, step: Step, key: str) -> Any:
        load = new_load(
            self.table,
            step.mode,
            gate=self.gate(step.rules),
            allow_empty=True,
            max_shrink=1.0,
            batch_key=key,
            target=self.table.label,
        )
        return load_rows(
            self.target, load, [dict(zip(NAMES, row, strict=True)) for row in step.rows], change=False
        )

    def replay(self, step: Step) -> Any:
        gate = replace(self.gate(step.rules) or Gate(()), quarantine=self.quarantine)
        load = new_load(self.table, gate=gate, target=self.table.label)
        return self.target.apply(
            load, QuarantinedRows(self.quarantine, QuarantineFilter(load.pipeline, step.rule))
        )

    def state(self) -> tuple[Counter[Any], Counter[Any]]:
        loaded = [tuple(row[n] for n in NAMES) for row in read_table(self.backend, self.table)]
        wanted = replace(self.quarantine, columns=(*(replace(c, nullable=True) for c in COLUMNS), TEXT))
        aside = [(tuple(row[n] for n in NAMES), row["_rule"]) for row in read_table(self.backend, wanted)]
        return Counter(loaded), Counter(aside)


def compare(driven: Driven, history: Sequence[Step]) -> None:
    model = Model()
    last: tuple[Step, str] | None = None  # the last load that has committed, and its batch key
    for number, step in enumerate(history):
        if step.kind == "again":
            if last is not None:
                assert driven.load(*last).duplicate
        else:
            succeeds = model.load(step) if step.kind == "load" else model.replay(step)
            try:
                if step.kind == "load":
                    driven.load(step, f"run:{number}")
                    last = step, f"run:{number}"
                else:
                    driven.replay(step)
            except ExpectationFailed:
                assert not succeeds, step
            else:
                assert succeeds, step
        assert driven.state() == (Counter(model.loaded), Counter(model.aside)), step


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory if possible: these tests are not about disks."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


_numbers = iter(range(1_000_000))


def run_in_sqlite(folder: Path, history: Sequence[Step]) -> None:
    path = folder / f"{next(_numbers)}.db"
    compare(Driven(SQLiteConnection(name="db", path=str(path)), "orders"), history)
    path.unlink()


@examples(100)
@given(histories)
def test_target_and_quarantine_hold_what_the_model_says(folder: Path, history: list[Step]) -> None:
    run_in_sqlite(folder, history)


@pytest.mark.long
@examples(3_000)
@given(histories)
def test_target_and_quarantine_hold_what_the_model_says_in_thousands_of_histories(
    folder: Path, history: list[Step]
) -> None:
    run_in_sqlite(folder, history)


@pytest.mark.long
def test_target_and_quarantine_in_postgres_hold_what_the_model_says(pg_database: str) -> None:
    connection = PostgresConnection(name="db", url=pg_database)

    @examples(300)
    @given(histories)
    def check(history: list[Step]) -> None:
        compare(Driven(connection, f"orders{next(_numbers)}"), history)

    check()
