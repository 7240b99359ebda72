"""``flow maintain`` as far as no table is touched: what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

LAKES = """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.connection
class lake:
    kind = "delta_local"
    path = "lake"

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Orders, source_connection="shop", target_connection="lake")
def orders(conn):
    return "SELECT order_id FROM orders"

@ematix.pipeline(target=Orders, target_connection="shop")
def copies(conn):
    return "SELECT order_id FROM orders"
"""


@pytest.fixture
def lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lake_pipelines.py").write_text(LAKES, encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "lake_pipelines")
    return tmp_path


def test_a_short_retention_is_refused_before_anything_is_loaded(flow, lakes):
    done = flow("maintain", "orders", "--retain", "36h")
    assert done.code == 2
    assert "36 hours only, and not for 7 days" in done.err
    assert "--force" in done.err


@pytest.mark.parametrize("text", ["soon", "7", "-1d", "1.5h"])
def test_a_retention_that_is_no_duration_is_refused(flow, lakes, text):
    done = flow("maintain", "orders", f"--retain={text}")
    assert done.code == 2
    assert "is not a duration" in done.err


def test_a_pipeline_that_loads_no_lake_is_refused_with_what_it_loads(flow, lakes):
    done = flow("maintain", "copies")
    assert done.code == 2
    assert "loads no lake table, only shop:sales.orders (sqlite)" in done.err


def test_an_unknown_name_gets_the_one_that_was_meant(flow, lakes):
    done = flow("maintain", "order")
    assert done.code == 2
    assert "Did you mean 'orders'?" in done.err


def test_names_or_all_must_be_given(flow, lakes):
    assert flow("maintain").code == 2
    assert flow("maintain", "orders", "--all").code == 2


def test_a_module_without_lakes_has_nothing_to_maintain(flow, project):
    settings = [
        f'[connections.{name}]\nkind = "sqlite"\npath = "{name}.db"\n' for name in ("shop", "warehouse")
    ]
    (project / ".ematix-flow.toml").write_text("".join(settings))
    done = flow("maintain", "--all", "--module", "pipelines")
    assert (done.code, done.out) == (0, "")
    assert "no pipeline of the module loads a lake table" in done.err
    assert flow("maintain", "--all", "--module", "pipelines", "--output", "json").json == []


def test_a_connection_that_cannot_be_opened_fails_its_pipeline(flow, project):
    done = flow("maintain", "--all", "--module", "pipelines", "--output", "json")
    assert done.code == 1
    assert {outcome["error"]["type"] for outcome in done.json} == {"UnknownConnection"}
