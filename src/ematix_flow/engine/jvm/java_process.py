"""Spark's Java process: its command, its log file, its start and its end. Its options: see `java_options`.

Starting Java directly saves the scripts and the second Java process of Spark's launcher. Java ends when its
standard input closes. It watches its input only after it has started, so the kernel also ends it with this
process: see `parent_death`.
"""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematix_flow.engine.jvm.java_runtime import JavaRuntime
from ematix_flow.engine.jvm.parent_death import BoundChild
from ematix_flow.errors import EngineError, SparkFailed

START_SECONDS = 120
GATEWAY_CLASS = "org.apache.spark.api.python.PythonGatewayServer"

_FATAL_SIGNS = ("OutOfMemoryError", "No space left on device", "A fatal error has been detected")

_last: JavaProcess | None = None
_last_lock = threading.Lock()


def last_process() -> JavaProcess | None:
    """The Java process that was started last, whether it still runs or not."""
    return _last


def spark_home() -> Path:
    """PySpark's own folder. A Spark that ``SPARK_HOME`` names has other jars."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise EngineError("PySpark is not installed", next_step='pip install "ematix-flow-spark"')
    return Path(found.origin).parent


def class_path(jars: Sequence[Path], env: Mapping[str, str]) -> list[Path]:
    """Spark's jars in a fixed order, then the connectors', then the site's Hadoop configuration."""
    own = sorted((spark_home() / "jars").glob("*.jar"))
    own.sort(key=lambda jar: not jar.name.startswith("slf4j-api"))  # first, as Spark's launcher has it
    sites = [Path(env[name]) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if env.get(name)]
    return [*own, *jars, *sites]


def local_command(java: JavaRuntime, options: Sequence[str]) -> list[str]:
    """The command of a local Java. The environment holds the class path."""
    return [str(java.executable), *options, GATEWAY_CLASS]


@dataclass
class JavaProcess:
    """A started Java process."""

    process: subprocess.Popen[bytes]
    log: Path
    _connection_file: Path
    _log_from: int
    _child: BoundChild | None = None

    def wait_for_connection(self) -> tuple[int, str]:
        """Wait until its Py4J server listens. Returns port and secret."""
        until = time.monotonic() + START_SECONDS
        while not self._connection_file.exists():
            if self.process.poll() is not None:
                raise self.start_error(
                    f"Spark's Java process ended at once (exit code {self.process.returncode})"
                )
            if time.monotonic() > until:
                raise self.start_error(f"Spark's Java process did not come up in {START_SECONDS} seconds")
            time.sleep(0.02)
        content = self._connection_file.read_bytes()
        self._connection_file.unlink()  # the secret is used only once
        port, length = struct.unpack_from(">ii", content)
        return port, content[8 : 8 + length].decode()

    def start_error(self, what: str) -> SparkFailed:
        complaint = find_complaint(self._last_log_lines())
        return SparkFailed(
            f"{what}: {complaint}" if complaint else what, next_step=f"Spark's own log is {self.log}"
        )

    def has_ended(self, within: float) -> bool:
        """Whether it ends within so many seconds. Its connection breaks before it ends."""
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True

    def describe_exit(self) -> str:
        """Describe how the process ended unexpectedly."""
        if not self.has_ended(within=2):
            return "Spark's Java process does not answer"
        code = self.process.returncode
        fatal = [line for line in self._last_log_lines() if any(sign in line for sign in _FATAL_SIGNS)]
        if fatal:
            return f"Spark's Java process ended: {fatal[-1]}"
        how = f"was killed (signal {-code})" if code < 0 else f"ended (exit code {code})"
        return f"Spark's Java process {how}"

    def _last_log_lines(self) -> list[str]:
        """The last lines of this process's log, without stack frames."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_from, self.log.stat().st_size - 20_000))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [
            line.strip() for line in lines if line.strip() and not line.lstrip().startswith(("at ", "... "))
        ]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self, patience: float = 10) -> None:
        """Ask it to end, then terminate and kill it. Returns after it has ended."""
        try:
            self._end(patience)
        finally:
            if self._child is not None:
                self._child.release()

    def kill(self) -> None:
        """End it at once, without waiting."""
        self.process.kill()

    def _end(self, patience: float) -> None:
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                self.process.stdin = None  # it had already ended
        for insist in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                insist()
                patience = 5
        self.process.wait()


def start_java(command: Sequence[str], env: Mapping[str, str], log: Path, scratch: Path) -> JavaProcess:
    """Start Java with its output in ``log``, in a separate session so that Ctrl-C does not reach it.

    Java writes its port and secret to a file in ``scratch``, a folder that only this user can read.
    """
    global _last
    connection_file = scratch / "connection"
    environment = {**env, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file), "SPARK_CONNECT_MODE": "0"}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    log_from = os.fstat(descriptor).st_size
    try:
        child = BoundChild(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    except OSError as error:
        raise SparkFailed(f"{command[0]} does not start: {error.strerror}") from error
    finally:
        os.close(descriptor)
    started = JavaProcess(child.process, log, connection_file, log_from, child)
    with _last_lock:
        _last = started
    return started


def find_complaint(lines: Sequence[str]) -> str | None:
    """The line that best explains why Java did not start."""
    for line in lines:
        if line.startswith(("Error", "Exception in", "Caused by", "Unrecognized", "Invalid")):
            return line
    return lines[-1] if lines else None
