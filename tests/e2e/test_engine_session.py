"""A session as a program sees it: in its own process, which must stay quiet and leave nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.engine.spark.session import EngineSettings, spark_session
from ematix_flow.errors import CannotConnect, EngineError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = Path(__file__).resolve().parents[2] / "src"

# What every program below begins with; `told` ends up in answer.json.
PREAMBLE = """
import json, os, sys, warnings
from ematix_flow.engine.spark import session as engine
from ematix_flow.engine.spark.error_translation import translate_spark_error
from ematix_flow.engine.spark.session import EngineSettings, spark_session, stop_session

told = {}

def failure(job, **how):
    try:
        job()
    except Exception as error:
        translated = translate_spark_error(error, what="the job", **how)
        return [type(translated).__name__, str(translated)]

def java_pid():
    return engine._running.java.process.pid
"""


def run(program: str, cwd: Path, **env: str | None) -> dict[str, object]:
    """Run it as a user's script, with nothing installed: stdout and stderr must stay empty."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "CI": "true",  # use an archive that is there, make none
        **{name: value for name, value in env.items() if value is not None},
    }
    for name, value in env.items():
        if value is None:
            environment.pop(name, None)
    script = cwd / "script.py"
    script.write_text(PREAMBLE + program + "\njson.dump(told, open('answer.json', 'w'))\n")
    ended = subprocess.run([sys.executable, script], cwd=cwd, env=environment, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
    answer: dict[str, object] = json.loads((cwd / "answer.json").read_text())
    return answer


def is_running(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except ProcessLookupError:
        return False
    return True


def test_jobs_run_quietly_with_the_users_modules_and_errors_are_clear(tmp_path: Path) -> None:
    (tmp_path / "helper_module.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "late_module.py").write_text("ADD = 100\n")
    answer = run(
        """
import faulthandler; faulthandler.enable()
import helper_module

settings = EngineSettings.resolve(engine="local[2]")
spark = spark_session(settings)
told["pid"] = java_pid()

def doubled(batches):
    import pyarrow as pa
    import ematix_flow.errors
    for batch in batches:
        ids = batch.column(0).to_pylist()
        yield pa.RecordBatch.from_pydict({"id": [helper_module.twice(i) for i in ids]})

told["doubled"] = sum(row.id for row in spark.range(0, 100, 1, 2).mapInArrow(doubled, "id long").collect())
told["zone"] = spark.conf.get("spark.sql.session.timeZone")
told["partitions"] = spark.conf.get("spark.sql.shuffle.partitions")
told["python"] = spark.range(1).mapInArrow(
    lambda batches: (__import__("pyarrow").RecordBatch.from_pydict({"p": [sys.executable]}) for b in batches),
    "p string",
).collect()[0].p == sys.executable

sys.path.append(os.path.abspath("later"))
told["same session"] = spark_session(EngineSettings.resolve(engine="local[2]")) is spark

def late(batches):
    import late_module, pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [late_module.ADD + i for i in batch.column(0).to_pylist()]})

told["late"] = [row.id for row in spark.range(3).mapInArrow(late, "id long").collect()]

def broken(batches):
    for batch in batches:
        raise ValueError("row 3 is odd, password=hunter22")
        yield batch

def ours(batches):
    from ematix_flow.errors import RowRejected
    for batch in batches:
        raise RowRejected("amount is null in row 7", state="the target is as before", next_step="fix row 7")
        yield batch

def crash(batches):
    os._exit(9)
    yield from batches

told["syntax"] = failure(lambda: spark.sql("select * form x"), source=True)
told["column"] = failure(lambda: spark.sql("select x from range(3)"))
told["cast"] = failure(lambda: spark.sql("select cast(concat('a', id) as int) from range(3)").collect())
told["python error"] = failure(lambda: spark.range(3).mapInArrow(broken, "id long").collect())
told["ours"] = failure(lambda: spark.range(3).mapInArrow(ours, "id long").collect())
told["crash"] = failure(lambda: spark.range(3).mapInArrow(crash, "id long").collect())

spark.stop()
again = spark_session(settings)
told["pid after"] = java_pid()
told["again"] = again.range(5).count()
os.kill(java_pid(), 9)
told["killed"] = failure(lambda: again.range(3).collect())
""",
        tmp_path,
    )
    assert answer["doubled"] == 9900
    assert (answer["zone"], answer["partitions"]) == ("UTC", "2")
    assert answer["python"] is True
    assert answer["same session"] is True
    assert answer["late"] == [100, 101, 102]
    for name, kind, words in [
        ("syntax", "SourceFailed", "PARSE_SYNTAX_ERROR"),
        ("column", "SparkFailed", "Did you mean one of the following? [`id`]"),
        ("cast", "RowRejected", "The value 'a"),
        ("python error", "SparkFailed", "the job failed: ValueError: row 3 is odd"),
        ("ours", "RowRejected", "amount is null in row 7"),
        ("crash", "SparkFailed", "Python worker exited unexpectedly"),
        ("killed", "SparkFailed", "was killed (signal 9)"),
    ]:
        kind_told, text = answer[name]  # type: ignore[misc]
        assert (name, kind_told) == (name, kind)
        assert words in text
        assert "\tat " not in text
        assert "hunter22" not in text
        assert name == "ours" or "spark-" in text.splitlines()[-1]  # where the log is
    assert answer["again"] == 5
    assert not is_running(answer["pid"])
    assert not is_running(answer["pid after"])
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"helper_module.py", "later", "script.py", "answer.json"}


@pytest.mark.long
def test_without_any_java_of_the_machine_spark_runs_on_the_wheels_with_its_own_archive(
    tmp_path: Path,
) -> None:
    """``sync`` makes the archive first; a broken one is ignored."""
    cache, log = tmp_path / "cache", tmp_path / "classes.log"
    program = """
spark = spark_session(EngineSettings.resolve(engine="local[2]"))
version = "select java_method('java.lang.System', 'getProperty', 'java.version')"
told["java"] = spark.sql(version).collect()[0][0]
told["rows"] = spark.range(0, 100, 1, 2).mapInArrow(lambda batches: batches, "id long").count()
stop_session()
"""
    environment = {
        "PATH": "/nowhere",
        "JAVA_HOME": None,
        "EMATIX_FLOW_CACHE": str(cache),
        "EMATIX_FLOW_CDS": "sync",
        "JAVA_TOOL_OPTIONS": f"-Xlog:class+load:file={log}",
    }
    answer = run(program, tmp_path, **environment)
    assert (str(answer["java"]).split(".")[0], answer["rows"]) == ("21", 100)
    from_archive = sum("shared objects file (top)" in line for line in log.read_text().splitlines())
    assert from_archive > 5000
    (made,) = (cache / "archives").glob("spark-*.jsa")
    made.unlink()
    made.write_bytes(b"not an archive" * 1000)
    log.unlink()
    answer = run(program, tmp_path, **environment)
    assert answer["rows"] == 100
    assert "shared objects file (top)" not in log.read_text()


def test_ctrl_c_ends_the_job_the_program_and_java_without_a_stack_trace_of_spark(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        PREAMBLE
        + """
spark = spark_session(EngineSettings.resolve(engine="local[2]"))

running = os.path.abspath("running")

def forever(batches):
    import time
    open(running, "w").close()
    time.sleep(300)
    yield from batches

json.dump({"pid": java_pid()}, open("answer.json", "w"))
try:
    spark.range(0, 2, 1, 1).mapInArrow(forever, "id long").collect()
except KeyboardInterrupt:
    sys.exit(130)
"""
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CI": "true"}
    process = subprocess.Popen(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "running").exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (stdout, stderr, process.returncode) == ("", "", 130)
    assert not is_running(json.loads((tmp_path / "answer.json").read_text())["pid"])


# Reports its Java process at the given time, and continues to start Spark.
STARTING = """
import sys
from ematix_flow.engine.jvm import java_process
from ematix_flow.engine.spark import session
from ematix_flow.engine.spark.settings import EngineSettings

def telling(owner, name, after):
    original = getattr(owner, name)
    def told(*arguments, **named):
        result = original(*arguments, **named) if after else None
        print(java_process.last_process().process.pid, flush=True)
        return result if after else original(*arguments, **named)
    setattr(owner, name, told)

places = {
    "launched": (java_process, "start_java", True),
    "connected": (java_process.JavaProcess, "wait_for_connection", True),
    "building": (session._SessionBoot, "build", False),
}
telling(*places[sys.argv[1]])
session.spark_session(EngineSettings.resolve(engine="local[1]", env={}))
"""


@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the child")
def test_java_ends_with_a_process_that_is_killed_at_any_time_of_the_start() -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", STARTING, when], stdout=subprocess.PIPE)
        for when in ("launched", "connected", "building")
    ]
    try:
        for process in started:
            assert process.stdout is not None
            java = os.pidfd_open(int(process.stdout.readline()))
            process.kill()
            assert select.select([java], [], [], 120)[0] == [java]
            os.close(java)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_cluster_that_is_not_there_does_not_end_the_session_that_runs(spark: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CannotConnect):
        spark_session(EngineSettings.resolve(engine=f"spark://127.0.0.1:{port}", env={}))
    assert spark.range(3).count() == 3


def test_spark_is_not_restarted_under_a_query_that_waits_for_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = spark.readStream.schema("n bigint").json(str(tmp_path / "in"))
    where = str(tmp_path / "checkpoint")
    query = frame.writeStream.format("noop").queryName("mine").option("checkpointLocation", where).start()
    try:
        with pytest.raises(EngineError, match="used by the query 'mine'"):
            spark_session(EngineSettings.resolve(engine="local[1]", env={}))
        assert query.isActive and spark.range(3).count() == 3
    finally:
        query.stop()


def test_workers_begin_with_arrow_and_without_pandas(spark: Any) -> None:
    def loaded(batches: Any) -> Any:
        import sys

        names = ("pyarrow.compute", "ematix_flow.engine.streams.decoding", "pandas")
        there = [name in sys.modules for name in names]
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"there": [str(there)]})

    spark.sparkContext.environment["EMATIX_TEST_ANEW"] = "1"  # a daemon that no other test has used
    try:
        assert spark.range(1).mapInArrow(loaded, "there string").collect()[0].there == "[True, True, False]"
    finally:
        del spark.sparkContext.environment["EMATIX_TEST_ANEW"]
