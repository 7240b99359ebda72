"""Generated command lines over a small project: carried out, or refused with a helpful error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given

from tests.property.fuzzed_commands import command_lines
from tests.property.fuzzed_declarations import GOOD
from tests.property.fuzzed_project import call_flow, require_a_clear_end, seed_and_secret
from tests.property.fuzzed_values import more, seeded

__all__ = ["seed_and_secret"]  # a fixture

SETTINGS = '[project]\nmodule = "project"\n'


def require_carried_out_or_refused(base: Path, arguments: list[str]) -> None:
    files = {"project.py": GOOD, ".ematix-flow.toml": SETTINGS}
    called = call_flow(base, arguments, files, [(1, "x")], "orders")
    require_a_clear_end(called)
    if called.rows:
        assert [row[:2] for row in called.rows] == [(1, "x")], called


@seeded(200)
@given(arguments=command_lines())
@example(arguments=["plan", "tag:x"])
@example(arguments=["plan", "load", "--exclude", "load"])
def test_a_generated_command_line_is_carried_out_or_refused(tmp_path: Path, arguments: list[str]) -> None:
    require_carried_out_or_refused(tmp_path, arguments)


@seeded(200)
@given(arguments=command_lines(most=6))
def test_a_generated_command_line_of_many_options_is_carried_out_or_refused(
    tmp_path: Path, arguments: list[str]
) -> None:
    require_carried_out_or_refused(tmp_path, arguments)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@more(10_000)
@given(arguments=command_lines(most=6))
def test_many_generated_command_lines_are_carried_out_or_refused(
    tmp_path: Path, arguments: list[str]
) -> None:
    require_carried_out_or_refused(tmp_path, arguments)
