"""One contract over every executor: it runs a dispatched slot once, and the slot records how the run ended.

``k8s://`` runs on the API server and the controller of Jobs of Kubernetes, with a kubelet of the tests' own;
``lambda://`` on an emulator of the tests' own, and its requests on moto's as well.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.errors import UsageError
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch
from ematix_flow.schedule.executors.executor_urls import open_executor
from ematix_flow.state.slots.base import Claim, Slot, SlotRecord, SlotStore
from tests.contract.kubelet import Kubelet, container_environment
from tests.contract.lambda_emulator import LambdaEmulator
from tests.waiting import wait_until

NOON = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)
HOSTILE = '--help; $(rm -rf /) "näme" \' \\ ☃ ' + "long" * 20
PROJECT = f"""
import time
from pathlib import Path
from ematix_flow import BigInt, ManagedTable, SQLiteConnection, ematix

here = Path(__file__).parent
db = SQLiteConnection(name="db", path=str(here / "target.db"))

class Loaded(ManagedTable):
    __tablename__ = "loaded"
    id: BigInt

def declare(name, **more):
    @ematix.pipeline(name=name, target=Loaded, target_connection=db, source_connection=db, **more)
    def declared(conn):
        if name == "slow":
            (here / "began").touch()
            time.sleep(60)
        return "SELECT id FROM source" if name != "broken" else "SELECT id FROM nothing_there"

declare("orders"), declare("slow")
declare("broken", retry={{"max_attempts": 2, "backoff_seconds": 3600}})
declare({HOSTILE!r})
"""


class Place:
    """A store, a project, an executor of one kind, and what plays the other side."""

    def __init__(self, kind: str, store: SlotStore, url: str, folder: Path) -> None:
        self.kind, self.store, self.url, self.folder = kind, store, url, folder
        self.executor: Executor
        self.kill: Callable[[], int] | None = None  # the process that runs, where its end is visible
        self.sent: Callable[[], str] = lambda: ""  # what others can read of what was asked for

    def claim(self, pipeline: str, number: int = 0) -> Claim:
        slot = Slot(pipeline, NOON + dt.timedelta(minutes=number))
        self.store.open([slot])
        seen = self.store.get(slot)
        assert seen is not None
        claim = self.store.claim(seen, "the scheduler", 300)
        assert claim is not None
        return claim

    def start(self, claim: Claim) -> Claim:
        module = str(self.folder / "project.py")
        self.executor.dispatch(RunDispatch(claim, module, 300, self.url))
        return claim

    def ended(self, claim: Claim) -> SlotRecord:
        """The slot as soon as its claim is released."""

        def let_go() -> SlotRecord | None:
            record = self.store.get(claim.slot)
            return record if record is not None and record.status != "claimed" else None

        return wait_until(let_go, 120)

    def rows(self) -> int | None:
        """How many are loaded; None before the first load."""
        with closing(sqlite3.connect(self.folder / "target.db")) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'loaded'").fetchall():
                return None
            found: int = connection.execute("SELECT count(*) FROM loaded").fetchone()[0]
            return found


@pytest.fixture(params=["subprocess", "k8s", "lambda"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pg_database: str,
) -> Iterator[Place]:
    (tmp_path / "project.py").write_text(PROJECT)
    with closing(sqlite3.connect(tmp_path / "target.db")) as connection, connection:
        connection.execute("CREATE TABLE source (id BIGINT)")
        connection.execute("INSERT INTO source VALUES (1), (2)")
    place = Place(request.param, open_slots(pg_database, env={}), pg_database, tmp_path)
    with ExitStack() as stack:
        if place.kind == "subprocess":
            place.executor = open_executor("subprocess+python://?workers=4")
            place.kill = lambda: kill_processes(place.executor)
        elif place.kind == "k8s":
            in_a_cluster(place, request.getfixturevalue("kubernetes"), stack, monkeypatch)
        else:
            by_invocation(place, stack, monkeypatch)
        yield place
        place.executor.close(0)


def kill_processes(executor: Any) -> int:
    running = executor._processes._running
    for process, _ in running.values():
        process.kill()
    return len(running)


def in_a_cluster(place: Place, server: Any, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.client import BatchV1Api, CoreV1Api

    namespace = server.create_namespace("executors")
    core, batch = CoreV1Api(server.client()), BatchV1Api(server.client())
    secret = {"metadata": {"name": "flow"}, "stringData": {"EMATIX_FLOW_RUN_LOG_URL": place.url}}
    core.create_namespaced_secret(namespace, secret)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    place.executor = open_executor(f"k8s://{namespace}?image=flow:1&secret=flow&context=admin")
    kubelet = stack.enter_context(Kubelet(server.client(), namespace, container_environment()))
    place.kill = kubelet.kill
    place.sent = lambda: str(batch.list_namespaced_job(namespace)) + str(core.list_namespaced_pod(namespace))


def by_invocation(place: Place, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**container_environment(), "EMATIX_FLOW_RUN_LOG_URL": place.url}
    emulator = stack.enter_context(LambdaEmulator("flow", environment))
    for name, value in (
        ("ACCESS_KEY_ID", "x"),
        ("SECRET_ACCESS_KEY", "x"),
        ("ENDPOINT_URL", emulator.endpoint),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    place.executor = open_executor("lambda://flow?region=eu-west-1&qualifier=live")
    place.sent = lambda: str(emulator.events) + str(emulator.paths)


def test_a_run_ends_its_slot(place: Place) -> None:
    assert place.ended(place.start(place.claim("orders"))).status == "succeeded"
    assert place.rows() == 2
    assert list(place.executor.poll_workers().exits) == []


def test_many_at_once_run_once_each_with_any_names(place: Place) -> None:
    claims = [place.claim("orders"), place.claim("orders", 1), place.claim(HOSTILE)]
    for claim in claims:
        place.start(claim)
    wait_until(lambda: place.executor.capacity() in (None, 4), 120)
    for claim in claims:
        record = place.ended(claim)
        if record.status == "waiting":  # it met another run of its pipeline
            assert record.reason is not None and "already running" in record.reason
        else:
            assert record.status == "succeeded", record
    succeeded = sum(place.ended(claim).status == "succeeded" for claim in claims)
    assert place.rows() == 2 * succeeded and succeeded >= 2


def test_a_run_that_fails_says_so_itself(place: Place) -> None:
    record = place.ended(place.start(place.claim("broken")))
    assert (record.status, record.failures) == ("waiting", 1)
    assert record.reason is not None and "nothing_there" in record.reason


def test_a_run_that_is_started_twice_loads_once(place: Place) -> None:
    claim = place.claim("orders")
    place.start(claim)
    place.start(claim)  # the first answer was lost
    assert place.ended(claim).status == "succeeded"  # and the other never has the claim
    wait_until(lambda: place.rows() == 2, 120)
    place.executor.close(30)
    assert place.rows() == 2


def test_a_claim_that_is_no_more_is_not_run(place: Place) -> None:
    claim = place.claim("orders")
    place.store.retry_later(claim, 3600, failed=False)
    place.start(claim)
    if place.kind == "lambda":
        return  # its exit is not visible
    ending = wait_until(lambda: place.executor.poll_workers().exits, 120)[0]
    assert ending.claim.slot == claim.slot and "exit code 2" in ending.reason
    assert place.rows() is None


def test_a_run_that_dies_is_noticed(place: Place) -> None:
    if place.kill is None:
        return  # what becomes of an invocation cannot be seen: its claim expires
    claim = place.start(place.claim("slow"))
    wait_until((place.folder / "began").exists, 120)
    assert place.executor.poll_workers().exits == []
    assert place.kill() == 1
    ending = wait_until(lambda: place.executor.poll_workers().exits, 120)[0]
    assert (ending.claim.slot, ending.claim.fence) == (claim.slot, claim.fence)
    assert ("SIGKILL" if place.kind == "subprocess" else "OOMKilled (exit code 137)") in ending.reason
    assert list(place.executor.poll_workers().exits) == []  # reported once


def test_no_secret_is_in_what_others_can_read(place: Place) -> None:
    place.ended(place.start(place.claim("orders")))
    password = place.url.partition("@")[0].rpartition(":")[2]
    assert len(password) > 4 and password not in place.sent()
    arguments = RunDispatch(place.claim("orders", 1), "project", 300, place.url).arguments()
    assert password not in " ".join(arguments)


def test_what_is_at_work_may_end_when_the_executor_is_closed(place: Place) -> None:
    claim = place.start(place.claim("orders"))
    place.executor.close(120)
    if place.kind == "subprocess":
        record = place.store.get(claim.slot)
        assert record is not None and record.status == "succeeded"
    assert place.ended(claim).status == "succeeded"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("subproces://", "subprocess"),
        ("/tmp/x", "no executor"),
        ("", "no executor"),
        ("subprocess://?worker=2", "workers"),
        ("subprocess://?workers=0", "from 1 on"),
        ("subprocess://?workers=2&workers=3", "twice"),
        ("subprocess://elsewhere", "this machine"),
        ("k8s://", "no namespace"),
        ("k8s://ns", "no image"),
        ("k8s://ns?image=", "without a value"),
        ("k8s://ns?image=i&servce-account=x", "service-account"),
        ("k8s://ns?image=i&ttl=soon", "whole number"),
        ("k8s://ns/more?image=i", "is written"),
        ("lambda://", "no function"),
        ("lambda://fn?qualifer=1", "qualifier"),
    ],
)
def test_a_url_that_names_no_executor_is_reported(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        open_executor(url)
    assert refused.value.exit_code == 2


def test_runs_elsewhere_need_a_run_log_that_they_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = open_executor("lambda://flow?region=eu-west-1")
    for file in ("/var/lib/run_log.db", "sqlite:///x.db", "duckdb:///x"):
        with pytest.raises(UsageError, match="other machines"):
            executor.check(file)
    executor.check("postgres://u:p@h/d")


def test_processes_need_a_run_log_that_is_not_in_memory() -> None:
    executor = open_executor("subprocess://")
    with pytest.raises(UsageError, match="other processes"):
        executor.check("memory://default")
    executor.check("sqlite:///x.db")


def test_the_secret_of_an_engine_is_no_argument_and_only_sent_to_processes() -> None:
    engine = "sc://cluster:15002/;use_ssl=true;token=hunter22"
    job = RunDispatch(Claim(Slot("orders", NOON), "me", 1, 0), "project", 300, engine=engine)
    assert "hunter22" not in " ".join(job.arguments())
    assert job.variables()["EMATIX_FLOW_ENGINE"] == engine
    open_executor("subprocess://").check("sqlite:///x.db", engine)
    elsewhere = open_executor("lambda://flow?region=eu-west-1")
    with pytest.raises(UsageError, match="holds a secret") as refused:
        elsewhere.check("postgres://h/d", engine)
    assert "hunter22" not in str(refused.value) and "EMATIX_FLOW_ENGINE" in str(refused.value)
    elsewhere.check("postgres://h/d", "sc://cluster:15002")


def test_alerters_of_the_scheduler_are_not_lost_on_the_way_to_a_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    open_executor("lambda://load-orders?region=eu-west-1").check_alerts()
    assert "set EMATIX_FLOW_ALERTERS as a variable of the function load-orders" in caplog.text


def test_a_pod_does_not_start_without_the_alerters_that_its_scheduler_has() -> None:
    from ematix_flow.schedule.executors.kubernetes_manifests import PodOptions, job_manifest

    claim = Claim(Slot("orders", NOON), "me", 1, 0)
    alerting = {"EMATIX_FLOW_ALERTERS": "slack://hooks.slack.com/services/sesame99"}
    secret = PodOptions("etl", "flow:1", secret="flow")
    for environment, wanted in (({}, []), (alerting, ["EMATIX_FLOW_ALERTERS"])):
        job = job_manifest(
            RunDispatch(claim, "project", 300, "postgres://db/log", environment=environment), secret
        )
        [container] = job["spec"]["template"]["spec"]["containers"]
        asked = [each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each]
        assert [each["key"] for each in asked] == ["EMATIX_FLOW_RUN_LOG_URL", *wanted]
        assert {each["name"] for each in asked} == {"flow"}
        assert "sesame99" not in str(job)


def test_a_function_that_is_not_there_is_reported(glue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On moto's server."""
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x"), ("ENDPOINT_URL", glue.endpoint)):
        monkeypatch.setenv(f"AWS_{name}", value)
    executor = open_executor("lambda://arn:aws:lambda:us-east-1:123456789012:function:none?region=us-east-1")
    with pytest.raises(CannotDispatch, match="not found"):
        executor.dispatch(RunDispatch(Claim(Slot("orders", NOON), "me", 1, 0), "project", 300))
