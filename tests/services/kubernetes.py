"""A private Kubernetes: its own API server with its store and its controller of Jobs, in one process.

Built once from the pinned Go modules of Kubernetes, which takes minutes. There are no nodes and no garbage
collector: a test plays the kubelet, through the API.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import ssl
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.services.certificates import make_certificates
from tests.services.go_programs import GoProgram
from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

PROGRAM = GoProgram(
    # not optimised, because it is built far longer than it runs
    "kubetest",
    "the API server of Kubernetes",
    ("-gcflags=all=-N -l", "-ldflags=-s -w"),
)


def find() -> Path | None:
    """The program: named by EMATIX_TEST_KUBERNETES, or the one built from this very module."""
    named = os.environ.get("EMATIX_TEST_KUBERNETES")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_KUBERNETES is {named}, which is not a file")
        return Path(named)
    return PROGRAM.built()


def install() -> Path:
    return find() or PROGRAM.build()


class KubernetesServer:
    """One cluster without nodes. ``admin`` may do anything, ``scheduler`` what a test allows it."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._certificates = make_certificates(folder / "certificates")
        self._tokens = {name: secrets.token_hex(8) for name in ("admin", "scheduler")}
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig whose contexts are named like the users."""
        return self._folder / "kubeconfig"

    def client(self) -> Any:
        """The official client, as admin."""
        from kubernetes import config

        return config.new_client_from_config(str(self.kubeconfig), context="admin")

    def start(self) -> None:
        for _ in range(5):  # another process may take a free port before us
            self._port = free_port()
            self._write_files()
            process = self._starter.submit(self._process_on, self._port).result()
            if self._answers(process):
                self._process = process
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"the API server of Kubernetes did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def create_namespace(self, hint: str = "") -> str:
        """A new namespace; its name starts with what is usable of the hint."""
        from kubernetes.client import CoreV1Api

        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:40].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        CoreV1Api(self.client()).create_namespace({"metadata": {"name": name}})
        return name

    # ------------------------------------------------------------------ the process

    def _write_files(self) -> None:
        users = {"admin": '"system:masters"', "scheduler": ""}
        lines = [f"{self._tokens[name]},{name},{name},{groups}" for name, groups in users.items()]
        (self._folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        cluster = {
            "server": f"https://127.0.0.1:{self._port}",
            "certificate-authority": str(self._certificates.authority),
        }
        told = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "admin",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": n, "user": {"token": token}} for n, token in self._tokens.items()],
            "contexts": [{"name": n, "context": {"cluster": "tests", "user": n}} for n in self._tokens],
        }
        self.kubeconfig.write_text(json.dumps(told))

    def _process_on(self, port: int) -> ServerProcess:
        key = self._certificates.key
        command = [
            *(str(self._program), str(self._folder / f"etcd-{port}"), str(free_port()), str(free_port())),
            str(self.kubeconfig),
            *("--bind-address=127.0.0.1", f"--secure-port={port}"),
            f"--tls-cert-file={self._certificates.certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://tests",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",  # nothing makes accounts here
            "--v=0",
        ]
        return ServerProcess(command, None, self._folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess) -> bool:
        deadline = time.monotonic() + 120
        trust = ssl.create_default_context(cafile=str(self._certificates.authority))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        question = urllib.request.Request(
            f"https://127.0.0.1:{self._port}/readyz",
            headers={"Authorization": f"Bearer {self._tokens['admin']}"},
        )
        while time.monotonic() < deadline and process.running:
            with suppress(OSError), opener.open(question, timeout=5) as answer:
                if answer.status == 200:
                    return process.running
            time.sleep(0.1)
        return False


@contextmanager
def running_server() -> Iterator[KubernetesServer]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    program = find()
    if program is None:
        raise ServiceUnavailable(
            "no API server of Kubernetes is installed: run  python -m tests.services install"
        )
    with in_own_folder("kubernetes", lambda folder: KubernetesServer(program, folder)) as server:
        yield server
