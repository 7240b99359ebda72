"""``flow connections``: what is known, where it comes from, and that no secret is shown."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

SECRET = "s3same-0pen"


def test_the_list_shows_the_winner_and_what_it_hides(flow, tmp_path, monkeypatch):
    (tmp_path / ".ematix-flow.toml").write_text(
        f'[connections.warehouse]\nurl = "postgres://etl:{SECRET}@file/db"\n'
    )
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", f"postgres://etl:{SECRET}@env/db")
    shown = flow("connections", "list")
    assert shown.code == 0
    row = shown.out.splitlines()[1]
    assert row.split() == [
        "warehouse",
        "postgres",
        "postgres://etl:***@env/db",
        "env",
        "EMATIX_FLOW_DSN_WAREHOUSE",
        ".ematix-flow.toml:1",
    ]
    assert SECRET not in shown.out + shown.err


def test_connections_that_the_module_declares_are_listed(flow, tmp_path):
    (tmp_path / "declares.py").write_text(
        "from ematix_flow import ematix\n"
        "@ematix.connection\nclass lake:\n    kind = 'object_store_local'\n    path = 'lake'\n"
    )
    (listed,) = flow("connections", "list", "-m", "declares", "-o", "json").json
    assert (listed["name"], listed["kind"]) == ("lake", "object_store_local")
    assert listed["origin"]["label"].startswith("declares.py:")


def test_no_connection_says_how_to_define_one(flow):
    shown = flow("connections", "list")
    assert shown.code == 0
    assert "flow connections set NAME url=" in shown.err


def test_a_definition_that_cannot_be_used_shows_its_problem(flow, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text('[connections.x]\nkind = "postgress"\n')
    assert "postgress" in flow("connections", "list").out


@pytest.mark.parametrize(
    "arguments",
    [
        ["warehouse", f"url=postgres://etl:{SECRET}@host/db"],
        [f"warehouse=postgres://etl:{SECRET}@host/db"],
    ],
)
def test_a_connection_is_set_in_both_forms_and_the_secret_is_not_echoed(flow, arguments):
    done = flow("connections", "set", *arguments)
    assert done.code == 0
    assert SECRET not in done.out + done.err
    written = Path.home() / ".ematix-flow" / "connections.toml"
    assert SECRET in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o600
    assert "postgres://etl:***@host/db" in flow("connections", "list").out


def test_a_connection_from_the_environment_keeps_the_reference(flow, monkeypatch):
    monkeypatch.setenv("WAREHOUSE_URL", f"postgres://etl:{SECRET}@host/db")
    assert flow("connections", "set", "warehouse", "--from-env", "WAREHOUSE_URL").code == 0
    assert 'url = "${WAREHOUSE_URL}"' in (Path.home() / ".ematix-flow" / "connections.toml").read_text()


def test_a_variable_that_is_not_set_is_warned_about(flow):
    assert "NOT_THERE is not set" in flow("connections", "set", "x", "--from-env", "NOT_THERE").err


@pytest.mark.parametrize("arguments", [[], ["warehouse"], [f"postgres://etl:{SECRET}@host/db"]])
def test_a_wrong_form_shows_the_right_one_and_no_secret(flow, arguments):
    failed = flow("connections", "set", *arguments)
    assert failed.code == 2
    assert "flow connections set NAME url=…" in failed.err
    assert SECRET not in failed.err


def test_a_connection_that_answers_is_ok(flow, tmp_path):
    sqlite3.connect(tmp_path / "shop.db").close()
    (tmp_path / "shop.db").touch()
    (tmp_path / ".ematix-flow.toml").write_text('[connections.shop]\nkind = "sqlite"\npath = "shop.db"\n')
    checked = flow("connections", "check", "shop")
    assert checked.code == 0
    assert checked.out.splitlines()[1].split()[:2] == ["shop", "ok"]


def test_a_connection_that_does_not_answer_ends_with_5(flow, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text(
        '[connections.shop]\nkind = "sqlite"\npath = "not_there/shop.db"\n'
    )
    checked = flow("connections", "check", "--all")
    assert checked.code == 5
    assert checked.out.splitlines()[1].split()[:2] == ["shop", "failed"]
    assert checked.err.startswith("error: connection 'shop'")


def test_an_unknown_connection_gets_a_suggestion(flow, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text('[connections.shop]\nkind = "sqlite"\npath = "shop.db"\n')
    failed = flow("connections", "check", "shopp")
    assert failed.code == 2
    assert "Did you mean 'shop'?" in failed.err


def test_check_needs_names_or_all(flow):
    assert flow("connections", "check").code == 2
