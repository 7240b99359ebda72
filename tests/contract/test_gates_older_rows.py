"""A stream that merges stages the older rows of each key: what the gate of a database makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ematix_flow.engine.planning.gates import plan_gate, refuse_lost_older_rows
from ematix_flow.errors import ExpectationFailed, Unsupported
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, OnFail
from ematix_flow.spec.tables import AGE
from ematix_probe.tester import Tester
from tests.contract.gate_setup import DATABASES, MATCHING, ORDERS, GateTarget, connection_of


@pytest.fixture(params=DATABASES)
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    yield from connection_of(request)


@pytest.fixture
def target(connection: Connection) -> GateTarget:
    return GateTarget(connection)


def rules(action: OnFail, *conditions: str) -> list[Expectation]:
    tester = Tester()
    for condition in conditions:
        tester.expression(condition, name=condition)
    return [Expectation(each, action) for each in tester.assertions]


def unique(*columns: str) -> Expectation:
    tester = Tester()
    tester.unique(columns, name="unique")
    return Expectation(tester.assertions[0], "quarantine")


def staged(*amounts: Sequence[int | None]) -> list[dict[str, Any]]:
    """Rows with the ids 1, 2 …; the amounts of each from its newest row to its oldest."""
    return [
        {"id": number, "amount": amount, "email": "a", AGE: age}
        for number, own in enumerate(amounts, start=1)
        for age, amount in enumerate(own)
    ]


def amounts(rows: list[dict[str, Any]]) -> dict[int, int | None]:
    return {row["id"]: row["amount"] for row in rows}


def test_the_newest_passing_row_of_each_key_is_loaded_and_the_newest_failing_one_set_aside(
    target: GateTarget,
) -> None:
    batch = staged([-1, 11, 12], [21], [-3, -2, 31, 30], [-5, -4], [41, -6])
    gate = [*rules("quarantine", "amount > 0"), unique("id")]
    for _ in range(2):  # into an empty table, and into one that has the rows
        result = target.load(gate, batch, "merge", stages_older=True)
        assert amounts(target.rows()) == {1: 11, 2: 21, 3: 31, 5: 41}
        assert amounts(target.quarantined()) == {1: -1, 3: -3, 4: -5}
    assert (result.rows.read, result.rows.unchanged, result.rows.written) == (7, 4, 0)
    assert [(each.failing, each.quarantined) for each in result.expectations] == [(3, 3), (0, 0)]


def test_an_older_row_that_takes_the_place_of_a_failing_one_must_pass_the_other_rules(
    target: GateTarget,
) -> None:
    gate = [*rules("quarantine", "amount > 0"), *rules("fail", "amount <> 11")]
    with pytest.raises(ExpectationFailed, match="amount <> 11: 1 of 2 rows fail"):
        target.load(gate, staged([-1, 11], [21]), "merge", stages_older=True)
    assert target.load(gate, staged([-1, 12, 11], [21]), "merge", stages_older=True).rows.inserted == 2


def test_a_unique_rule_of_other_columns_than_the_key_is_refused(target: GateTarget) -> None:
    spec = ExpectationsSpec((unique("email"),))
    gate = plan_gate(spec, ORDERS, MATCHING, target.target, target.backend.kind, None).gate
    assert gate is not None
    with pytest.raises(Unsupported, match="'unique' cannot set rows aside from a stream of messages"):
        refuse_lost_older_rows(gate, ORDERS, MATCHING, target.target, target.backend.kind)
