"""A private Azure Blob Storage: Microsoft's own emulator Azurite from npm, pinned with its integrity.

It keeps everything in memory, checks signatures and enforces conditions on writes.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.services.npm import bring_package, found_package, node
from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).parent / "azurite"
PRIVATE = REPOSITORY / ".services" / "azurite"
_SCRIPT = "azurite/dist/src/blob/main.js"


def find() -> Path | None:
    """The emulator's script: named by EMATIX_TEST_AZURITE, or ours."""
    named = os.environ.get("EMATIX_TEST_AZURITE")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_AZURITE is {named}, which is not a file")
        return Path(named)
    return found_package(PACKAGE, PRIVATE, _SCRIPT)


def install() -> Path:
    """Install the locked package; Node must be installed."""
    return find() or bring_package("Azurite", PACKAGE, PRIVATE, _SCRIPT)


class AzureServer:
    """One emulator. It forgets everything when it stops; its port and account stay the same."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script, self._folder = script, folder
        self.account = f"acct{secrets.token_hex(4)}"
        self.key = base64.b64encode(secrets.token_bytes(32)).decode()
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}/{self.account}"

    def url(self, container: str, prefix: str = "") -> str:
        """How a run log in a container of this server is named."""
        options = f"endpoint={self.endpoint}&account_key={quote(self.key, safe='')}"
        return f"azureblob://{self.account}/{container}/{prefix}?{options}"

    def client(self) -> Any:
        from azure.storage.blob import BlobServiceClient

        credential = {"account_name": self.account, "account_key": self.key}
        return BlobServiceClient(self.endpoint, credential=credential)

    def create_container(self, hint: str = "") -> str:
        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:30].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        with self.client() as client:
            client.create_container(name)
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
        raise ServiceUnavailable(f"Azurite did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def _process_on(self, port: int) -> ServerProcess:
        settings = ["env", f"AZURITE_ACCOUNTS={self.account}:{self.key}", node(), str(self._script)]
        address = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return ServerProcess(
            [*settings, *address, *quiet], None, self._folder / "server.log", dies_by=signal.SIGKILL
        )

    def _answers(self, process: ServerProcess) -> bool:
        """Ours knows our account: another's would refuse it otherwise."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.running:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", f"/{self.account}?comp=list")
                if connection.getresponse().status == 403:
                    return process.running
            connection.close()
            time.sleep(0.1)
        return False


@contextmanager
def running_server() -> Iterator[AzureServer]:
    """A started emulator in its own folder; both are removed after the block, even if it fails."""
    script = find()
    if script is None:
        raise ServiceUnavailable("Azurite is not installed: run  python -m tests.services install")
    with in_own_folder("azure", lambda folder: AzureServer(script, folder)) as server:
        yield server
