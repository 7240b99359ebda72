"""Maxwell, the real one: it follows the binary log of a MariaDB into a file of change events.

Its jars come by the Ivy inside PySpark. It keeps its place in the database ``maxwell`` of the server that it
follows, so that a killed one goes on from there. The version in the lock refuses MySQL from 8.4 on, which no
longer knows ``SHOW MASTER STATUS``.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ematix_flow.engine.jvm import jars
from ematix_flow.engine.jvm.java_runtime import find_java
from ematix_flow.errors import FlowError
from tests.services.mysql_server import SUPERUSER, MySQLServer
from tests.services.process import ServerProcess, ServiceUnavailable

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "maxwell"
LOCK = REPOSITORY / "lock" / "services-maxwell.toml"
LONG_TESTS_ONLY = True
SERVER_SETTINGS = {
    "log-bin": "binlog",
    "server-id": "1",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "character-set-server": "utf8mb4",
    "old-mode": "",  # else Maxwell's own tables are in utf8mb3, a name that this version does not know
}
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_ABSENT_CLASS = "jdk/nashorn/api/scripting/ScriptObjectMirror"


def find() -> Path | None:
    """The folder of its jars."""
    there = jars.jar_status(env=_private(), lock=jars.jar_lock(LOCK))
    return there[0].path.parent if all(jar.present for jar in there) else None


def install() -> Path:
    """Fetch the jars that the lock names, which needs no root."""
    found = find()
    if found:
        return found
    try:
        return jars.fetch_jars(env=_private(), lock=jars.jar_lock(LOCK))[0].path.parent
    except FlowError as problem:
        raise ServiceUnavailable(f"Maxwell could not be installed: {problem}") from problem


def _private() -> dict[str, str]:
    return {**os.environ, "EMATIX_FLOW_CACHE": str(PRIVATE)}


class MaxwellDaemon:
    """Follows one table of a server that runs with `SERVER_SETTINGS`."""

    def __init__(self, folder: Path, server: MySQLServer, database: str, table: str) -> None:
        found = find()
        if found is None:
            raise ServiceUnavailable(
                "Maxwell is not installed: run  python -m tests.services install maxwell"
            )
        self.folder, self.events_file = folder, folder / "events.jsonl"
        self._process: ServerProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.events_file.touch()
        _write_absent_class(folder / "absent.jar")
        options = {
            "host": "127.0.0.1",
            "port": server.port,
            "user": SUPERUSER,
            "password": server.password,
            "filter": f"exclude: *.*, include: {database}.{table}",
            "producer": "file",
            "output_file": self.events_file,
            "output_binlog_position": "true",
            "output_xoffset": "true",
        }
        self._command = [str(find_java(os.environ).executable), *_JAVA_OPTIONS]
        self._command += ["-cp", f"{found}/*:{folder / 'absent.jar'}", "com.zendesk.maxwell.Maxwell"]
        self._command += [f"--{name}={value}" for name, value in options.items()]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start it unless it runs. It follows the log some seconds later."""
        if not self.running:
            self.events_file.write_bytes(self._whole_lines())  # a killed one may have left half a line
            self._process = ServerProcess(self._command, None, self.folder / "maxwell.log", signal.SIGKILL)

    def kill(self) -> None:
        """Kill it. What it had not marked as read comes again after the next start."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    @property
    def follows(self) -> bool:
        """Whether it has reached the log, at least once."""
        return "Binlog connected" in self.log_tail(1_000)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.messages()]

    def messages(self) -> list[bytes]:
        """What it has sent so far, in order and as it was written."""
        return self._whole_lines().splitlines()

    def _whole_lines(self) -> bytes:
        found, end, _ = self.events_file.read_bytes().rpartition(b"\n")
        return found + end

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join((self.folder / "maxwell.log").read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def following(daemon: MaxwellDaemon) -> Iterator[MaxwellDaemon]:
    """The daemon, started; killed after the block."""
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.kill()


def _write_absent_class(jar: Path) -> None:
    """An empty class in the place of one that Java has lost with version 15: Maxwell asks of each value
    whether it is of that class, which only scripts make.
    """

    def named(text: str, class_index: int) -> bytes:
        return struct.pack(">BH", 1, len(text)) + text.encode() + struct.pack(">BH", 7, class_index)

    constants = named(_ABSENT_CLASS, 1) + named("java/lang/Object", 3)
    header = struct.pack(">IHHH", 0xCAFEBABE, 0, 52, 5)
    rest = struct.pack(">7H", 0x0421, 2, 4, 0, 0, 0, 0)  # public and abstract, without members
    with zipfile.ZipFile(jar, "w") as made:
        made.writestr(f"{_ABSENT_CLASS}.class", header + constants + rest)
