"""``flow secrets``: one reference, and all of a project."""

from __future__ import annotations

import json

import pytest

from ematix_flow.errors import CannotConnect
from ematix_flow.secrets import register_resolver, unregister_resolver

PROJECT = """
[run_log]
url = "sqlite://${LOG:-fallback.db}"

[connections.warehouse]
url = "postgres://etl:${store:db#password}@h/${DATABASE}"

[connections.stream]
kind = "kafka"
bootstrap_servers = "h:1"
sasl_plain_username = "u"
sasl_plain_password = "${store:db#password}"
properties = { "client.rack" = "${store:rack}" }
"""


@pytest.fixture
def store():
    """A secret store under ``${store:…}``; an exception as a value is raised."""
    values = {"db#password": "correct horse battery", "rack": "r1"}
    asked = []

    class Store:
        def resolve(self, reference):
            asked.append(reference)
            if isinstance(values[reference], Exception):
                raise values[reference]
            return values[reference]

    register_resolver("store", Store())
    yield values, asked
    unregister_resolver("store")


@pytest.mark.parametrize("reference", ["store:db#password", "${store:db#password}"])
def test_a_reference_that_is_there_shows_its_ends_and_its_length(flow, store, reference):
    done = flow("secrets", "test", reference)
    assert (done.code, done.out, done.err) == (0, "co…ry (21 chars)\n", "")


def test_a_short_value_shows_nothing_of_itself(flow, monkeypatch):
    monkeypatch.setenv("PIN", "4711")
    assert flow("secrets", "test", "PIN").out == "… (4 chars)\n"
    assert flow("secrets", "test", "PIN", "-o", "json").json["value"] == "… (4 chars)"


def test_the_whole_value_comes_only_when_it_is_asked_for(flow, store):
    assert flow("secrets", "test", "store:db#password", "--show").out == "correct horse battery\n"
    shown = flow("secrets", "test", "store:db#password", "--show", "-o", "json").json
    assert (shown["value"], shown["chars"]) == ("correct horse battery", 21)
    assert "horse" not in flow("secrets", "test", "store:db#password", "-o", "json").out


def test_a_reference_that_cannot_be_read_is_an_error_and_exit_code_1(flow, store):
    failed = flow("secrets", "test", "NOWHERE")
    assert (failed.code, failed.out) == (1, "")
    assert "the environment variable NOWHERE is not set" in failed.err
    assert "export NOWHERE=" in failed.err
    asked = flow("secrets", "test", "stroe:x", "--output", "json")
    assert (asked.code, asked.json["result"]) == (1, "failed")
    assert "Did you mean 'store'?" in asked.json["error"]["what"]


def test_every_reference_of_the_project_is_listed_with_its_users(flow, store, tmp_path, monkeypatch):
    (tmp_path / ".ematix-flow.toml").write_text(PROJECT)
    monkeypatch.setenv("DATABASE", "warehouse_of_today")
    listed = flow("secrets", "list", "-o", "json")
    assert listed.code == 0
    assert {use["reference"]: (use["used_by"], use["result"]) for use in listed.json} == {
        "store:db#password": (["stream.sasl_plain_password", "warehouse.url"], "ok"),
        "store:rack": (["stream.properties.client.rack"], "ok"),
        "DATABASE": (["warehouse.url"], "ok"),
        "LOG": (["[run_log] url"], "ok"),
    }
    assert "horse" not in listed.out


def test_one_that_fails_is_shown_and_the_others_too(flow, store, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text(PROJECT)
    failed = flow("secrets", "list")
    assert failed.code == 1
    assert "the environment variable DATABASE is not set" in failed.out
    assert "co…ry (21 chars)" in failed.out
    assert "flow secrets test 'DATABASE'" in failed.err


def test_a_store_that_does_not_answer_is_asked_once(flow, store, tmp_path):
    values, asked = store
    values.update({name: CannotConnect("the store does not answer") for name in values})
    (tmp_path / ".ematix-flow.toml").write_text(PROJECT)
    failed = flow("secrets", "list", "-o", "json")
    assert len(asked) == 1
    results = [json.dumps(use) for use in failed.json if use["reference"].startswith("store:")]
    assert len(results) == 2
    assert all("the store does not answer" in result for result in results)


def test_a_connection_that_cannot_be_built_is_named(flow, tmp_path):
    (tmp_path / ".ematix-flow.toml").write_text('[connections.raw]\nurl = "${vault:db#url}"')
    assert (
        "connection raw is left out: the kind of connection 'raw' is unknown" in flow("secrets", "list").err
    )


def test_a_setting_is_read_with_its_references_replaced(flow, project, monkeypatch):
    (project / ".ematix-flow.toml").write_text('[project]\nmodule = "${WHICH}"')
    failed = flow("list")
    assert failed.code == 2
    assert "[project] module in .ematix-flow.toml: the environment variable WHICH is not set" in failed.err
    monkeypatch.setenv("WHICH", "pipelines")
    assert "orders" in flow("list").out


def test_a_project_without_references_says_so(flow):
    assert "no connection and no setting contains a ${…} reference" in flow("secrets", "list").err
