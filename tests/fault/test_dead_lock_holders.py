"""A run is killed and a proxy keeps its connection open: the lock is still free soon."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from ematix_flow import Connection, MySQLConnection, PostgresConnection
from ematix_flow.backends.base import BatchTarget
from ematix_flow.backends.mysql.lock_owner_files import FOLDER, files_of_dead_owners, new_owner_lock
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql_servers.lock_session import session_name
from ematix_flow.errors import PipelineLocked
from ematix_flow.state.state_root import state_root

PIPELINE, TARGET = "load", "wh:s.t"
PATIENCE = 120.0
SERVERS = [("p", "pg_database"), ("m", "mysql_database"), ("m", "mariadb_database")]
HOLDER = """
import signal, sys, threading, uuid
from ematix_flow import MySQLConnection, PostgresConnection
from ematix_flow.backends.registry import open_backend
from ematix_flow.backends.sql_servers import lock_session

kind, url, lease, beat, machine = sys.argv[1:]
lock_session.LEASE_SECONDS, lock_session.HEARTBEAT_SECONDS = int(lease), float(beat)
if machine:
    lock_session.machine_id = lambda: machine
target = open_backend({"p": PostgresConnection, "m": MySQLConnection}[kind](name="wh", url=url)).target()
with target.lock("load", "wh:s.t", uuid.uuid4()):
    print("held", flush=True)
    (held,) = target._lock_sessions.values()
    while held.heartbeats * float(beat) < 2 * int(lease):
        threading.Event().wait(float(beat))
    print("beaten", flush=True)
    signal.pause()
"""


class Proxy:
    """A proxy that passes bytes on. When a client disconnects, the server does not notice."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._sockets += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65_536)
                    if not data:
                        return
                    (server if ready is client else client).sendall(data)

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            each.close()


@contextmanager
def killed_holder(
    kind: str, url: str, lease: int, beat: float, machine: str, until: str
) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock through the proxy; it is returned after it has printed ``until``."""
    port = urlsplit(url).port
    assert port is not None
    proxy = Proxy(port)
    through = url.replace(f":{port}/", f":{proxy.port}/")
    command = [sys.executable, "-c", HOLDER, kind, through, str(lease), str(beat), machine]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while (said := process.stdout.readline().strip()) != until:
            assert said, "the holder ended early"
        yield process
    finally:
        process.kill()
        process.communicate()
        proxy.close()


def target_at(kind: str, url: str) -> BatchTarget:
    connection: Connection = {"p": PostgresConnection, "m": MySQLConnection}[kind](name="wh", url=url)
    target = open_backend(connection).target()
    assert target is not None
    return target


def is_locked(target: BatchTarget) -> bool:
    try:
        with target.lock(PIPELINE, TARGET, uuid.uuid4()):
            return False
    except PipelineLocked:
        return True


@pytest.mark.parametrize(("kind", "database"), SERVERS)
def test_the_session_of_a_process_of_this_machine_that_is_gone_is_ended(
    kind: str, database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(database)
    target = target_at(kind, url)
    with killed_holder(kind, url, 3600, 3600, "", "held") as holder:
        assert is_locked(target)
        holder.send_signal(signal.SIGSTOP)  # it lives, and may continue
        assert is_locked(target)
        holder.kill()
        holder.wait()
        assert not is_locked(target)
        assert not is_locked(target)


def test_a_note_of_a_dead_process_ends_no_session_but_its_own(mariadb_database: str) -> None:
    """Two servers have a pipeline and a target of the same names, or one was restarted."""
    target = target_at("m", mariadb_database)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with killed_holder("m", mariadb_database, 3600, 3600, "another machine", "held"):
        folder = state_root(os.environ) / FOLDER
        (living,) = folder.iterdir()
        name = re.sub(r"pid \d+", f"pid {gone.pid}", session_name("ematix-flow", uuid.uuid4()))
        stale = living.with_name(living.name + "-stale")
        stale.write_text(json.dumps({"own": new_owner_lock(), "name": name}))
        (folder / f"{living.name}-broken").write_text("{")
        assert len(files_of_dead_owners(living.name.partition("-")[0])) == 1
        with pytest.raises(PipelineLocked) as refused, target.lock(PIPELINE, TARGET, uuid.uuid4()):
            raise AssertionError("the lock is held")
        assert re.search(
            r"the server ends the session .* at once with  KILL \d+", refused.value.next_step or ""
        )


@pytest.mark.parametrize(("kind", "database"), SERVERS)
def test_the_session_of_a_process_elsewhere_lives_by_heartbeats_and_is_ended_without_them(
    kind: str, database: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(database)
    target = target_at(kind, url)
    with killed_holder(kind, url, 1, 0.2, "another machine", "beaten") as holder:
        assert is_locked(target)  # longer than the lease, by its heartbeats
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + PATIENCE
        while is_locked(target) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not is_locked(target)
