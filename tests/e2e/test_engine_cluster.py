"""Sessions on a Spark that runs elsewhere: a standalone cluster, and a Connect server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ematix_flow.engine.jvm.java_process import spark_home
from ematix_flow.engine.jvm.java_runtime import find_java
from tests.services.process import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(__file__).resolve().parents[2] / "src"

PROGRAM = """
import json, os, sys
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.session import EngineSettings, spark_session, stop_session

spark = spark_session(EngineSettings.resolve(engine=sys.argv[1]))

def where(batches):
    import ematix_flow.errors, pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"file": [ematix_flow.errors.__file__] * batch.num_rows})

rows = spark.range(0, 10, 1, 2).mapInArrow(where, "file string").collect()
try:
    spark.sql("select x from range(3)").collect()
except Exception as error:
    failed = translate_spark_error(error, what="reading", source=True)
told = {
    "rows": len(rows),
    "file": rows[0].file,
    "zone": spark.conf.get("spark.sql.session.timeZone"),
    "ansi": spark.conf.get("spark.sql.ansi.enabled"),
    "error": [type(failed).__name__, failed.what],
}
stop_session()
json.dump(told, open("answer.json", "w"))
"""


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no server on port {port}:\n{log.read_text()[-2000:]}")


@contextmanager
def server(command: list[str], folder: Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One of Spark's own servers, ended at the end."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **env,
    }
    log = folder / f"{command[0]}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(spark_home() / "bin" / command[0]), *command[1:]],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield process, log
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_program(engine: str, folder: Path) -> dict[str, object]:
    (folder / "script.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "script.py", engine],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
    answer: dict[str, object] = json.loads((folder / "answer.json").read_text())
    return answer


def check(answer: dict[str, object]) -> None:
    assert answer["rows"] == 10
    assert (answer["zone"], answer["ansi"]) == ("UTC", "true")
    kind, what = answer["error"]  # type: ignore[misc]
    assert kind == "SourceFailed"
    assert what.startswith("reading failed: [UNRESOLVED_COLUMN.WITH_SUGGESTION]")


def test_a_standalone_cluster_runs_the_jobs_and_gets_this_package(tmp_path: Path) -> None:
    port, ui, worker_ui = free_port(), free_port(), free_port()
    master = ["spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    worker = ["spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1"]
    worker += ["--memory", "1g", "--webui-port", str(worker_ui), "-d", str(tmp_path / "worker")]
    with server([*master, "--port", str(port), "--webui-port", str(ui)], tmp_path) as (process, log):
        wait_for(port, process, log)
        with server([*worker, f"spark://127.0.0.1:{port}"], tmp_path):
            check(run_program(f"spark://127.0.0.1:{port}", tmp_path))


def test_a_connect_server_runs_the_jobs_and_gets_this_package(tmp_path: Path) -> None:
    port = free_port()
    command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in (
        "spark.master=local[1]",
        "spark.ui.enabled=false",
        "spark.connect.grpc.binding.address=127.0.0.1",
        f"spark.connect.grpc.binding.port={port}",
        f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}",
    ):
        command += ["--conf", setting]
    with server(command, tmp_path) as (process, log):
        wait_for(port, process, log)
        answer = run_program(f"sc://127.0.0.1:{port}", tmp_path)
        check(answer)
        assert ".zip" in str(answer["file"])  # the server's own Python does not have the package
