"""Actions whose carrier or whose process is killed at any point: each is done once, by the next process."""

from __future__ import annotations

import datetime as dt
import os
import runpy
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log, open_slots
from ematix_flow.graph.registry import current_registry
from ematix_flow.schedule.actions.carrier import ActionCarrier
from ematix_flow.schedule.actions.carrying_out import resolve_action_claim
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.records import ActionKind, ActionRecord
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.slots.base import Slot
from tests.fault.action_processes import run

pytestmark = pytest.mark.fault

PROJECT = """
from pathlib import Path
from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix

db = SQLiteConnection(name="db", path=str(Path(__file__).parent / "target.db"))

for number in range(3):
    class Loaded(ManagedTable):
        __tablename__ = f"t{number}"
        id: BigInt

    @ematix.pipeline(name=f"p{number}", target=Loaded, target_connection=db, source_connection=db,
                     mode="append", transforms_post=["INSERT INTO trace SELECT count(*) FROM source"])
    def load(conn):
        return "SELECT id FROM source"
"""
DURING_A_RUN = (
    "action.begun",
    "apply.began",
    "apply.before_commit",
    "apply.after_commit",
    "runlog.before_finish",
    "action.carried_out",
)
DURING_A_RESTART = (
    "action.begun",
    "runlog.before_finish",
    "restart.run_ended",
    "restart.slot_ended",
    "action.carried_out",
)


class Project:
    """A module whose pipelines append, so that a load that is done twice is seen."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite://{folder / 'run_log.db'}"
        (folder / "project.py").write_text(PROJECT)
        runpy.run_path(str(folder / "project.py"))  # declares it for the carriers of this process
        self.execute("CREATE TABLE source (id BIGINT)")
        self.execute("INSERT INTO source VALUES (1), (2)")
        self.execute("CREATE TABLE trace (n BIGINT)")
        self.actions: ActionStore = open_actions(self.url, env={})

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.folder / "target.db", timeout=30)) as connection, connection:
            return connection.execute(statement).fetchall()

    def request(self, kind: ActionKind, subject: str) -> ActionRecord:
        return self.actions.request(kind, subject, {}, by="ada", via="web")[0]

    def carry_out(self, claimed: ActionRecord, fault: str = "") -> int:
        """Carry the action out by the process that a carrier starts."""
        claim = f"--claim={claimed.fence}:{claimed.holder}"
        return run(self.folder, ["run-action", "--module=project.py", claim, claimed.action_id], fault)

    def carrier(self, holder: str, **environment: str) -> ActionCarrier:
        log = open_run_log(self.url, env={}, reading=True)
        module = str(self.folder / "project.py")
        return ActionCarrier(
            self.actions,
            log,
            open_slots(self.url, env={}),
            current_registry(),
            module,
            self.url,
            holder=holder,
            environment=environment,
            lease_seconds=20,
        )

    def runs(self) -> tuple[RunRecord, ...]:
        with open_run_log(self.url, env={}, reading=True) as log:
            return log.list()

    def fail_slot(self) -> RunRecord:
        """Run a slot of p0 whose transform fails, so that it is given up, and return its run."""
        self.execute("ALTER TABLE trace RENAME TO gone")
        with open_slots(self.url, env={}) as slots:
            slots.open([Slot("p0", dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc))])
        assert run(self.folder, ["run-due", "--module=project.py"]) == 1
        assert self.slot_statuses() == ["gave_up"]
        self.execute("ALTER TABLE gone RENAME TO trace")
        (failed,) = self.runs()
        return failed

    def slot_statuses(self) -> list[str]:
        with open_slots(self.url, env={}) as slots:
            return [record.status for record in slots.newest(["p0"]).values()]

    def rows(self, number: int = 0) -> int:
        return int(str(self.execute(f"SELECT count(*) FROM t{number}")[0][0]))

    def traces(self) -> int:
        return len(self.execute("SELECT n FROM trace"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    made = Project(tmp_path)
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", made.url)
    yield made
    made.actions.close()


def claim(project: Project, action: ActionRecord, holder: str) -> ActionRecord:
    claimed = project.actions.claim(project.actions.get(action.action_id), holder, 60)
    assert claimed is not None
    return claimed


def kill_and_carry_on(project: Project, action: ActionRecord, point: str) -> ActionRecord:
    """Kill the process at this point; another takes the action over, as after a carrier has noticed it."""
    first = claim(project, action, "first")
    assert project.carry_out(first, f"{point}=kill") == -signal.SIGKILL
    assert project.actions.get(action.action_id).status == "claimed"
    assert project.actions.renew(first, 0.0)
    assert project.carry_out(claim(project, action, "second")) == 0
    return project.actions.get(action.action_id)


@pytest.mark.parametrize("point", DURING_A_RUN)
def test_a_run_whose_process_is_killed_is_done_once_by_the_next(project: Project, point: str) -> None:
    ended = kill_and_carry_on(project, project.request("run", "p0"), point)
    assert (ended.status, ended.fence, ended.deaths) == ("done", 2, 1), ended.outcome
    assert project.rows() == 2
    # a transform whose end was not recorded runs again, as after any killed run
    assert project.traces() == (2 if point == "runlog.before_finish" else 1)
    newest = project.runs()[0]
    assert ended.run_ids[-1] == newest.run_id and newest.status in ("succeeded", "skipped")
    assert all(record.status != "running" for record in project.runs())
    assert {record.trigger for record in project.runs()} == {"web"}


@pytest.mark.parametrize("point", DURING_A_RESTART)
def test_a_restart_whose_process_is_killed_is_done_once_by_the_next(project: Project, point: str) -> None:
    failed = project.fail_slot()
    ended = kill_and_carry_on(project, project.request("restart", failed.run_id), point)
    assert ended.status == "done", ended.outcome
    assert (project.rows(), project.traces()) == (2, 1)
    assert project.runs()[0].ended_well
    assert project.slot_statuses() == ["succeeded"]


@pytest.mark.parametrize("point", ["restart.run_ended", "restart.slot_ended"])
def test_a_restart_whose_process_is_killed_is_settled_by_run_due(project: Project, point: str) -> None:
    failed = project.fail_slot()
    restart = ["restart", "--module=project.py", failed.run_id]
    assert run(project.folder, restart, f"{point}=kill") == -signal.SIGKILL
    (action,) = project.actions.list(unfinished=True)
    assert project.actions.renew(action, 0.0)  # as after a minute
    assert run(project.folder, ["run-due", "--module=project.py"]) == 0
    ended = project.actions.get(action.action_id)
    assert (ended.status, ended.run_ids) == ("done", (project.runs()[0].run_id,))
    assert (project.slot_statuses(), project.rows(), project.traces()) == (["succeeded"], 2, 1)


def test_of_two_processes_for_one_claim_one_carries_it_out(project: Project) -> None:
    claimed = claim(project, project.request("run", "p0"), "carrier")
    with ThreadPoolExecutor(2) as pool:
        codes = sorted(pool.map(lambda _: project.carry_out(claimed), range(2)))
    assert codes == [0, 2]
    assert (project.rows(), len(project.runs())) == (2, 1)


def until_ended(project: Project, carriers: list[ActionCarrier], is_over: Callable[[], bool]) -> None:
    """Poll with all carriers at once until it is over."""
    pause = threading.Event()
    for _ in range(600):
        with ThreadPoolExecutor(len(carriers)) as pool:
            list(pool.map(ActionCarrier.poll, carriers))
        if is_over():
            break
        pause.wait(0.1)
    for carrier in carriers:
        carrier.close(60)
        carrier.run_log.close()
    assert is_over(), [record.to_json() for record in project.actions.list()]


def test_two_carriers_at_once_run_each_action_once_also_if_its_process_is_killed(
    project: Project, tmp_path: Path
) -> None:
    wanted = [project.request("run", f"p{number}") for number in range(3)]
    fault = f"apply.after_commit=kill@{tmp_path / 'killed'}"  # one of the processes
    carriers = [project.carrier(name, EMATIX_FLOW_FAULT=fault) for name in ("one", "two")]
    until_ended(project, carriers, lambda: not project.actions.list(unfinished=True))
    ended = [project.actions.get(action.action_id) for action in wanted]
    assert [action.status for action in ended] == ["done"] * 3
    assert sorted(action.deaths for action in ended) == [0, 0, 1]
    assert [project.rows(number) for number in range(3)] == [2, 2, 2]
    assert (tmp_path / "killed").exists() and len(project.runs()) == 4


CARRY = """
import sys
from ematix_flow.backends.state_stores.run_logs import open_actions, open_run_log, open_slots
from ematix_flow.cli.project import load_project
from ematix_flow.schedule.actions.carrier import ActionCarrier

url = sys.argv[1]
log, registry = open_run_log(url, env={}), load_project("project.py")
slots = open_slots(url, env={})
ActionCarrier(open_actions(url, env={}), log, slots, registry, "project.py", url, lease_seconds=0.1).poll()
"""


def test_an_action_whose_carrier_is_killed_before_it_starts_a_process_is_taken_over(project: Project) -> None:
    action = project.request("run", "p0")
    killed = subprocess.run(
        [sys.executable, "-c", CARRY, project.url],
        cwd=project.folder,
        env={**os.environ, "EMATIX_FLOW_FAULT": "action.claimed=kill"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert project.actions.get(action.action_id).status == "claimed" and project.runs() == ()
    until_ended(project, [project.carrier("other")], lambda: not project.actions.list(unfinished=True))
    ended = project.actions.get(action.action_id)
    assert (ended.status, ended.fence, ended.deaths, project.rows()) == ("done", 2, 0, 2)


def test_an_action_whose_processes_die_three_times_has_failed(project: Project) -> None:
    action = project.request("run", "p0")
    carrier = project.carrier("only", EMATIX_FLOW_FAULT="apply.began=kill")
    until_ended(project, [carrier], lambda: not project.actions.list(unfinished=True))
    ended = project.actions.get(action.action_id)
    assert (ended.status, ended.outcome) == ("failed", "3 processes died while they carried it out")
    assert project.execute("SELECT name FROM sqlite_master WHERE name = 't0'") == [] or project.rows() == 0


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raise RuntimeError('it is broken')", ["RuntimeError", "it is broken", "project.py:1"]),
        ("def load(:", ["project.py", "line 1"]),
        ("raise SystemExit('not today')", ["not today"]),
        (
            "raise RuntimeError('postgres://me:hunter2secret@host/db ' + 'x' * 5_000)",
            ["postgres://me:***@host"],
        ),
    ],
)
def test_a_process_that_cannot_begin_fails_its_action_with_its_error(
    project: Project, module: str, words: list[str]
) -> None:
    action = project.request("run", "p0")
    (project.folder / "project.py").write_text(module)
    until_ended(project, [project.carrier("only")], lambda: not project.actions.list(unfinished=True))
    ended = project.actions.get(action.action_id)
    outcome = ended.outcome or ""
    assert ended.status == "failed" and outcome.startswith("its process could not begin: ")
    assert all(word in outcome for word in words), outcome
    assert "hunter2secret" not in outcome and len(outcome) < 1_100


def test_a_process_that_ends_without_an_error_before_it_begins_fails_its_action(project: Project) -> None:
    action = project.request("run", "p0")
    (project.folder / "project.py").write_text("import os; os._exit(3)")
    until_ended(project, [project.carrier("only")], lambda: not project.actions.list(unfinished=True))
    outcome = project.actions.get(action.action_id).outcome or ""
    assert outcome == (
        "its process ended with exit code 3 before it began; see the output of the scheduler or page"
    )


def test_an_error_before_the_begin_does_not_end_what_another_process_has_begun(project: Project) -> None:
    claimed = claim(project, project.request("run", "p0"), "carrier")
    assert project.actions.begin(claimed, 60, "first")
    (project.folder / "project.py").write_text("raise RuntimeError('it is broken')")
    assert project.carry_out(claimed) != 0
    assert project.actions.get(claimed.action_id).status == "claimed"


def test_a_scheduler_carries_out_what_is_requested_and_ends_what_nobody_obeys(project: Project) -> None:
    wanted = project.request("resume_from_watermark", "p1")
    with open_run_log(project.url, env={}) as log:
        log.start(RunRecord("gone", "p2", "db:t2", "append", pid=2**22 + 1))
        log.start(RunRecord("over", "p2", "db:t2", "append"))
        log.finish("over", "failed")
    stops = [project.request("stop", run_id) for run_id in ("gone", "over", "purged")]
    with (project.folder / "project.py").open("a") as module:
        module.write("ematix.workflow('nightly', jobs=['p0'], schedule='0 0 29 2 *')\n")
    code = run(project.folder, ["scheduler", "--module=project.py", "--max-iterations=1", "--grace=120"])
    assert code == 0
    assert project.actions.get(wanted.action_id).status == "done" and project.rows(1) == 2
    outcomes = [project.actions.get(stop.action_id).outcome for stop in stops]
    assert outcomes == [
        "its process 4194305 is gone",
        "the run has ended: it is failed",
        "the run log no longer has this run",
    ]


def test_a_claim_that_is_over_is_refused_with_what_became_of_it(project: Project) -> None:
    action = project.request("run", "p0")
    claimed = claim(project, action, "carrier")
    assert resolve_action_claim(project.actions, action.action_id, "1:carrier") == claimed
    assert project.actions.end(claimed, "done", "p0 succeeded")
    assert project.carry_out(claimed) == 2
    assert project.runs() == ()
