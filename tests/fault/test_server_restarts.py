"""PostgreSQL stops during a load and comes back: a clear error, no partial load, and an exact rerun."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import StagedRows
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import FlowError, TargetFailed
from ematix_flow.spec.connections import PostgresConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from tests.fault.databases import Database
from tests.fault.forked_runs import MODULE, run_here
from tests.fault.histories import BY_NAME, LOADS, History
from tests.services.postgres import PostgresServer, running_server

pytestmark = [pytest.mark.fault, pytest.mark.postgres]

WITHIN = ("apply.began", "apply.rows_written", "apply.ledger_written", "apply.before_commit")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that no other test uses."""
    with running_server() as own:
        yield own


@pytest.fixture
def history(server: PostgresServer, request: pytest.FixtureRequest, tmp_path: Path) -> History:
    load, path = request.param
    target = Database("postgres", server.url(server.create_database("target")))
    source = (
        target if path == "same_db" else Database("postgres", server.url(server.create_database("source")))
    )
    history = History(load, source, target)
    history.write_module(tmp_path)
    history.create()
    history.advance(0)
    run_here(tmp_path, history.slot(0))
    history.advance(1)
    return history


@pytest.mark.parametrize(
    ("history", "point", "crash"),
    [
        pytest.param(
            (load, path), point, crash, id=f"{load.name}-{path}-{point}-{'crash' if crash else 'stop'}"
        )
        for number, load in enumerate(LOADS)
        for crash in (True, False)
        # each load at one point with a crash and at another with an orderly stop, so that all have theirs
        for point in [WITHIN[(number + 2 * crash) % len(WITHIN)]]
        for path in [("same_db", "copy")[(number + crash) % 2]]
    ],
    indirect=["history"],
)
def test_a_server_restarted_in_mid_load_leaves_the_target_as_it_was_and_a_rerun_is_exact(
    history: History, server: PostgresServer, tmp_path: Path, point: str, crash: bool
) -> None:
    with (
        pytest.raises(TargetFailed) as raised,
        fault_points.inject(point, lambda: server.restart(crash=crash)),
    ):
        run_here(tmp_path, history.slot(1))
    assert "the connection to the target broke" in raised.value.what
    assert raised.value.state is not None
    assert "unchanged" in raised.value.state or "ledger" in raised.value.state
    assert raised.value.next_step is not None
    assert history.seen() == (1, history.must_hold(0))
    run_here(tmp_path, history.slot(1))
    assert history.seen() == (2, history.must_hold(1))


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "stop"])
@pytest.mark.parametrize("history", [(BY_NAME["merge_all"], "same_db")], indirect=True, ids=["merge"])
def test_a_server_restarted_in_mid_statement_leaves_the_target_as_it_was(
    history: History, server: PostgresServer, tmp_path: Path, crash: bool
) -> None:
    module = tmp_path / f"{MODULE}.py"
    quick = module.read_text()
    module.write_text(quick.replace("FROM state_now", "FROM state_now, pg_sleep(30)"))
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%INSERT%'"
    raised: list[FlowError] = []

    def load() -> None:
        try:
            run_here(tmp_path, history.slot(1))
        except FlowError as error:
            raised.append(error)

    # not the restart: a server ends with the thread that started it
    loading = threading.Thread(target=load)
    loading.start()
    deadline = time.monotonic() + 60
    while server.execute(sleeping) == [(0,)] and time.monotonic() < deadline:
        time.sleep(0.05)
    server.restart(crash=crash)
    loading.join()
    assert [type(error) for error in raised] == [TargetFailed], raised
    assert "the connection to the target broke" in raised[0].what
    assert history.seen() == (1, history.must_hold(0))
    module.write_text(quick)
    run_here(tmp_path, history.slot(1))
    assert history.seen() == (2, history.must_hold(1))


TABLE = TableSpec(
    "shop",
    "small",
    (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("v", DataType("integer"))),
)


@pytest.mark.parametrize("mode", ["append", "truncate"])
def test_staging_that_a_crash_of_the_server_emptied_is_noticed(server: PostgresServer, mode: str) -> None:
    import pyarrow as pa

    url = server.url(server.create_database("staging"))
    target = open_backend(PostgresConnection(name="target", url=url)).target()
    assert target is not None
    load_rows(target, new_load(TABLE), [{"id": 1, "v": 1}])
    load = new_load(TABLE, mode, allow_empty=True, max_shrink=1.0)
    staging = target.create_staging(load, TABLE.arrow_schema())
    rows = pa.RecordBatch.from_pylist([{"id": 2, "v": 2}], schema=TABLE.arrow_schema())
    part = staging.write("part", [rows])
    server.restart(crash=True)
    with pytest.raises(TargetFailed, match="holds 0 rows, and 1 were written to it"):
        target.apply(load, StagedRows(staging, (part,)))
    assert Database("postgres", url).snapshot("SELECT id, v FROM shop.small") == [[(1, 1)]]
    assert load_rows(target, new_load(TABLE, mode), [{"id": 2, "v": 2}]).rows.inserted == 1
