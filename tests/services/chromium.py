"""Debian's Chromium from the system's packages: one browser without a window, which playwright steers.

The tests connect to it over its debugging port. Each opens its own context, which shares nothing with others.
"""

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

from tests.services.process import ServerProcess, ServiceUnavailable, in_own_folder

NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # no request of its maker's: the tests read and answer on loopback alone
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)


def find() -> Path | None:
    """The program: named by EMATIX_TEST_CHROMIUM, or on the path."""
    named = os.environ.get("EMATIX_TEST_CHROMIUM")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_CHROMIUM is {named}, which is not a file")
        return Path(named)
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return Path(found) if found else None


def install() -> Path:
    found = find()
    if found:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable("Chromium is not installed, and to install it needs root and apt-get")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    try:
        subprocess.run(["apt-get", "update", "-q", *wait], check=True, env=quiet)
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wait, "chromium"]
        subprocess.run(command, check=True, env=quiet)
    except subprocess.CalledProcessError as problem:
        raise ServiceUnavailable(f"Chromium could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable("Chromium was installed, but the program is missing")
    return found


class Chromium:
    """One browser; playwright connects to its ``endpoint``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.endpoint = ""
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    def start(self) -> None:
        self._process = self._starter.submit(self._start_process).result()
        port_file = self._folder / "profile" / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.running:
            lines = port_file.read_text().splitlines() if port_file.exists() else []
            if len(lines) == 2:
                self.endpoint = f"http://127.0.0.1:{lines[0]}"
                return
            time.sleep(0.02)
        raise ServiceUnavailable(f"Chromium did not start:\n{self._process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGTERM)
            self._process = None

    def _start_process(self) -> ServerProcess:
        program = find()
        if program is None:
            raise ServiceUnavailable("Chromium is not installed: run  python -m tests.services install")
        profile = f"--user-data-dir={self._folder / 'profile'}"
        command = [str(program), *_OPTIONS, "--remote-debugging-port=0", profile, "about:blank"]
        return ServerProcess(command, None, self._folder / "browser.log", dies_by=signal.SIGKILL)


@contextmanager
def running_server() -> Iterator[Chromium]:
    with in_own_folder("chromium", Chromium) as browser:
        yield browser
