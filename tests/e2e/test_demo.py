"""The demo as a user runs it, and the commands that it shows at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

PROGRAM = "import sys; from ematix_flow.cli.main import main; sys.exit(main())"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def statuses(table: str) -> dict[str, str]:
    """Pipeline and status of each line of a result table."""
    return {line.split()[0]: line.split()[1] for line in table.strip().splitlines()[1:]}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_demo_tells_its_story_and_what_it_offers_next_works(tmp_path: Path) -> None:
    told = run(tmp_path, "demo", "--dir", "demo")
    assert told.returncode == 0, told.stdout + told.stderr
    story, folder = told.stdout, tmp_path / "demo"

    tables = [part for part in story.split("\n\n") if part.startswith("pipeline ")]
    first, second = (statuses(table) for table in tables)
    assert set(first.values()) == {"succeeded"}
    assert len(first) == 8
    assert second == {
        **first,
        "returns": "skipped",
        "payments": "failed",
        "daily_cash": "not",  # run
    }
    assert "nothing new since the last run" in tables[1]
    assert "error: column 'currency'" in story
    assert "'EURO' is longer than the 3 characters" in story
    assert "where: pipelines.py:" in story
    assert story.count("plan  ") == 8 + 7  # what is not run is not planned
    assert "The demo went as planned, the failure included" in story
    assert "Traceback" not in told.stderr

    with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as warehouse:
        for table, rows in {
            "shop.orders": 100_500,
            "shop.customers": 10_025,
            "shop.returns": 2_000,
            "shop.payments": 20_000,  # as before the failed load
            "reports.daily_revenue": 349,
            "reports.customer_value": 10_000,
            "reports.daily_cash": 696,
        }.items():
            assert warehouse.execute(f"SELECT count(*) FROM {table}").fetchone() == (rows,), table
        emails = "SELECT count(*) FILTER (email IS NULL), count(*) FILTER (email <> lower(trim(email)))"
        assert warehouse.execute(f"{emails} FROM shop.customers").fetchone() == (198, 0)
        once = "SELECT count(*) - count(DISTINCT order_id) FROM shop.orders"
        assert warehouse.execute(once).fetchone() == (0,)
    with duckdb.connect() as lake:
        orders = f"read_parquet('{folder}/lake/orders/**/*.parquet')"
        counts = lake.execute(f"SELECT count(*), count(DISTINCT order_id) FROM {orders}").fetchone()
    assert counts == (100_500, 100_500)

    for offered in ("flow status", "flow runs list", "flow plan orders"):
        assert f"  {offered} " in story
        assert run(folder, *offered.split()[1:]).returncode == 0
    listed = run(folder, "runs", "list").stdout.splitlines()
    assert len(listed) == 1 + 8 + 8  # what is not run is recorded too
    assert " shop_data.py fix " in story
    subprocess.run([sys.executable, "shop_data.py", "fix"], cwd=folder, check=True)
    assert "  flow run payments daily_cash " in story
    fixed = run(folder, "run", "payments", "daily_cash")
    assert fixed.returncode == 0, fixed.stderr
    assert statuses(fixed.stdout) == {"payments": "succeeded", "daily_cash": "succeeded"}
    with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as warehouse:
        assert warehouse.execute("SELECT count(*) FROM shop.payments").fetchone() == (20_300,)
