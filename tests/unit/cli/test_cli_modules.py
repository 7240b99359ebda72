"""Which module a command reads, and ``flow list``."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import PIPELINES


def test_a_missing_module_lists_the_python_files_here(flow, project):
    failed = flow("list")
    assert failed.code == 2
    assert "state: Python files here: pipelines.py" in failed.err
    assert 'give --module pipelines.py, or write  [project] module = "pipelines"' in failed.err


def test_an_unknown_module_gets_a_suggestion(flow, project):
    failed = flow("list", "--module", "pipeline")
    assert failed.code == 2
    assert "Did you mean 'pipelines'?" in failed.err


def test_a_module_may_be_a_path(flow, project):
    (project / "jobs").mkdir()
    (project / "jobs" / "nightly.py").write_text(PIPELINES)
    assert [p["name"] for p in flow("list", "-m", "jobs/nightly.py", "-o", "json").json] == [
        "orders",
        "report",
    ]


def test_the_environment_names_the_module(flow, project, monkeypatch):
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "pipelines")
    assert "orders" in flow("list").out


def test_the_project_file_names_the_module(flow, project):
    (project / ".ematix-flow.toml").write_text('[project]\nmodule = "pipelines"\n')
    assert "orders" in flow("list").out


def test_the_option_wins_over_the_environment(flow, project, monkeypatch):
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "elsewhere")
    assert flow("list", "--module", "pipelines").code == 0


def test_a_module_that_raises_is_one_clear_error(flow, project):
    (project / "broken.py").write_text("x = 1\ny = x / 0\n")
    failed = flow("list", "--module", "broken")
    assert failed.code == 1
    assert "module 'broken' raised ZeroDivisionError" in failed.err
    assert "where: broken.py:2" in failed.err
    assert "Traceback" not in failed.err


def test_a_wrong_declaration_points_at_its_line(flow, project):
    (project / "wrong.py").write_text(PIPELINES.replace('mode="truncate"', 'mode="trunkate"'))
    failed = flow("list", "--module", "wrong")
    assert failed.code == 2
    assert "Did you mean 'truncate'?" in failed.err
    assert "where: wrong.py:" in failed.err


@pytest.mark.parametrize(
    "wrong", ["String[0]", "Numeric[5, 9]", 'to_timezone("CEST")'], ids=["length", "scale", "zone"]
)
def test_a_wrong_type_or_marker_points_at_its_line(flow, project, wrong):
    before = "from ematix_flow import Numeric, String\nfrom ematix_flow.normalize import to_timezone\n"
    (project / "wrong.py").write_text(f"{before}\nWRONG = {wrong}\n")
    failed = flow("list", "--module", "wrong")
    assert failed.code == 2
    assert "where: wrong.py:4\n" in failed.err


def test_the_list_says_what_each_pipeline_loads_and_when(flow, project):
    header, orders, report = flow("list", "--module", "pipelines").out.splitlines()
    assert header.split() == ["pipeline", "kind", "loads", "schedule", "depends", "on", "declared", "at"]
    assert "append → warehouse:shop.orders" in orders
    assert "0 6 * * * Europe/Berlin" in orders
    assert "by hand" in report
    assert "orders" in report
    assert report.endswith("pipelines.py:19")


def test_the_graph_shows_what_runs_after_what(flow, project):
    shown = flow("list", "--module", "pipelines", "--graph").out
    assert shown == ("orders      → warehouse:shop.orders\n└─▶ report  → warehouse:shop.report\n")


def test_the_list_as_json_has_every_field_of_interest(flow, project):
    orders, report = flow("list", "--module", "pipelines", "--output", "json").json
    assert orders["description"] == "New orders."
    assert orders["targets"] == [{"target": "warehouse:shop.orders", "mode": "append"}]
    assert orders["schedule"] == "0 6 * * *"
    assert report["depends_on"] == ["orders"]


def test_without_a_module_the_file_that_declares_pipelines_is_suggested(flow, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "another.py").write_text("")
    (tmp_path / "loads.py").write_text("from ematix_flow import ematix")
    assert "give --module loads.py" in flow("list").err
    assert "give --module " + str(tmp_path / "loads.py") in flow("list", "--module", str(tmp_path)).err
    (tmp_path / "pipelines.py").write_text("")
    assert "give --module pipelines.py" in flow("list").err


def test_a_module_without_pipelines_says_so(flow, project):
    (project / "empty.py").write_text("")
    shown = flow("list", "--module", "empty")
    assert shown.code == 0
    assert shown.err == "the module declares no pipeline\n"


def test_a_command_about_pipelines_needs_names(flow, project):
    failed = flow("plan", "--module", "pipelines")
    assert failed.code == 2
    assert "give one of: orders, report, or --all" in failed.err


def test_names_and_all_exclude_each_other(flow, project):
    assert "give names or --all, not both" in flow("run", "orders", "--all", "-m", "pipelines").err


def test_an_unknown_pipeline_gets_a_suggestion(flow, project):
    failed = flow("run", "ordres", "--module", "pipelines")
    assert failed.code == 2
    assert "Did you mean 'orders'?" in failed.err
