"""A kubelet for a cluster without nodes: it runs the containers of pods as processes of this machine.

Only what executors meet. The name of an image says what becomes of its container: one whose tag is
``missing`` is never pulled, ``oom`` is killed for its memory, ``pending`` waits for a node.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException

WAITING = {"missing": "ImagePullBackOff"}


class Kubelet:
    """While the block runs, pods of the namespace run."""

    def __init__(self, client: Any, namespace: str, environment: Mapping[str, str]) -> None:
        self._core, self._namespace, self._environment = CoreV1Api(client), namespace, environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.kill()
        for process in self._running.values():
            process.wait()

    def kill(self) -> int:
        """The containers that run now die, as of a node that has no memory left; how many."""
        running = [process for process in self._running.values() if process.poll() is None]
        for process in running:
            process.kill()
        return len(running)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            for pod in self._core.list_namespaced_pod(self._namespace).items:
                with suppress(ApiException):  # it has been deleted
                    self._look_after(pod)

    def _look_after(self, pod: Any) -> None:
        name = pod.metadata.name
        if name not in self._seen:
            self._seen.add(name)
            self._begin(pod)
        elif name in self._running and self._running[name].poll() is not None:
            code = self._running.pop(name).returncode
            self._end(name, 128 - code if code < 0 else code)

    def _begin(self, pod: Any) -> None:
        name, container = pod.metadata.name, pod.spec.containers[0]
        tag = container.image.rpartition(":")[2]
        if tag == "pending":
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self._say(name, "Pending", conditions=[{**condition, "message": "0/0 nodes are available"}])
        elif tag == "missing":
            self._wait(name, "ImagePullBackOff", f'Back-off pulling image "{container.image}"')
        elif tag == "oom":
            self._end(name, 137, "OOMKilled")
        else:
            try:
                environment = self._variables(container)
            except KeyError as error:
                self._wait(name, "CreateContainerConfigError", str(error.args[0]))
                return
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", *container.args],
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
            )
            ready = {"type": "Ready", "status": "True"}
            self._say(name, "Running", {"running": {}}, conditions=[ready])

    def _variables(self, container: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.env_from or ():
            found |= self._secret(source.secret_ref.name)
        for variable in container.env or ():
            if variable.value_from is None:
                found[variable.name] = variable.value
                continue
            wanted = variable.value_from.secret_key_ref
            secret = self._secret(wanted.name)
            if wanted.key not in secret:
                raise KeyError(f"couldn't find key {wanted.key} in Secret {wanted.name}")
            found[variable.name] = secret[wanted.key]
        return found

    def _secret(self, name: str) -> dict[str, str]:
        import base64

        try:
            data = self._core.read_namespaced_secret(name, self._namespace).data or {}
        except ApiException:
            raise KeyError(f'secret "{name}" not found') from None
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def _wait(self, pod: str, reason: str, message: str) -> None:
        self._say(pod, "Pending", {"waiting": {"reason": reason, "message": message}})

    def _end(self, pod: str, code: int, reason: str | None = None) -> None:
        told = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
        if code == 128 + signal.SIGKILL and reason is None:
            told["reason"] = "OOMKilled"
        self._say(pod, "Failed" if code else "Succeeded", {"terminated": told})

    def _say(self, pod: str, phase: str, state: Any = None, conditions: Any = ()) -> None:
        status: dict[str, Any] = {"phase": phase, "conditions": list(conditions)}
        if state is not None:
            status["containerStatuses"] = [
                {"name": "flow", "image": "", "imageID": "", "ready": phase == "Running", "state": state}
                | {"restartCount": 0}
            ]
        self._core.patch_namespaced_pod_status(pod, self._namespace, {"status": status})


def container_environment() -> dict[str, str]:
    """The environment of an image: a Python that finds the package, and none of the scheduler's settings."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("EMATIX_FLOW_RUN", "KUBE"))}
