"""The projects that ``flow init`` and ``flow demo`` write."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.cli.scaffolds import project_name
from ematix_flow.cli.scaffolds.shop import shop_data
from ematix_flow.errors import UsageError


def test_init_writes_a_project_that_lists_and_reads_at_once(flow, tmp_path, monkeypatch):
    done = flow("init", "fresh")
    assert done.code == 0
    fresh = tmp_path / "fresh"
    assert sorted(str(path.relative_to(fresh)) for path in fresh.rglob("*") if path.is_file()) == [
        ".dockerignore",
        ".ematix-flow.toml",
        ".github/workflows/flow.yml",
        ".gitignore",
        "Dockerfile",
        "README.md",
        "deploy/cronjob.yaml",
        "deploy/flow-run-due.service",
        "deploy/flow-run-due.timer",
        "deploy/flow.service",
        "deploy/scheduler.yaml",
        "pipelines.py",
        "requirements.txt",
        "sample_data.py",
        "source.db",
    ]
    assert "cd fresh && flow run --all" in done.err
    monkeypatch.chdir(tmp_path / "fresh")
    assert [p["name"] for p in flow("list", "-o", "json").json] == ["orders", "daily_sales"]


def test_a_fresh_project_is_planned_and_validated_before_its_first_run(flow, tmp_path, monkeypatch):
    assert flow("init", "fresh").code == 0
    monkeypatch.chdir(tmp_path / "fresh")
    planned = flow("plan", "--all")
    assert planned.code == 0, planned.err
    assert "planned after orders has run" in planned.out
    assert planned.err == ""
    assert flow("plan", "--all", "-o", "json").json[1] == {
        "pipeline": "daily_sales",
        "planned_after": "orders",
        "step": 2,
        "after": ["orders"],
    }
    assert flow("plan", "--all", "--check").code == 3
    validated = flow("validate")
    assert validated.code == 0
    assert "not checked: the database that it reads is created when orders runs" in validated.out


def test_a_dry_run_of_a_fresh_project_skips_what_reads_the_missing_database(flow, tmp_path, monkeypatch):
    from ematix_flow.plan.results import RunResult
    from ematix_flow.run import preview

    really = preview.dry_run

    def without_spark(declared, spark, listener=None):
        if declared.spec.name == "orders":
            return RunResult("orders", "1", "succeeded", (), 0.0)
        return really(declared, spark, listener)

    monkeypatch.setattr(preview, "dry_run", without_spark)
    assert flow("init", "fresh").code == 0
    monkeypatch.chdir(tmp_path / "fresh")
    orders, daily_sales = (done := flow("dry-run", "--all", "-o", "json")).json
    assert (done.code, orders["status"], daily_sales["status"]) == (0, "succeeded", "skipped")
    assert daily_sales["reason"] == "the database that it reads is created when orders runs"


def test_the_next_step_for_a_missing_database_is_to_run_the_upstream_that_creates_it(
    flow, tmp_path, monkeypatch
):
    assert flow("init", "fresh").code == 0
    monkeypatch.chdir(tmp_path / "fresh")
    failed = flow("plan", "daily_sales")
    assert failed.code == 5
    assert "flow run orders  creates it" in failed.err


def test_init_does_not_replace_files_unasked(flow, tmp_path):
    (tmp_path / "pipelines.py").write_text("mine")
    failed = flow("init")
    assert failed.code == 2
    assert "already has pipelines.py" in failed.err
    assert (tmp_path / "pipelines.py").read_text() == "mine"
    assert not (tmp_path / "README.md").exists()


def test_init_by_force_replaces_them(flow, tmp_path):
    (tmp_path / "pipelines.py").write_text("mine")
    assert flow("init", "--force").code == 0
    assert "ematix.pipeline" in (tmp_path / "pipelines.py").read_text()


def test_init_adds_a_part_to_a_project_that_is_there(flow, tmp_path):
    (tmp_path / "pipelines.py").write_text("mine")
    (tmp_path / "requirements.txt").write_text("mine too")
    done = flow("init", "--only", "k8s,github", "--output", "json")
    written = {Path(file).name for file in done.json["files"]}
    assert (done.code, written) == (0, {"cronjob.yaml", "scheduler.yaml", "flow.yml"})
    assert (tmp_path / "requirements.txt").read_text() == "mine too"
    again = flow("init", "--only", "github")
    assert again.code == 2
    assert "already has .github/workflows/flow.yml" in again.err
    assert "flow init . --only github --force" in again.err
    assert flow("init", "elsewhere", "--only", "docker").code == 0
    assert (tmp_path / "elsewhere" / "requirements.txt").exists()


@pytest.mark.parametrize(
    ("parts", "words"), [("githb", "Did you mean 'github'?"), (",", "--only names no part")]
)
def test_init_names_the_parts_that_there_are(flow, tmp_path, parts, words):
    failed = flow("init", "--only", parts)
    assert failed.code == 2
    assert words in failed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "name"),
    [("My Shop", "my-shop"), ("2026_sales", "flow-2026-sales"), ("ü", "flow"), ("a" * 60, "a" * 40)],
)
def test_a_project_is_named_so_that_images_units_and_kubernetes_take_it(tmp_path, folder, name):
    assert project_name(tmp_path / folder) == name


def test_init_into_a_folder_that_cannot_be_written_is_one_error(flow, tmp_path):
    (tmp_path / "file").write_text("")
    failed = flow("init", "file/project")
    assert failed.code == 2
    assert "cannot write into" in failed.err


def counts(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("customers", "orders", "returns", "payments")
        }


def test_the_shop_has_100_000_orders_and_10_000_customers_and_changes(tmp_path):
    database = tmp_path / "shop.db"
    shop_data.create(str(database))
    assert counts(database) == {"customers": 10_000, "orders": 100_000, "returns": 2_000, "payments": 20_000}
    shop_data.change(str(database))
    assert counts(database) == {"customers": 10_025, "orders": 100_500, "returns": 2_000, "payments": 20_300}
    with closing(sqlite3.connect(database)) as connection:
        wrong = "SELECT count(*) FROM payments WHERE length(currency) <> 3"
        assert connection.execute(wrong).fetchone() == (1,)
        shop_data.fix(str(database))
        assert connection.execute(wrong).fetchone() == (0,)
        missing = "SELECT count(*) FROM orders WHERE ordered_at IS NULL OR amount IS NULL"
        assert connection.execute(missing).fetchone() == (0,)


def test_the_demo_does_not_change_a_folder_with_other_files(tmp_path):
    import sys

    from ematix_flow.cli.demo.runner import Demo

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pipelines.py").write_text("mine")
    with pytest.raises(UsageError, match=r"already has other files: pipelines\.py"):
        Demo(tmp_path / "mine", force=False, engine=None, stream=sys.stdout).run()
    assert (tmp_path / "mine" / "pipelines.py").read_text() == "mine"


def test_the_demo_says_what_its_page_needs_before_it_begins(tmp_path, flow_without):
    refused = flow_without("uvicorn", "demo", "--dir", "demo", "--web")
    assert refused.returncode == 2
    assert 'pip install "ematix-flow-spark[web]"' in refused.stderr
    assert not (tmp_path / "demo").exists()
