"""What only ``k8s://`` has: pods that do not start, the scheduler's permissions, and the status of a Job.

On the API server and the controller of Jobs of Kubernetes, with a kubelet of the tests' own.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import BatchV1Api, CoreV1Api, RbacAuthorizationV1Api

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.schedule.executors import kubernetes_jobs
from ematix_flow.schedule.executors.base import CannotDispatch, Executor, RunDispatch
from ematix_flow.schedule.executors.executor_urls import open_executor
from ematix_flow.state.slots.base import Claim, Slot
from tests.contract.kubelet import Kubelet
from tests.waiting import wait_until

AT = dt.datetime(2026, 3, 29, 12, tzinfo=dt.timezone.utc)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "scheduler.md"


class Cluster:
    def __init__(self, server: Any) -> None:
        self.server, self.namespace = server, server.create_namespace("jobs")
        self.jobs, self.core = BatchV1Api(server.client()), CoreV1Api(server.client())

    def executor(self, options: str, context: str = "admin") -> Executor:
        return open_executor(f"k8s://{self.namespace}?{options}&context={context}")

    def job(self, executor: Executor, number: int = 1) -> Claim:
        claim = Claim(Slot("orders", AT), "the scheduler", number, 0)
        executor.dispatch(RunDispatch(claim, "project", 300, "postgres://db/log"))
        return claim

    def names(self) -> list[str]:
        return [job.metadata.name for job in self.jobs.list_namespaced_job(self.namespace).items]


@pytest.fixture
def cluster(kubernetes: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig))
    cluster = Cluster(kubernetes)
    with Kubelet(kubernetes.client(), cluster.namespace, {}):
        yield cluster


def test_a_pod_that_waits_for_a_node_keeps_its_claim_until_the_time_is_up(cluster: Cluster) -> None:
    executor = cluster.executor("image=flow:pending&start-timeout=3")
    claim = cluster.job(executor)
    seen = executor.poll_workers()
    assert [found.slot for found in seen.starting] == [claim.slot] and not seen.exits
    [ending] = wait_until(lambda: executor.poll_workers().exits)
    assert ending.reason.startswith("it did not start in 3 s: ")
    assert "Unschedulable: 0/0 nodes are available" in ending.reason
    wait_until(lambda: cluster.names() == [])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("image=flow:missing", "ImagePullBackOff: Back-off pulling image"),
        ("image=flow:1&secret=none", 'CreateContainerConfigError: secret "none" not found'),
    ],
)
def test_a_pod_that_cannot_start_is_noticed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, options: str, told: str
) -> None:
    monkeypatch.setattr(kubernetes_jobs, "_HOPELESS_START_SECONDS", 1.0)
    executor = cluster.executor(options)
    cluster.job(executor)
    [ending] = wait_until(lambda: executor.poll_workers().exits)
    assert told in ending.reason
    wait_until(lambda: cluster.names() == [])


def test_another_scheduler_sees_a_run_that_died(cluster: Cluster) -> None:
    claim = cluster.job(cluster.executor("image=flow:oom"), number=7)
    other = cluster.executor("image=flow:oom")
    [ending] = wait_until(lambda: other.poll_workers().exits)
    assert (ending.claim.slot, ending.claim.fence, ending.claim.holder) == (claim.slot, 7, claim.holder)
    assert ending.reason == "OOMKilled (exit code 137)"


def test_so_many_jobs_at_once_and_no_more(cluster: Cluster) -> None:
    executor = cluster.executor("image=flow:pending&workers=2")
    cluster.job(executor, 1)
    assert executor.capacity() == 1
    cluster.job(executor, 2)
    assert executor.capacity() == 0
    fresh = cluster.executor("image=flow:pending&workers=2")
    fresh.poll_workers()
    assert fresh.capacity() == 0


def test_a_job_is_as_it_was_asked_for(cluster: Cluster) -> None:
    executor = cluster.executor(
        "image=reg.io/flow:pending&sa=loader&cpu=500m&memory=2Gi&ttl=60&env-secret=flow"
    )
    cluster.job(executor)
    [job] = cluster.jobs.list_namespaced_job(cluster.namespace).items
    pod = job.spec.template.spec
    [container] = pod.containers
    assert re.fullmatch(r"flow-orders-[0-9a-f]{12}", job.metadata.name)
    assert job.metadata.labels["ematix-flow/pipeline"] == "orders"
    assert (job.spec.backoff_limit, job.spec.ttl_seconds_after_finished) == (0, 60)
    assert (pod.restart_policy, pod.service_account_name) == ("Never", "loader")
    assert container.args[0] == "run-slot" and container.args[-1] == "orders"
    assert container.resources.requests == {"cpu": "500m", "memory": "2Gi"}
    assert container.resources.limits == {"memory": "2Gi"}
    assert "db/log" not in str(job)


def test_what_the_page_allows_the_scheduler_is_enough_and_needed(cluster: Cluster) -> None:
    import yaml

    executor = cluster.executor("image=flow:oom", "scheduler")
    with pytest.raises(CannotDispatch, match="is forbidden"):
        cluster.job(executor)
    with pytest.raises(ConfigError, match="is forbidden") as refused:
        executor.poll_workers()
    assert "list pods" in str(refused.value)
    [role] = re.findall(r"```yaml\n(.*?kind: Role\n.*?)```", PAGE.read_text(), re.S)
    rbac = RbacAuthorizationV1Api(cluster.server.client())
    rbac.create_namespaced_role(cluster.namespace, yaml.safe_load(role))
    subject = {"kind": "User", "name": "scheduler", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "flow-scheduler", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "flow"}, "subjects": [subject], "roleRef": reference}
    rbac.create_namespaced_role_binding(cluster.namespace, binding)
    wait_until(lambda: _is_allowed(cluster, executor))
    assert wait_until(lambda: executor.poll_workers().exits)


def _is_allowed(cluster: Cluster, executor: Executor) -> bool:
    """A new role takes effect after a short time."""
    try:
        cluster.job(executor)
    except CannotDispatch:
        return False
    return True


def test_a_server_that_is_not_there_is_reported(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = cluster.server.kubeconfig.read_text()
    (tmp_path / "config").write_text(re.sub(r"https://127\.0\.0\.1:\d+", "https://127.0.0.1:9", text))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    executor = cluster.executor("image=flow:1")
    with pytest.raises(CannotDispatch, match="could not be made"):
        cluster.job(executor)
    with pytest.raises(ConfigError, match="cannot be read"):
        executor.poll_workers()
    with pytest.raises(ConfigError, match="no cluster can be found"):
        cluster.executor("image=flow:1", "elsewhere")


def test_a_password_is_not_written_into_a_job(cluster: Cluster) -> None:
    executor = cluster.executor("image=flow:1")
    with pytest.raises(UsageError, match="holds a password") as refused:
        executor.check("postgres://flow:geheim@db/log")
    assert "geheim@" not in str(refused.value) and "&env-from=flow" in str(refused.value)
    executor.check("postgres://flow@db/log")
    cluster.executor("image=flow:1&secret=flow").check("postgres://flow:geheim@db/log")
    with pytest.raises(UsageError, match="other machines"):
        executor.check("/var/lib/flow/run_log.db")
