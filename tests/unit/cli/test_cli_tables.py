"""Tables, pictures and styles as they reach a stream."""

from __future__ import annotations

import io
import sys

import pytest

from ematix_flow.cli.graph_drawing import draw_graph
from ematix_flow.cli.output import OutputColumn, render_table
from ematix_flow.cli.results import outcome_table, reason_for_table
from ematix_flow.cli.terminal import style_text
from ematix_flow.errors import LoadError
from ematix_flow.graph.registry import DeclaredPipeline, Registry
from ematix_flow.run.dag import PipelineOutcome
from ematix_flow.spec.pipelines import PipelineSpec, TargetSpec
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_columns_are_aligned_and_lines_have_no_trailing_space():
    table = render_table(
        (OutputColumn("name"), OutputColumn("rows", right=True)),
        [("a", 1), ("long", 1000)],
        stream=io.StringIO(),
    )
    assert table == "name  rows\na        1\nlong  1000"


def test_wide_characters_count_as_wide():
    table = render_table(
        (OutputColumn("name"), OutputColumn("x")), [("注文", 1), ("abcd", 2)], stream=io.StringIO()
    )
    assert table.splitlines()[1] == "注文  1"


def test_a_pipe_gets_lines_of_any_length():
    table = render_table((OutputColumn("reason", wraps=True),), [("word " * 100,)], stream=io.StringIO())
    assert len(table.splitlines()) == 2


def test_a_column_that_wraps_gives_way_in_a_terminal(terminal):
    rows = [("orders", "a reason that is longer than the terminal is wide")]
    lines = render_table(
        (OutputColumn("pipeline"), OutputColumn("reason", wraps=True)), rows, stream=terminal
    ).splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 30 + len("\x1b[1m\x1b[0m") for line in lines)


def test_a_status_has_its_colour_in_a_terminal_only(terminal):
    column = OutputColumn("status", style=lambda _: "red")
    assert "\x1b[31mfailed\x1b[0m" in render_table((column,), [("failed",)], stream=terminal)
    assert "\x1b" not in render_table((column,), [("failed",)], stream=io.StringIO())


def test_no_color_is_honoured(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert style_text("x", "bold red", terminal) == "x"


def test_secrets_in_cells_are_masked():
    table = render_table((OutputColumn("url"),), [("postgres://u:sesame-open@h/d",)], stream=io.StringIO())
    assert "sesame-open" not in table


def test_a_graph_is_drawn_below_the_first_upstream():
    upstreams = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ("c",), "e": ()}
    assert draw_graph(upstreams, {"a": "1 row"}) == [
        "a          1 row",
        "├─▶ b",
        "└─▶ c      also after b",
        "    └─▶ d",
        "e",
    ]


def test_reasons_stand_below_the_results_when_the_terminal_is_narrow(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    registry = Registry()
    target = TargetSpec("w", TableSpec("s", "t", (ColumnSpec("n", DataType("text")),)))
    for name in ("a", "b"):
        spec = PipelineSpec(name, "m:f", (target,))
        registry.add_pipeline(DeclaredPipeline(spec, print, None))
    outcomes = [
        PipelineOutcome("a", "failed", error=LoadError("a value of this column is longer than it may be")),
        PipelineOutcome("b", "not_run", reason="a failed, and b depends on it"),
    ]
    lines = outcome_table(outcomes, registry, stream=terminal).splitlines()
    assert "reason" not in lines[0]
    assert lines[-2:] == [
        "  a: a value of this column is longer than it may be",
        "  b: a failed, and b depends on it",
    ]
    assert outcome_table(outcomes, registry, stream=io.StringIO()).splitlines()[0].endswith("reason")


def test_an_error_that_the_screen_has_just_shown_is_not_repeated_in_the_table(monkeypatch):
    failure = LoadError("a value is too long")
    outcome = PipelineOutcome("a", "failed", error=failure, reason=f"attempt 1 of 2 failed: {failure.what}")
    assert reason_for_table(outcome) == outcome.reason
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert reason_for_table(outcome) == outcome.reason  # the error went elsewhere
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert reason_for_table(outcome) == "attempt 1 of 2 failed"
    assert reason_for_table(PipelineOutcome("b", "not_run", reason="a failed")) == "a failed"
