"""A PostgreSQL load that dies at any commit point is there as a whole or not at all."""

from __future__ import annotations

import uuid

import pytest

from ematix_flow import fault_points
from ematix_flow.errors import TargetFailed
from tests.contract.postgres_setup import (
    PIPELINE,
    TARGET,
    backend_of,
    load_rows,
    new_load,
    orders,
    sql,
    staged,
)
from tests.services.postgres import PostgresServer
from tests.services.shared import private_server

postgres = private_server("postgres")  # tests here stop it

BEFORE = ("apply.began", "apply.rows_written", "apply.ledger_written", "apply.before_commit")


@pytest.mark.fault
@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.parametrize("point", BEFORE)
def test_a_crash_before_the_commit_leaves_the_target_as_it_was(
    pg_database: str, point: str, mode: str
) -> None:
    backend = backend_of(pg_database)
    load_rows(backend, orders(), [{"id": 1}])
    load = new_load(orders(), mode)
    rows = staged(backend, load, [{"id": 2}, {"id": 3}])
    with (
        fault_points.inject(point, "crash"),
        pytest.raises(fault_points.InjectedCrash),
        backend.target().lock(PIPELINE, TARGET, load.run_id),
    ):
        backend.target().apply(load, rows)
    assert sql(pg_database, "SELECT id FROM shop.orders") == [(1,)]
    assert len(backend.target().ledger(PIPELINE, TARGET)) == 1
    with backend.target().lock(PIPELINE, TARGET, uuid.uuid4()):
        assert len(backend.target().sweep_staging(PIPELINE, TARGET)) == 1
        assert load_rows(backend, orders(), [{"id": 2}], mode).rows.inserted == 1


@pytest.mark.fault
def test_a_crash_after_the_commit_has_loaded_and_a_replay_knows(pg_database: str) -> None:
    backend = backend_of(pg_database)
    load_rows(backend, orders(), [{"id": 1}])
    load = new_load(orders(), batch_key="slot:1")
    rows = staged(backend, load, [{"id": 2}])
    with fault_points.inject("apply.after_commit", "crash"), pytest.raises(fault_points.InjectedCrash):
        backend.target().apply(load, rows)
    assert load_rows(backend, orders(), [{"id": 2}], batch_key="slot:1").duplicate
    assert sql(pg_database, "SELECT id FROM shop.orders ORDER BY id") == [(1,), (2,)]


@pytest.mark.fault
@pytest.mark.parametrize("point", BEFORE)
def test_a_server_that_goes_down_in_mid_load_leaves_the_target_as_it_was(
    pg_database: str, postgres: PostgresServer, point: str
) -> None:
    backend = backend_of(pg_database)
    load_rows(backend, orders(), [{"id": 1}])
    load = new_load(orders())
    rows = staged(backend, load, [{"id": 2}])
    with fault_points.inject(point, lambda: postgres.stop(crash=True)), pytest.raises(TargetFailed) as raised:
        backend.target().apply(load, rows)
    assert "broke" in str(raised.value)
    # once the commit was sent, only the ledger can tell
    asked_to_commit = point in ("apply.ledger_written", "apply.before_commit")
    assert ("ledger" if asked_to_commit else "unchanged") in str(raised.value)
    postgres.start()
    assert sql(pg_database, "SELECT id FROM shop.orders") == [(1,)]
