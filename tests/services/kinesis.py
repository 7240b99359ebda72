"""A private Kinesis emulator: ``kinesis-local`` from npm, pinned with its integrity.

The service itself cannot be run outside Amazon. This one keeps streams, shards, splits and merges in
memory; it accepts any keys, and listens on every address of the machine, which cannot be changed.
"""

from __future__ import annotations

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

from tests.services.npm import bring_package, found_package, node
from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).parent / "kinesis_local"
PRIVATE = REPOSITORY / ".services" / "kinesis-local"
_SCRIPT = "kinesis-local/main.js"
REGION = "us-east-1"
_SOON = "100ms"  # how long the emulator reports CREATING, UPDATING and DELETING


def find() -> Path | None:
    """The emulator's script: named by EMATIX_TEST_KINESIS, or ours."""
    named = os.environ.get("EMATIX_TEST_KINESIS")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_KINESIS is {named}, which is not a file")
        return Path(named)
    return found_package(PACKAGE, PRIVATE, _SCRIPT)


def install() -> Path:
    """Install the locked package; Node must be installed."""
    return find() or bring_package("the Kinesis emulator", PACKAGE, PRIVATE, _SCRIPT)


class KinesisServer:
    """One emulator. It forgets everything when it stops; its port stays the same."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script, self._folder = script, folder
        self._ports: tuple[int, int] | None = None
        self._process: ServerProcess | None = None
        self._client: Any = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def endpoint(self) -> str:
        if self._ports is None:
            raise ServiceUnavailable("the Kinesis emulator was not started")
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def connection_fields(self, stream: str) -> dict[str, Any]:
        """What a connection to a stream of this emulator is declared with."""
        return {
            "stream_name": stream,
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": "tests",
            "secret_access_key": "anything-goes-here",
        }

    def start(self) -> None:
        """Start it unless it runs; back only when it answers."""
        if self.running:
            return
        for _ in range(5):  # another process may take a free port before us
            ports = self._ports or (free_port(), free_port())
            process = self._starter.submit(self._process_on, *ports).result()
            if self._answers(process, ports[0]):
                self._process, self._ports = process, ports
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"the Kinesis emulator did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def client(self) -> Any:
        """A boto3 client for tests."""
        if self._client is None:
            import boto3
            from botocore.config import Config

            config = Config(connect_timeout=5, read_timeout=30, proxies={})
            session = boto3.Session("tests", "anything-goes-here", region_name=REGION)
            self._client = session.client("kinesis", endpoint_url=self.endpoint, config=config)
        return self._client

    def create_stream(self, hint: str = "", *, shards: int = 1) -> str:
        """A new empty stream, ready for use; its name starts with what is usable of the hint."""
        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:60].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        self.client().create_stream(StreamName=name, ShardCount=shards)
        self.wait_until_active(name)
        return name

    def wait_until_active(self, stream: str) -> None:
        """Until a creation, split or merge is done."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            summary = self.client().describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
            if summary["StreamStatus"] == "ACTIVE":
                return
            time.sleep(0.05)
        raise ServiceUnavailable(f"stream {stream} of the Kinesis emulator did not become active")

    def drop_stream(self, name: str) -> None:
        self.start()  # a test may have left it down, and it remembers nothing
        with suppress(self.client().exceptions.ResourceNotFoundException):
            self.client().delete_stream(StreamName=name)

    def put(self, stream: str, records: list[tuple[str, bytes]]) -> list[str]:
        """Pairs of partition key and data; the shard that each went to, in order."""
        shards: list[str] = []
        for first in range(0, len(records), 500):
            chunk = [{"PartitionKey": key, "Data": data} for key, data in records[first : first + 500]]
            answer = self.client().put_records(StreamName=stream, Records=chunk)
            assert answer["FailedRecordCount"] == 0, answer
            shards += [record["ShardId"] for record in answer["Records"]]
        return shards

    # ------------------------------------------------------------------ the process

    def _process_on(self, plain: int, tls: int) -> ServerProcess:
        settings = {
            "KINESIS_MOCK_PLAIN_PORT": str(plain),
            "KINESIS_MOCK_TLS_PORT": str(tls),
            "SHARD_LIMIT": "1000",
            "LOG_LEVEL": "ERROR",
            **{f"{step}_DURATION": _SOON for step in ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD")},
            **{f"{step}_DURATION": _SOON for step in ("MERGE_SHARDS", "UPDATE_SHARD_COUNT")},
        }
        told = [f"{name}={value}" for name, value in settings.items()]
        # it reads its certificate from the working folder
        command = ["env", f"--chdir={self._script.parent}", *told, node(), str(self._script)]
        return ServerProcess(command, None, self._folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess, port: int) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.running:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/healthcheck")
                if connection.getresponse().status == 200:
                    return process.running
            connection.close()
            time.sleep(0.1)
        return False


@contextmanager
def running_server() -> Iterator[KinesisServer]:
    """A started emulator in its own folder; both are removed after the block, even if it fails."""
    script = find()
    if script is None:
        raise ServiceUnavailable("no Kinesis emulator is installed: run  python -m tests.services install")
    with in_own_folder("kinesis", lambda folder: KinesisServer(script, folder)) as server:
        yield server
