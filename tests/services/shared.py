"""One server of a kind for a whole test run, however many workers it has.

The process that the user started keeps the servers: under xdist the controller, which outlives its workers.
A worker asks it for a server by name, over a Unix socket; the first question starts the server, and the end
of the run stops it. If the controller is killed, each server dies with the thread that started it. Without
xdist there is one test process, which starts its own.

MariaDB and MySQL are not shared: there a schema is a database, so that two tests with a schema of one name
would meet. A module that stops, restarts or reconfigures a server takes its own: `private_server`.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import pytest

from tests.services import azure, chromium, gcs, kafka, kinesis, postgres, pubsub, rabbitmq, s3
from tests.services.certificates import make_certificates
from tests.services.process import ServerProcess, ServiceUnavailable

ADDRESS = "EMATIX_TEST_SERVERS"  # where the workers find the keeper
STARTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "azure": azure.running_server,
    "chromium": chromium.running_server,
    "gcs": gcs.running_server,
    "kafka": kafka.running_server,
    "kinesis": kinesis.running_server,
    "postgres": postgres.running_server,
    "pubsub": pubsub.running_server,
    "rabbitmq": lambda: rabbitmq.running_server(make_certificates),
    "s3": s3.running_server,
}
_OWNED_BY_A_PROCESS: dict[str, Any] = {"_starter": None, "_client": None, "_clients": {}}


class SharedProcess:
    """A server's process as a worker sees it: it runs, and only the keeper ends it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def running(self) -> bool:
        if not Path(f"/proc/{self.pid}").exists() and Path("/proc").exists():
            raise ServiceUnavailable(f"the shared server with process id {self.pid} died")
        return True

    def end(self, *_: object, **__: object) -> None:
        raise ServiceUnavailable(
            "this server is shared by the whole run; a module that stops one takes its own: private_server"
        )


def without_process(server: Any) -> Any:
    """A copy of a server that another process can use: its addresses and secrets, not its own handles."""
    copied = copy.copy(server)
    for name, value in vars(server).items():
        if isinstance(value, ServerProcess):
            setattr(copied, name, SharedProcess(value.pid))
        elif name in _OWNED_BY_A_PROCESS:
            setattr(copied, name, copy.copy(_OWNED_BY_A_PROCESS[name]))
    return copied


class _Kept:
    """One server and the thread that started it, which lives as long: the process dies with it."""

    def __init__(self, start: Callable[[], AbstractContextManager[Any]]) -> None:
        self._start = start
        self.server: Future[Any] = Future()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        try:
            with self._start() as server:
                self.server.set_result(server)
                self._ends.wait()
        except Exception as problem:
            if self.server.done():
                raise
            self.server.set_exception(problem)

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)


class Keeper:
    """The servers of this run, started when a worker first asks."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ematix-flow-servers-"))
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._listener = Listener(str(self._folder / "socket"), "AF_UNIX", backlog=16)
        os.environ[ADDRESS] = str(self._folder / "socket")
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            kind = connection.recv()
            try:
                with self._lock:
                    kept = self._kept.get(kind) or self._kept.setdefault(kind, _Kept(STARTS[kind]))
                connection.send((without_process(kept.server.result()), ""))
            except Exception as problem:
                connection.send((None, f"{type(problem).__name__}: {problem}"))

    def close(self) -> None:
        os.environ.pop(ADDRESS, None)
        self._listener.close()
        for kept in self._kept.values():
            kept.end()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def shared_server(kind: str) -> Iterator[Any]:
    """The run's server of this kind."""
    address = os.environ.get(ADDRESS)
    if address is None:
        with STARTS[kind]() as server:
            yield server
        return
    with Client(address, "AF_UNIX") as connection:
        connection.send(kind)
        server, problem = connection.recv()
    if server is None:
        raise ServiceUnavailable(problem)
    yield server


def private_server(kind: str) -> Any:
    """A fixture that gives the tests of one module their own server, which they may stop and restart."""

    @pytest.fixture(scope="module", name=kind)
    def server() -> Iterator[Any]:
        with STARTS[kind]() as own:
            yield own

    return server
