"""MySQL and MariaDB: urls without a database, names that begin with a space, what a failed load leaves."""

from __future__ import annotations

from typing import Any

import pytest

from ematix_flow.backends.base import BatchTarget
from ematix_flow.errors import FlowError
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import load_rows, new_load
from ematix_flow.testing.matched_loads import PATHS, load_matched, table_and_matching, table_of
from tests.contract.mysql_setup import FAMILY, backend_of, server_of
from tests.reading import read_table
from tests.services.mysql_server import MySQLServer

TABLE = table_of("people", {"id": DataType("big_int")}, {"name": DataType("text")})
LOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "append": ("append", {}),
    "truncate": ("truncate", {}),
    "merge": ("merge", {}),
    "merge that deletes": ("merge", {"deletes": "hard"}),
    "merge that marks": ("merge", {"deletes": "soft"}),
    "scd2": ("scd2", {}),
}


@pytest.fixture(params=FAMILY)
def server(request: pytest.FixtureRequest) -> MySQLServer:
    return server_of(request, request.param)


@pytest.fixture
def url(server: MySQLServer, request: pytest.FixtureRequest) -> Any:
    with server.own_database(request.node.name) as found:
        yield found


def people(*names: str, column: str = "name") -> list[dict[str, Any]]:
    return [{"id": number, column: name} for number, name in enumerate(names)]


def load_one(target: BatchTarget, table: TableSpec, what: str, path: str, rows: list[dict[str, Any]]) -> None:
    mode, options = LOADS[what]
    load_matched(target, table, mode, rows, path=path, load={"max_shrink": 1.0}, **options)


@pytest.mark.parametrize("what", LOADS)
def test_every_mode_loads_over_a_url_that_names_no_database(server: MySQLServer, url: str, what: str) -> None:
    backend = backend_of(server.url())
    for path in PATHS:
        table = TableSpec("contract", f"people_{path}", TABLE.columns)
        load_one(backend.target(), table, what, path, people("Ada", "Bob", "Cy"))
        if what not in ("append", "truncate"):
            load_one(backend.target(), table, what, path, people("Ada", "Bea"))
        second = "Bob" if what in ("append", "truncate") else "Bea"
        assert {row["name"] for row in read_table(backend, table)} >= {"Ada", second}


@pytest.mark.parametrize("what", ["append", "truncate", "merge", "scd2"])
@pytest.mark.parametrize("name", [" leads", "  two spaces", ' `odd` "name"'])
def test_a_column_that_begins_with_a_space_is_loaded(url: str, what: str, name: str) -> None:
    backend = backend_of(url)
    for path in PATHS:
        table = table_of(f"spaced_{path}", {" id": DataType("big_int")}, {name: DataType("text")})
        rows = [{" id": 1, name: "one"}, {" id": 2, name: None}]
        load_one(backend.target(), table, what, path, rows)
        found = [{key: row[key] for key in (" id", name)} for row in read_table(backend, table)]
        assert sorted(found, key=lambda row: row[" id"]) == rows


def test_an_error_after_a_change_of_the_table_says_which_changes_stay(url: str) -> None:
    target = backend_of(url).target()
    load_matched(target, TABLE, "merge", people("Ada", "Bob"))
    stored, matching = table_and_matching(TABLE, "scd2")
    changes = target.plan_table(stored, target.inspect(stored), matching)
    assert [c.action for c in changes.changes if c.action == "add_column"]
    load = new_load(stored, "scd2", matching=matching, table_plan=changes)
    twice = [*people("Ada", "Bea"), *people("Ann")]
    with pytest.raises(FlowError) as refused:
        load_rows(target, load, twice, change=False)
    live = target.inspect(stored)
    assert live is not None and "valid_from" in [c.name for c in live.columns]
    state = refused.value.state or ""
    assert "unchanged" not in state
    for change in changes.changes:
        if change.action == "add_column":
            assert f"add column {change.subject}" in state
    again = load_rows(target, new_load(stored, "scd2", matching=matching), people("Ada", "Bea"))
    assert again.rows.inserted == 1


def test_an_error_before_any_change_says_that_nothing_changed(url: str) -> None:
    target = backend_of(url).target()
    load_matched(target, TABLE, "merge", people("Ada", "Bob"))
    with pytest.raises(FlowError) as refused:
        load_matched(target, TABLE, "merge", [*people("Ada"), *people("Ann")])
    assert "unchanged" in (refused.value.state or "")
