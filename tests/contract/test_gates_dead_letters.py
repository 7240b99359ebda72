"""Rows whose messages become dead letters: a database names them, and loads the rest afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.gated_target import MessagesFail
from ematix_flow.engine.planning.gates import plan_gate
from ematix_flow.errors import ExpectationFailed, Unsupported
from ematix_flow.spec.connections import Connection, DeltaLocalConnection, ObjectStoreLocalConnection
from ematix_flow.spec.expectations import Expectation, ExpectationsSpec, OnFail
from ematix_flow.spec.tables import MESSAGE
from ematix_flow.strategies.matching import Matching
from ematix_probe.tester import Tester
from tests.contract.gate_setup import DATABASES, ORDERS, GateTarget, connection_of


@pytest.fixture(params=DATABASES)
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    yield from connection_of(request)


@pytest.fixture
def target(connection: Connection) -> GateTarget:
    return GateTarget(connection)


def to_dead_letters(tolerate: float = 0.0, action: OnFail = "quarantine") -> ExpectationsSpec:
    tester = Tester()
    tester.expression("amount > 0", name="positive 'amount'", tolerate=tolerate)
    tester.column("email").regex("@", name="address")
    return ExpectationsSpec(
        tuple(Expectation(each, action) for each in tester.assertions), to_dead_letters=True
    )


def staged(*amounts: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "amount": amount, "email": "a@b" if amount < 90 else "a", MESSAGE: f"t/0/{n} 'x'"}
        for n, amount in enumerate(amounts)
    ]


def test_failing_rows_are_named_and_the_rest_is_loaded_without_them(target: GateTarget) -> None:
    rows = staged(1, -2, 3, 90, -90)
    with pytest.raises(MessagesFail) as raised:
        target.load(to_dead_letters(), rows, batch_key="one")
    failing = {
        "t/0/1 'x'": "positive 'amount'", "t/0/3 'x'": "address", "t/0/4 'x'": "positive 'amount'"
    }  # fmt: skip
    assert raised.value.rules == failing
    result = target.load(to_dead_letters(), rows, batch_key="one", dead_letters=failing)
    assert [row["id"] for row in target.rows()] == [0, 2]
    assert (result.rows.read, result.rows.inserted) == (5, 2)
    assert [(each.failing, each.quarantined, each.dead_letters) for each in result.expectations] == [
        (2, 2, True),
        (1, 1, True),
    ]
    assert target.load(to_dead_letters(), rows, batch_key="one").duplicate


def test_a_dead_letter_is_left_out_also_if_its_row_passes_now(target: GateTarget) -> None:
    """A rule that looks at another table may give another result the second time."""
    rows = staged(1, 2, 3)
    known = {"t/0/1 'x'": "positive 'amount'"}
    result = target.load(to_dead_letters(), rows, batch_key="one", dead_letters=known)
    assert [row["id"] for row in target.rows()] == [0, 2]
    assert [(each.failing, each.quarantined) for each in result.expectations] == [(0, 1), (0, 0)]


def test_rows_that_fail_only_the_second_time_are_named_too(target: GateTarget) -> None:
    rows = staged(1, -2, -3)
    with pytest.raises(MessagesFail) as raised:
        target.load(to_dead_letters(), rows, dead_letters={"t/0/1 'x'": "positive 'amount'"})
    assert raised.value.rules == {"t/0/2 'x'": "positive 'amount'"}
    assert target.target.inspect(ORDERS) is None or target.rows() == []


def test_more_failing_rows_than_are_tolerated_fail_the_batch_before_a_message_is_named(
    target: GateTarget,
) -> None:
    with pytest.raises(ExpectationFailed, match="3 of 5 rows fail"):
        target.load(to_dead_letters(tolerate=0.5), staged(1, -2, -3, -4, 5))


def test_a_load_without_failing_rows_names_no_message(target: GateTarget) -> None:
    assert target.load(to_dead_letters(), staged(1, 2, 3)).rows.inserted == 3


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_a_lake_and_files_are_refused(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    connection: Connection = (
        DeltaLocalConnection(name="lake", path=path)
        if kind == "delta"
        else ObjectStoreLocalConnection(name="files", path=path, format="parquet")
    )
    place = GateTarget(connection)
    with pytest.raises(Unsupported, match="does not tell from which message a failing row comes"):
        plan_gate(to_dead_letters(), ORDERS, Matching(), place.target, place.backend.kind, None)
