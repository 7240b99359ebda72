"""``.sync()`` inside tasks of Airflow, Dagster and Prefect: the examples, in the real packages.

Each tool loads one slot twice and then another whose source is gone. The package is the built wheel, in the
tool's own environment, where there is no Spark.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from tests.services import orchestrators

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "orchestrators"
MESSAGE = "no such table: movements"

pytestmark = [pytest.mark.slow, pytest.mark.orchestrators]

# what each tool is asked to do: two runs of one slot, then one that fails; the answer is the last line
AIRFLOW = """
import datetime as dt, json
from airflow.utils.db import initdb
initdb()
from airflow_dag import stock
from shop import forget
dag = stock()
def run(hour):
    return dag.test(logical_date=dt.datetime(2026, 1, 1, hour, tzinfo=dt.timezone.utc)).state
states = [run(3), run(3)]
forget()
states.append(run(4))
print(json.dumps({"states": states}))
"""
DAGSTER = """
import json
import dagster as dg
from dagster_job import defs, stock_level_counts
from shop import forget
def run(hour):
    with dg.DagsterInstance.ephemeral() as instance:
        return dg.materialize(
            [stock_level_counts],
            instance=instance,
            partition_key=f"2026-01-01-{hour:02}:00",
            raise_on_error=False,
        )
defs.get_job_def("load_stock")
first, second = run(3), run(3)
forget()
third = run(4)
(made,) = first.asset_materializations_for_node("stock_level_counts")
error = third.failure_data_for_node("stock_level_counts").error
print(json.dumps({
    "states": ["success" if each.success else "failed" for each in (first, second, third)],
    "rows": made.metadata["dagster/row_count"].value,
    "message": str(error.cause),
}))
"""
PREFECT = """
import datetime as dt, json
from prefect.testing.utilities import prefect_test_harness
from prefect_flow import load, stock
from prefect import flow
from shop import forget
@flow
def at(hour):
    return load(dt.datetime(2026, 1, 1, hour, tzinfo=dt.timezone.utc))
with prefect_test_harness(server_startup_timeout=180):
    states = [at(3, return_state=True), at(3, return_state=True)]
    result = stock()
    forget()
    states.append(at(4, return_state=True))
print(json.dumps({
    "states": ["success" if state.is_completed() else "failed" for state in states],
    "scheduled": result["status"],
    "message": states[-1].message,
}))
"""
# the waits between attempts, as the examples have them, and what they are here
WAITS = {
    "airflow_dag.py": ("timedelta(minutes=1)", "timedelta(seconds=0)"),
    "dagster_job.py": ("delay=60", "delay=0"),
    "prefect_flow.py": ("[10, 60]", "[0, 0]"),
}
FORGET = """
import sqlite3
def forget():
    connection = sqlite3.connect("shop.db")
    connection.execute("DROP TABLE movements")
    connection.close()
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository, unpacked: what an installation has, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The examples in a folder, next to a shop with three movements of two items."""
    folder = tmp_path / "dags"
    shutil.copytree(EXAMPLES, folder)
    for name, (shown, here) in WAITS.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert shown in text
        (folder / name).write_text(text.replace(shown, here), encoding="utf-8")
    (tmp_path / "shop.py").write_text(FORGET, encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE movements (sku TEXT, quantity INTEGER)")
        connection.execute("INSERT INTO movements VALUES ('cup', 3), ('cup', -1), ('pot', 4)")
    return tmp_path


class Ran:
    """What a tool answered, what it wrote, and what is left behind."""

    def __init__(self, folder: Path, answer: dict[str, Any], output: str) -> None:
        self.answer, self.output = answer, output
        with closing(sqlite3.connect(folder / "shop.db")) as connection:
            self.rows = connection.execute("SELECT sku, on_hand FROM stock_levels ORDER BY 1").fetchall()
        with open_local_run_log(f"sqlite://{folder / 'run_log.db'}", env={}) as log:
            self.runs: list[RunRecord] = sorted(log.list(), key=lambda run: run.started_at)


def run(tool: str, code: str, project: Path, package: Path) -> Ran:
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "EMATIX_FLOW_STATE_DIR")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {
        "PYTHONPATH": os.pathsep.join(map(str, (package, project / "dags", project))),
        "EMATIX_FLOW_RUN_LOG_URL": f"sqlite://{project / 'run_log.db'}",
        "AIRFLOW_HOME": str(project / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PREFECT_HOME": str(project / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "DO_NOT_TRACK": "1",
    }
    script = project / f"drive_{tool}.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [orchestrators.python_of(tool), str(script)],
        cwd=project,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-20_000:]
    return Ran(project, json.loads(done.stdout.splitlines()[-1]), output)


def check(ran: Ran, attempts: int) -> None:
    """Two runs of a slot load once; a failed run fails the task, after as many attempts as it allows."""
    assert ran.answer["states"] == ["success", "success", "failed"]
    assert [run.trigger for run in ran.runs] == ["sync"] * len(ran.runs)
    by_slot: dict[dt.datetime, list[str]] = {}
    for each in ran.runs:
        assert each.slot is not None
        if each.slot.date() == dt.date(2026, 1, 1):
            by_slot.setdefault(each.slot, []).append(each.status)
    assert list(by_slot.values()) == [["succeeded", "skipped"], ["failed"] * attempts]
    assert MESSAGE in (ran.runs[-1].error_message or "")


def test_airflow_loads_each_date_once_and_shows_the_failure_in_the_task(project: Path, package: Path) -> None:
    ran = run("airflow", AIRFLOW, project, package)
    check(ran, attempts=3)
    assert ran.rows == [("cup", 2), ("pot", 4)]
    assert MESSAGE in ran.output
    assert "stock_levels: succeeded, 2 rows inserted" in ran.output  # the task's log holds our lines


def test_dagster_loads_each_partition_once_and_shows_the_failure_in_the_asset(
    project: Path, package: Path
) -> None:
    ran = run("dagster", DAGSTER, project, package)
    check(ran, attempts=3)
    assert ran.rows == [("cup", 2), ("pot", 4)]
    assert ran.answer["rows"] == 2
    assert MESSAGE in ran.answer["message"]


def test_prefect_loads_each_slot_once_and_shows_the_failure_in_the_task(project: Path, package: Path) -> None:
    ran = run("prefect", PREFECT, project, package)
    check(ran, attempts=3)
    assert ran.rows == [("cup", 2), ("cup", 2), ("pot", 4), ("pot", 4)]  # one slot of ours, one of the flow
    assert ran.answer["scheduled"] == "succeeded"
    assert MESSAGE in ran.answer["message"]
