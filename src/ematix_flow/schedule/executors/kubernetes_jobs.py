"""``k8s://``: each run is a Job of a Kubernetes cluster. The image's entry point is ``flow``.

The cluster holds all state: a Job carries its claim, so that any scheduler sees the state of every run, even
of runs that another scheduler started.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.observe.settings import ALERTERS_VARIABLE
from ematix_flow.schedule.executors.base import (
    RUN_LOG_VARIABLE,
    CannotDispatch,
    Executor,
    RunDispatch,
    WorkerExit,
    WorkerState,
    has_secret,
    require_engine_without_secret,
    require_shared_run_log,
)
from ematix_flow.schedule.executors.kubernetes_manifests import (
    OUR_LABEL,
    PodOptions,
    claim_of_job,
    failure_reason,
    job_manifest,
    true_condition,
    waiting_reason,
)
from ematix_flow.state.slots.base import Claim

KubernetesObject = Mapping[str, Any]  # as the cluster writes it
_TIMEOUT = (5.0, 30.0)  # to connect, to answer
_PAGE = 500
_HOPELESS_START_SECONDS = 60.0  # a registry or a Secret may become available late


class KubernetesExecutor(Executor):
    """Runs slots as Jobs. ``workers`` limits the Jobs at once; without it the cluster's quotas decide."""

    def __init__(
        self, options: PodOptions, *, workers: int | None = None, context: str | None = None
    ) -> None:
        client = open_client(context)
        from kubernetes.client import BatchV1Api, CoreV1Api

        self.options, self.workers = options, workers
        self._jobs: Any = BatchV1Api(client)
        self._pods: Any = CoreV1Api(client)
        self._reported_jobs: set[str] = set()  # uids of Jobs whose end was reported
        self._waits_since: dict[str, float] = {}  # by the uid of one that has not begun
        self._unfinished = 0

    def check(self, run_log: str, engine: str | None = None) -> None:
        require_shared_run_log("k8s://", run_log)
        require_engine_without_secret("k8s://", engine, "in the Secret that &env-from= names")
        if self.options.secret is None and has_secret(run_log):
            raise UsageError(
                "the run log's URL holds a password, which must not be written into a Job",
                next_step=self._secret_advice(f"--from-literal={RUN_LOG_VARIABLE}=…"),
            )

    def check_alerts(self) -> None:
        """Alerter URLs are secrets: without a Secret the pods could not send alerts."""
        if self.options.secret is None:
            wanted = (RUN_LOG_VARIABLE, ALERTERS_VARIABLE)
            raise UsageError(
                "runs of k8s:// could send no alerts: an alerter's URL must not be written into a Job",
                next_step=self._secret_advice(" ".join(f"--from-literal={name}=…" for name in wanted)),
            )

    def _secret_advice(self, content: str) -> str:
        command = f"kubectl create secret generic flow --namespace {self.options.namespace} {content}"
        return f"{command}  and add  &env-from=flow  to the executor"

    def capacity(self) -> int | None:
        return None if self.workers is None else self.workers - self._unfinished

    def dispatch(self, job: RunDispatch) -> None:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        name = job.claim.slot.pipeline
        try:
            self._jobs.create_namespaced_job(
                self.options.namespace, job_manifest(job, self.options), _request_timeout=_TIMEOUT
            )
        except ApiException as error:
            if error.status != 409:  # an earlier request made it, and only its answer was lost
                raise CannotDispatch(
                    f"the cluster refused the Job of {name!r}: {_server_message(error)}",
                    next_step=f"look at what the scheduler may do in namespace {self.options.namespace!r}",
                ) from error
        except (HTTPError, OSError) as error:
            raise CannotDispatch(
                f"the Job of {name!r} could not be made: {_server_message(error)}",
                next_step="check that the cluster's API server is reachable",
            ) from error
        self._unfinished += 1

    def poll_workers(self) -> WorkerState:
        ended: list[WorkerExit] = []
        starting: list[Claim] = []
        waits: dict[str, float] = {}
        unfinished = 0
        pods: dict[str, KubernetesObject] | None = None
        reported: set[str] = set()
        for job in self._list_all(self._jobs.list_namespaced_job):
            claim, uid = claim_of_job(job), job["metadata"]["uid"]
            if claim is None or true_condition(job, "Complete"):
                continue
            if true_condition(job, "Failed"):
                if uid not in self._reported_jobs:
                    pods = self._unhealthy_pods() if pods is None else pods
                    ended.append(WorkerExit(claim, failure_reason(job, pods.get(uid))))
                reported.add(uid)
                continue
            unfinished += 1
            if job.get("status", {}).get("ready"):
                continue
            pods = self._unhealthy_pods() if pods is None else pods
            pod = pods.get(uid)
            if pod is None and job.get("status", {}).get("active"):
                continue  # it runs
            waits[uid] = self._waits_since.get(uid, time.monotonic())
            reason, hopeless = waiting_reason(pod)
            patience = min(_HOPELESS_START_SECONDS, self.options.start_seconds)
            limit = patience if hopeless else self.options.start_seconds
            if time.monotonic() - waits[uid] < limit:
                starting.append(claim)
            else:
                self._delete_job(job)
                ended.append(WorkerExit(claim, f"it did not start in {limit:g} s: {reason}"))
        self._reported_jobs, self._waits_since, self._unfinished = reported, waits, unfinished
        return WorkerState(ended, starting)

    def close(self, grace: float) -> None:
        """Jobs go on by themselves."""

    def abandon(self) -> None:
        """Nothing to do."""

    # ------------------------------------------------------------------ the cluster

    def _unhealthy_pods(self) -> dict[str, KubernetesObject]:
        """Return pods that wait or have failed, by the uid of their Job."""
        neither = "status.phase!=Running,status.phase!=Succeeded"
        found: dict[str, KubernetesObject] = {}
        for pod in self._list_all(self._pods.list_namespaced_pod, field_selector=neither):
            for owner in pod["metadata"].get("ownerReferences") or ():
                found[owner["uid"]] = pod
        return found

    def _list_all(self, listing: Callable[..., Any], **more: str) -> Iterator[KubernetesObject]:
        """Yield all objects page by page, as plain JSON: thousands of client objects take seconds."""
        after: str | None = None
        while True:
            page = partial(listing, self.options.namespace, label_selector=OUR_LABEL, limit=_PAGE, **more)
            if after is not None:
                page = partial(page, _continue=after)
            answer = self._call_cluster(partial(page, _preload_content=False, _request_timeout=_TIMEOUT))
            found = json.loads(answer.data)
            yield from found["items"]
            after = found["metadata"].get("continue")
            if not after:
                return

    def _delete_job(self, job: KubernetesObject) -> None:
        """Delete the Job and its pod. It does not matter if it is already deleted."""
        from kubernetes.client.exceptions import ApiException

        def delete() -> Any:
            try:
                return self._jobs.delete_namespaced_job(
                    job["metadata"]["name"],
                    self.options.namespace,
                    propagation_policy="Background",
                    _request_timeout=_TIMEOUT,
                )
            except ApiException as error:
                if error.status != 404:
                    raise

        self._call_cluster(delete)

    def _call_cluster(self, call: Callable[[], Any]) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call()
        except (ApiException, HTTPError, OSError) as error:
            raise ConfigError(
                f"the Jobs of the namespace {self.options.namespace!r} cannot be "
                f"read: {_server_message(error)}",
                next_step="the scheduler must be allowed to create, list and delete Jobs, and to list pods",
            ) from error


def open_client(context: str | None) -> Any:
    """Return the client for the cluster that the scheduler runs in, else for the kubeconfig."""
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise ConfigError(
            "k8s:// needs the client of Kubernetes, which is not installed",
            next_step="pip install 'ematix-flow-spark[executor-k8s]'",
        ) from error
    configuration, loading = client.Configuration(), cast(Any, config)
    try:
        if context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            loading.load_incluster_config(client_configuration=configuration)
        else:
            kubeconfig = os.environ.get("KUBECONFIG")  # the client itself reads it when it is imported
            loading.load_kube_config(kubeconfig, context=context, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError(
            f"no cluster can be found for k8s://: {error}",
            next_step="run inside the cluster, or name a kubeconfig by KUBECONFIG and &context=",
        ) from error
    return client.ApiClient(configuration)


def _server_message(error: Exception) -> str:
    """Return the message of the server, or else of the client."""
    body = getattr(error, "body", None)
    if body:
        try:
            return str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            return f"{getattr(error, 'status', '')} {getattr(error, 'reason', '')}".strip()
    return str(getattr(error, "reason", None) or error)
