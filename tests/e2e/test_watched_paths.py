"""Every way to run is counted and traced: the scheduler's runs in their own processes, and streams."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from prometheus_client.exposition import generate_latest

from ematix_flow.errors import RowRejected
from ematix_flow.observe.metric_families import parse_families
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.spec.connections import DuckDBConnection, ObjectStoreLocalConnection, SQLiteConnection
from tests.alert_servers import http_receiver
from tests.otlp_receiver import attributes, receiving
from tests.promql import RULES, exposed, wanted
from tests.services.process import free_port
from tests.stream_runs import stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = """
from pathlib import Path
from tests.watched_runs import orders_pipeline
orders = orders_pipeline(Path.cwd(), schedule="* * * * *")
bad = orders_pipeline(Path.cwd(), "bad", broken=True, schedule="* * * * *")
"""


def scraped(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return bytes(answer.read()).decode()


def number(text: str, name: str, **labels: str) -> float | None:
    for family in parse_families(text).values():
        for (sample, found), value in family.series.items():
            if sample == name and set(labels.items()) <= set(found):
                return value
    return None


@pytest.mark.timeout(180)
def test_a_scheduler_shows_the_sums_of_its_runs_which_trace_themselves(tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(PROJECT)
    port = free_port()
    with receiving() as receiver:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "EMATIX_FLOW_TRACES": f"otel+otlp+http://{receiver.address('http')}",
        }
        command = [sys.executable, "-m", "ematix_flow", "scheduler", "--module", "pipelines"]
        options = ["--poll-interval", "0.5", "--metrics", f"prometheus://:{port}"]
        process = subprocess.Popen(
            [*command, *options], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
        )
        try:
            deadline, text = time.monotonic() + 120, ""
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    text = scraped(port)
                except OSError:
                    text = ""
                ended = [
                    number(text, "pipeline_slots_total", pipeline=p, outcome=o)
                    for p, o in (("orders", "succeeded"), ("bad", "gave_up"))
                ]
                if all(ended):
                    break
                time.sleep(0.2)
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert number(text, "pipeline_runs_total", pipeline="orders", outcome="success") >= 1, said
    assert number(text, "pipeline_runs_total", pipeline="bad", outcome="failure") >= 1
    assert number(text, "pipeline_gave_up", pipeline="bad") == 1
    assert number(text, "pipeline_rows_total", pipeline="orders", kind="inserted") >= 7
    assert number(text, "ematix_flow_scheduler_leader") == 1
    assert number(text, "ematix_flow_scheduler_claims_total", outcome="started") >= 2
    assert number(text, "ematix_flow_scheduler_due_lag_seconds_count") >= 2
    assert wanted("pipeline_") | wanted("ematix_flow_scheduler_") <= exposed(text)
    runs = [attributes(span.attributes) for span in receiver.spans() if span.name == "flow.pipeline.run"]
    assert {run["flow.pipeline.name"] for run in runs} == {"orders", "bad"}
    assert all(run["flow.run.trigger"] == "schedule" and run["flow.run.slot"] for run in runs)


def test_run_due_counts_what_it_runs(tmp_path: Path) -> None:
    (tmp_path / "pipelines.py").write_text(PROJECT)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "EMATIX_FLOW_METRICS": f"prometheus+file://{tmp_path}/flow.prom",
    }
    command = [sys.executable, "-m", "ematix_flow", "run-due", "--module", "pipelines"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr  # one of the two fails
    text = (tmp_path / "flow.prom").read_text()
    assert number(text, "pipeline_slots_total", pipeline="orders", outcome="succeeded") == 1
    assert number(text, "pipeline_slots_total", pipeline="bad", outcome="gave_up") == 1
    assert number(text, "pipeline_runs_total", pipeline="bad", outcome="failure") == 1


def test_a_stream_is_counted_and_its_batches_are_traced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake" / "raw").mkdir(parents=True)
    (tmp_path / "lake" / "raw" / "a.csv").write_text("id,name\n1,x\n2,y\n")
    pipeline = stream(
        source=ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="csv"),
        source_query="raw/",
        target=DuckDBConnection(name="dw", path=str(tmp_path / "dw.duckdb")),
        target_table=("main", "events"),
    )
    measured = StreamMetrics()
    with receiving() as receiver:
        monkeypatch.setenv("EMATIX_FLOW_METRICS", f"prometheus+file://{tmp_path}/flow.prom")
        monkeypatch.setenv("EMATIX_FLOW_TRACES", f"otel+otlp+grpc://{receiver.address('grpc')}")
        result = pipeline.start(once=True, metrics=measured).wait()
        spans = receiver.spans()
    assert result.total_rows == 2
    text = (tmp_path / "flow.prom").read_text()
    assert number(text, "ematix_flow_stream_rows_total", pipeline="events", target="dw:main.events") == 2
    assert number(text, "ematix_flow_stream_dead_letters_total", pipeline="events", stage="decode") == 0
    assert wanted("ematix_flow_stream_") <= exposed(generate_latest(measured.registry).decode())
    names = [span.name for span in spans]
    assert names.count("flow.stream.run") == 1 and names.count("flow.stream.batch") == result.iterations
    (batch,) = [attributes(span.attributes) for span in spans if span.name == "flow.stream.batch"][:1]
    assert batch["flow.rows.written"] == 2


def test_a_stream_that_no_restart_cures_alerts_once_and_once_when_it_is_well(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake" / "raw").mkdir(parents=True)
    (tmp_path / "lake" / "raw" / "a.csv").write_text("id,name\n1,x\n200,y\n")
    with closing(sqlite3.connect(tmp_path / "dw.db")) as database:
        database.execute("CREATE TABLE events (id INTEGER CHECK (id < 100), name TEXT)")
    pipeline = stream(
        source=ObjectStoreLocalConnection(name="lake", path=str(tmp_path / "lake"), format="csv"),
        source_query="raw/",
        target=SQLiteConnection(name="dw", path=str(tmp_path / "dw.db")),
        target_table=("main", "events"),
    )
    with http_receiver() as server:
        monkeypatch.setenv("EMATIX_FLOW_ALERTERS", f"webhook+http://{server.host}/in")

        def run() -> int:
            return pipeline.start(once=True, restart_on_error=True, max_restarts=1).wait().total_rows

        for _ in range(2):  # as a service that is started again and again
            with pytest.raises(RowRejected, match="breaks the rule"):
                run()
        assert [post.json["kind"] for post in server.posted] == ["failed"]
        with closing(sqlite3.connect(tmp_path / "dw.db")) as database:
            database.execute("ALTER TABLE events RENAME TO narrow")
            database.execute("CREATE TABLE events (id INTEGER, name TEXT)")
        assert run() == 2
    failed, recovered = (post.json for post in server.posted)
    assert (failed["kind"], failed["error_type"], failed["pipeline"]) == ("failed", "RowRejected", "events")
    assert (recovered["kind"], recovered["pipeline"]) == ("recovered", "events")


def test_promtool_agrees_with_the_rules_and_with_what_they_make_of_numbers(promtool: str) -> None:
    for command in (["check", "rules", RULES.name], ["test", "rules", "ematix-flow.tests.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
