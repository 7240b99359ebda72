"""Starting and ending a Java process, with small programs in Java's place."""

from __future__ import annotations

import os
import queue
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.engine.jvm import java_process, parent_death
from ematix_flow.engine.jvm.java_process import JavaProcess, start_java
from ematix_flow.errors import SparkFailed

# Writes its port and secret as Spark does, then waits until its standard input closes.
LISTENING = """
import os, struct, sys
path = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(path + ".part", "wb") as file:
    file.write(struct.pack(">ii", 4711, 6) + b"secret")
os.rename(path + ".part", path)
print("chatter"); print("more", file=sys.stderr); sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_java_process_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests start is no Java process that a later error may name."""
    monkeypatch.setattr(java_process, "_last", None)


def start(program: str, tmp_path: Path) -> JavaProcess:
    return start_java([sys.executable, "-c", program], os.environ, tmp_path / "spark.log", tmp_path)


def test_port_and_secret_are_read_and_what_it_says_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    java = start(LISTENING, tmp_path)
    assert java.wait_for_connection() == (4711, "secret")
    java.close()
    assert java.process.returncode == 0
    assert capfd.readouterr() == ("", "")
    assert set(java.log.read_text().split()) == {"chatter", "more"}
    assert java.log.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["spark.log"]  # the secret is gone


def test_a_process_that_ends_at_once_is_reported_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "spark.log").write_text("Error of an earlier session\n")
    java = start("import sys; sys.exit('noise\\nError: Could not reserve enough space for heap')", tmp_path)
    with pytest.raises(SparkFailed) as error:
        java.wait_for_connection()
    java.close()
    assert "Could not reserve enough space" in error.value.what
    assert str(java.log) in (error.value.next_step or "")


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SparkFailed, match="does not start"):
        start_java([str(tmp_path / "java")], {}, tmp_path / "spark.log", tmp_path)


def test_a_process_that_does_not_listen_to_its_input_is_ended_anyway(tmp_path: Path) -> None:
    java = start("import time; print('up', flush=True); time.sleep(60)", tmp_path)
    while "up" not in java.log.read_text():
        time.sleep(0.01)
    java.close(patience=0.1)
    assert java.process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was killed (signal 9)"),
        ("import sys; sys.exit(52)", "ended (exit code 52)"),
        ("import sys; sys.exit('x\\njava.lang.OutOfMemoryError: Java heap space\\ny')", "OutOfMemoryError"),
    ],
)
def test_an_unexpected_end_is_described(tmp_path: Path, program: str, told: str) -> None:
    java = start(program, tmp_path)
    assert java.has_ended(within=10)
    assert told in java.describe_exit()
    java.close()


def test_the_terminals_interrupt_does_not_reach_it(tmp_path: Path) -> None:
    java = start(LISTENING, tmp_path)
    java.wait_for_connection()
    assert os.getpgid(java.process.pid) != os.getpgid(0)
    java.close()


def test_the_class_path_is_fixed_and_ends_with_the_connectors(tmp_path: Path) -> None:
    extra = tmp_path / "connector.jar"
    classes = java_process.class_path([extra], {"HADOOP_CONF_DIR": "/etc/hadoop"})
    assert classes[0].name.startswith("slf4j-api")
    assert classes[-2:] == [extra, Path("/etc/hadoop")]
    assert classes == java_process.class_path([extra], {"HADOOP_CONF_DIR": "/etc/hadoop"})


def test_the_wire_format_is_the_one_spark_writes() -> None:
    assert struct.pack(">ii", 4711, 6) == b"\x00\x00\x12\x67\x00\x00\x00\x06"


# ------------------------------------------------------------------ a parent that dies

# Starts a child that ignores signals in a thread that ends at once, prints its pid, and waits to be killed.
PARENT = """
import os, sys, threading, time
from pathlib import Path
from ematix_flow.engine.jvm.java_process import start_java

folder = Path(sys.argv[1])
deaf = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
started = []
thread = threading.Thread(
    target=lambda: started.append(start_java(deaf, os.environ, folder / "spark.log", folder))
)
thread.start()
thread.join()
print(started[0].process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the child")
def test_java_ends_with_a_killed_process_and_not_with_the_thread_that_started_it(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        ended = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert select.select([ended], [], [], 0.5) == ([], [], [])  # its thread is gone, it is not
            parent.kill()
            assert select.select([ended], [], [], 60)[0] == [ended]
        finally:
            os.close(ended)
    finally:
        parent.kill()
        parent.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="the launcher is there on Linux alone")
def test_a_program_that_cannot_be_run_is_reported_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "java").write_bytes(b"\x7fELF but no program")
    (tmp_path / "java").chmod(0o700)
    java = start_java([str(tmp_path / "java")], os.environ, tmp_path / "spark.log", tmp_path)
    with pytest.raises(SparkFailed, match="java does not start: Exec format error"):
        java.wait_for_connection()
    java.close()


def test_java_is_ended_when_ctrl_c_comes_before_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        """A queue whose reader is interrupted once there is something to read."""

        def __init__(self) -> None:
            self.kept: queue.Queue[Any] = queue.Queue()

        def put(self, process: Any) -> None:
            processes.append(process)
            self.kept.put(process)

        def get(self) -> Any:
            self.kept.get()
            raise KeyboardInterrupt

    processes: list[Any] = []
    monkeypatch.setattr(parent_death.queue, "SimpleQueue", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        start("import time; time.sleep(600)", tmp_path)
    assert processes[0].wait(60) == -signal.SIGKILL
