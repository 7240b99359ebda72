"""Builds the Job of a run: its name, labels and pod. Reads from a Job its claim and why its pod ended."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ematix_flow.observe.settings import ALERTERS_VARIABLE, METRICS_VARIABLE
from ematix_flow.schedule.executors.base import RUN_LOG_VARIABLE, RunDispatch
from ematix_flow.state.slots.base import Claim, Slot

OUR_LABEL = "app.kubernetes.io/managed-by=ematix-flow"
_PREFIX = "ematix-flow/"
_VARIABLES_WITHOUT_SECRET = (METRICS_VARIABLE, "EMATIX_FLOW_LOG_FORMAT")  # hold no secret
# reasons of a waiting container that will never start
HOPELESS_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


@dataclass(frozen=True)
class PodOptions:
    """The options of every pod of an executor. ``secret`` names a Secret whose keys are variables."""

    namespace: str
    image: str
    service_account: str | None = None
    secret: str | None = None
    cpu: str | None = None
    memory: str | None = None
    ttl_seconds: int = 3600
    start_seconds: int = 600


def job_manifest(job: RunDispatch, options: PodOptions) -> dict[str, Any]:
    """Return the Job of one claim. If a Secret is named, the Job does not contain the run log's URL."""
    labels = {
        "app.kubernetes.io/managed-by": "ematix-flow",
        "app.kubernetes.io/component": "run",
        f"{_PREFIX}pipeline": _label(job.claim.slot.pipeline),
        f"{_PREFIX}claim": _digest(job.claim),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(job.claim),
            "labels": labels,
            "annotations": {f"{_PREFIX}claim": _claim_to_text(job.claim)},
        },
        "spec": {
            "backoffLimit": 0,  # the slot's own policy retries
            "ttlSecondsAfterFinished": options.ttl_seconds,
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(job, options)},
        },
    }


def _pod_spec(job: RunDispatch, options: PodOptions) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "flow",
        "image": options.image,
        "args": job.arguments(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that its last lines are in its status
    }
    container["env"] = [
        {"name": name, "value": value} for name, value in _plain_variables(job, options).items()
    ]
    if options.secret:
        container["envFrom"] = [{"secretRef": {"name": options.secret}}]
        # by name too: a pod that does not find them does not start, and its Job has the reason
        for name in (RUN_LOG_VARIABLE, *(name for name in (ALERTERS_VARIABLE,) if name in job.environment)):
            reference = {"name": options.secret, "key": name}
            container["env"] += [{"name": name, "valueFrom": {"secretKeyRef": reference}}]
    requests = {k: v for k, v in (("cpu", options.cpu), ("memory", options.memory)) if v}
    if requests:
        limits = {"limits": {"memory": options.memory}} if options.memory else {}
        container["resources"] = {"requests": requests, **limits}
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    return pod


def _plain_variables(job: RunDispatch, options: PodOptions) -> dict[str, str]:
    """Return the variables that readers of the Job may see. Alerter and trace URLs come with the Secret."""
    run_log = {} if options.secret or job.run_log is None else {RUN_LOG_VARIABLE: job.run_log}
    return run_log | {
        name: value for name, value in job.environment.items() if name in _VARIABLES_WITHOUT_SECRET
    }


def job_name(claim: Claim) -> str:
    """Return the Job's name: unique for a claim, so that a Job is made once, and valid as a DNS label."""
    slug = re.sub(r"[^a-z0-9]+", "-", claim.slot.pipeline.lower())[:40].strip("-")
    return f"flow-{slug}-{_digest(claim)}" if slug else f"flow-{_digest(claim)}"


def _label(text: str) -> str:
    """Return the part of a name that a label may hold; the whole name is in the annotation."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def _digest(claim: Claim) -> str:
    return hashlib.sha256(_claim_to_text(claim).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _claim_to_text(claim: Claim) -> str:
    return json.dumps([claim.slot.pipeline, claim.slot.fire_time.isoformat(), claim.fence, claim.holder])


def claim_of_job(job: Mapping[str, Any]) -> Claim | None:
    """Return the claim of a Job; None if the Job is not ours."""
    try:
        text = job["metadata"]["annotations"][f"{_PREFIX}claim"]
        pipeline, at, fence, holder = json.loads(text)
        return Claim(Slot(str(pipeline), dt.datetime.fromisoformat(at)), str(holder), int(fence), 0)
    except (KeyError, TypeError, ValueError):
        return None


def true_condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of a Job or pod, if it is true."""
    conditions = thing.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None)


def waiting_reason(pod: Mapping[str, Any] | None) -> tuple[str, bool]:
    """Return why a pod has not started, and whether it never will."""
    if pod is None:
        return "no pod was made for it", False
    for container in pod.get("status", {}).get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return _reason_text(waiting), waiting.get("reason") in HOPELESS_REASONS
    for found in pod.get("status", {}).get("conditions") or []:
        if found.get("type") == "PodScheduled" and found.get("status") == "False":
            return _reason_text(found), False
    return "its pod has not begun", False


def failure_reason(job: Mapping[str, Any], pod: Mapping[str, Any] | None) -> str:
    """Return why a Job failed: from its container, its pod or its own condition, in this order."""
    status = (pod or {}).get("status", {})
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return f"{_reason_text(ended)} (exit code {ended.get('exitCode')})"
    if status.get("reason"):  # such as Evicted
        return _reason_text(status)
    return _reason_text(true_condition(job, "Failed") or {"reason": "the Job failed"})


def _reason_text(status: Mapping[str, Any]) -> str:
    """Return a reason with the last line of its message."""
    lines = str(status.get("message") or "").strip().splitlines()
    reason = str(status.get("reason") or "unknown")
    return f"{reason}: {lines[-1].strip()[:300]}" if lines else reason
