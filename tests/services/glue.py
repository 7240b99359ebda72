"""An emulator of AWS Glue's schema registry: moto, from locked wheels. It does not check compatibility."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "moto"
LOCK = REPOSITORY / "lock" / "services-aws.txt"
REGION = "us-east-1"
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from moto.server import main; main(sys.argv[1:])"


def find() -> Path | None:
    """The folder of the wheels; it has its mark only when it is whole."""
    return PRIVATE if (PRIVATE / ".ready").exists() else None


def install() -> Path:
    """Install moto from locked wheels, which need no root."""
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
        raise ServiceUnavailable(f"moto could not be installed: {problem}") from problem
    (PRIVATE / ".ready").touch()
    return PRIVATE


class GlueServer:
    """One emulator; everything that it holds is in its memory."""

    def __init__(self, wheels: Path, folder: Path) -> None:
        self.folder = folder
        self._wheels = wheels
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def client(self) -> Any:
        """A boto3 client for tests."""
        import boto3

        return boto3.Session("test", "testtest", region_name=REGION).client(
            "glue", endpoint_url=self.endpoint
        )

    def create_registry(self) -> str:
        """A new empty registry."""
        name = f"t-{secrets.token_hex(4)}"
        self.client().create_registry(RegistryName=name)
        return name

    def start(self) -> None:
        for _ in range(5):  # another process may take a free port before us
            port = free_port()
            process = self._starter.submit(self._process_on, port).result()
            if self._answers(process, port):
                self._process, self._port = process, port
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"moto did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def _process_on(self, port: int) -> ServerProcess:
        command = [sys.executable, "-c", _START, str(self._wheels), "-H", "127.0.0.1", "-p", str(port)]
        return ServerProcess(command, None, self.folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess, port: int) -> bool:
        deadline = time.monotonic() + 90
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline and process.running:
            address = f"http://127.0.0.1:{port}/moto-api/data.json"
            with suppress(OSError, ValueError), opener.open(address, timeout=5) as answer:
                json.load(answer)
                return process.running
            time.sleep(0.2)
        return False


@contextmanager
def running_server() -> Iterator[GlueServer]:
    """A started emulator in its own folder; both are removed after the block, even if it fails."""
    wheels = find()
    if wheels is None:
        raise ServiceUnavailable("moto is not installed: run  python -m tests.services install")
    with in_own_folder("glue", lambda folder: GlueServer(wheels, folder)) as server:
        yield server
