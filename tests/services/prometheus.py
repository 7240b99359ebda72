"""Prometheus' own tools from the system's packages: the Pushgateway, and ``promtool``, which checks rules."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

PACKAGES = ("prometheus", "prometheus-pushgateway")
PROGRAMS = ("promtool", "prometheus-pushgateway")


def find() -> Path | None:
    """The folder of the programs."""
    found = [shutil.which(program) for program in PROGRAMS]
    return Path(found[0]).parent if found[0] and all(found) else None


def install() -> Path:
    found = find()
    if found:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable("Prometheus is not installed, and to install it needs root and apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    try:
        subprocess.run(["apt-get", "update", "-q", *wait], check=True, env=quiet)
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wait, *PACKAGES]
        subprocess.run(command, check=True, env=quiet)
    except subprocess.CalledProcessError as problem:
        raise ServiceUnavailable(f"Prometheus could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable("Prometheus was installed, but its programs are missing")
    return found


def promtool() -> str:
    """The program that checks rules, metrics and what alerts come of them."""
    if find() is None:
        raise ServiceUnavailable("promtool is not installed: run  python -m tests.services install")
    return str(shutil.which("promtool"))


class Pushgateway:
    """One gateway, which keeps all in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        for _ in range(5):  # another process may take a free port before us
            self._port = free_port()
            process = self._starter.submit(self._process_on, self._port).result()
            if self._answers(process):
                self._process = process
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"the Pushgateway did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGTERM)
            self._process = None

    def text(self) -> str:
        """What a Prometheus would scrape."""
        with urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
            return bytes(answer.read()).decode()

    def _process_on(self, port: int) -> ServerProcess:
        command = [
            str(shutil.which("prometheus-pushgateway")),
            f"--web.listen-address=127.0.0.1:{port}",
            "--persistence.file=",  # Debian's keeps all in one file of the system otherwise
        ]
        return ServerProcess(command, None, self._folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess) -> bool:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.running:
            try:
                with urlopen(f"http://{self.address}/-/ready", timeout=5):
                    return process.running
            except OSError:
                time.sleep(0.05)
        return False


@contextmanager
def running_gateway() -> Iterator[Pushgateway]:
    if find() is None:
        raise ServiceUnavailable("no Pushgateway is installed: run  python -m tests.services install")
    with in_own_folder("pushgateway", Pushgateway) as server:
        yield server
