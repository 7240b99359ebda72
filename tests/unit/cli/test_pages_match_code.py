"""The pages name every command, connection field, pipeline option, type and marker that there is."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from ematix_flow import ematix, normalize, types
from ematix_flow.cli.command_list import HIDDEN, command_names
from ematix_flow.connections import Connection, PostgresConnection
from ematix_flow.errors import FlowError
from ematix_flow.spec.connections.base import KINDS

DOCS = Path(__file__).resolve().parents[3] / "docs"
SAME_AS = {"mysql": "postgres", "delta_s3": "object_store_s3"}  # rows that refer to another


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_on_connections_names_every_field_of(kind):
    (row,) = re.findall(rf"^\| `{kind}` \|.*$", page("reference/connections.md"), re.M)
    assert f"`{KINDS[kind].__name__}`" in row
    if kind in SAME_AS:
        (row,) = re.findall(rf"^\| `{SAME_AS[kind]}` \|.*$", page("reference/connections.md"), re.M)
    shared = {field.name for field in fields(Connection)}
    named = set(re.findall(r"`(\w+)`", row))
    assert {field.name for field in fields(KINDS[kind])} - shared - named == set()


def test_mysql_has_the_fields_of_postgres():
    assert KINDS["mysql"].field_names() == PostgresConnection.field_names()


def test_the_page_on_pipelines_names_every_option():
    aliases = {"incremental_column", "continue_on_failure", "ttl"}
    options = set(inspect.signature(ematix.pipeline).parameters) - aliases
    assert {option for option in options if f"`{option}`" not in page("reference/pipelines.md")} == set()


def test_the_page_on_running_names_every_command():
    shown = set(command_names()) - set(HIDDEN)
    assert {name for name in shown if f"`flow {name}" not in page("how-to/running.md")} == set()


def test_the_page_on_running_names_every_exit_code():
    codes = {error.exit_code for error in _all_errors(FlowError)} | {0, 3}
    assert {code for code in codes if f"| {code} |" not in page("how-to/running.md")} == set()


def test_the_page_on_tables_names_every_type_and_marker():
    text = page("reference/tables.md")
    shown = set(re.findall(r"`(\w+)[`(\[]", text))
    declared = set(types.__all__) - {"Column", "ColumnType"}
    markers = {name for name in normalize.__all__ if name[0].islower()}
    rows = {"deduplicate_by", "filter_where", "limit", "sample_pct"}
    assert declared - shown == set()
    assert markers - rows - shown == set()


def _all_errors(kind: type[FlowError]) -> list[type[FlowError]]:
    return [kind, *(found for sub in kind.__subclasses__() for found in _all_errors(sub))]
