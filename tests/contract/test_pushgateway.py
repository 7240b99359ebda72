"""Metrics of short commands in a real Pushgateway."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ematix_flow.errors import FlowError
from ematix_flow.observe.metrics import open_metrics
from ematix_flow.observe.observer import RunEnd, SchedulerTick
from ematix_flow.observe.run_metrics import RunMetrics
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from tests.services.prometheus import Pushgateway
from tests.watched_runs import orders_pipeline


def held(gateway: Pushgateway, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(gateway.text()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def test_runs_of_one_process_after_the_other_add_up(
    pushgateway: Pushgateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_METRICS", f"prometheus+push://{pushgateway.address}?job=adds-up")
    pipeline = orders_pipeline(tmp_path)
    for _ in range(3):
        pipeline.sync()
    told = {"job": "adds-up", "pipeline": "orders"}
    assert held(pushgateway, "pipeline_runs_total", outcome="success", **told) == 3
    assert held(pushgateway, "pipeline_duration_seconds_count", **told) == 3
    assert held(pushgateway, "pipeline_rows_total", kind="inserted", **told) == 21
    lines = [line for line in pushgateway.text().splitlines() if 'job="adds-up"' in line]
    buckets = [line for line in lines if line.startswith("pipeline_duration_seconds_bucket")]
    assert len({line.split()[0] for line in buckets}) == len(buckets)
    assert {line.split()[1] for line in buckets if 'le="3600"' in line or 'le="+Inf"' in line} == {"3"}
    assert held(pushgateway, "pipeline_last_run_succeeded", **told) == 1


def test_a_failure_keeps_the_moment_of_the_last_success_and_other_pipelines(
    pushgateway: Pushgateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_METRICS", f"prometheus+push://{pushgateway.address}?job=fails")
    orders_pipeline(tmp_path).sync()
    success = held(pushgateway, "pipeline_last_success_timestamp_seconds", job="fails", pipeline="orders")
    with pytest.raises(FlowError):
        orders_pipeline(tmp_path, "bad", broken=True).sync()
    told = {"job": "fails", "pipeline": "orders"}
    assert held(pushgateway, "pipeline_last_success_timestamp_seconds", **told) == success is not None
    assert held(pushgateway, "pipeline_runs_total", outcome="success", **told) == 1
    assert held(pushgateway, "pipeline_runs_total", outcome="failure", job="fails", pipeline="bad") == 1


class Bridge:
    """The way to a gateway. It loses the writings to one group, or only the answers to them."""

    def __init__(self, gateway: Pushgateway) -> None:
        self.gateway, self.written = gateway, list[str]()
        self.loses: tuple[str, Literal["writing", "answer"]] | None = None

    def hear(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        group = handler.path.rpartition("/")[2]
        lost = self.loses[1] if self.loses and self.loses[0] == group else None
        if handler.command != "GET":
            self.written.append(group)
        if lost != "writing":
            url, headers = f"http://{self.gateway.address}{handler.path}", dict(handler.headers)
            request = Request(url, body or None, headers, method=handler.command)
            with urlopen(request, timeout=10) as answer:
                found = answer.read()
        if lost is None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(found)


@contextmanager
def bridge_to(gateway: Pushgateway) -> Iterator[tuple[str, Bridge]]:
    bridge = Bridge(gateway)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bridge.hear(self)

        do_POST = do_PUT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", bridge
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("lost", ["writing", "answer"])
def test_a_group_that_is_not_taken_makes_no_other_be_counted_twice(
    lost: Literal["writing", "answer"], pushgateway: Pushgateway
) -> None:
    job = f"loses-the-{lost}"
    with bridge_to(pushgateway) as (address, bridge):
        sink: Any = open_metrics(
            f"prometheus+push://{address}?job={job}", open_local_run_log("memory://", env={})
        )
        for pipeline in "abc":
            sink.run_finished(succeeded(pipeline), RunEnd())
        bridge.loses = ("b", lost)
        with pytest.raises((URLError, OSError)):
            sink.close()
        bridge.loses = None
        sink.close()
        for pipeline in "abc":
            told = {"job": job, "pipeline": pipeline, "outcome": "success"}
            assert held(pushgateway, "pipeline_runs_total", **told) == 1
        assert bridge.written == (["a", "b", "b", "c"] if lost == "writing" else ["a", "b", "c"])


def test_a_group_without_news_is_not_written_again(pushgateway: Pushgateway) -> None:
    with bridge_to(pushgateway) as (address, bridge):
        sink: Any = open_metrics(
            f"prometheus+push://{address}?job=news", open_local_run_log("memory://", env={})
        )
        for pipeline in "abac":
            sink.run_finished(succeeded(pipeline), RunEnd())
        sink.close()
        sink.run_finished(succeeded("b"), RunEnd())
        sink.close()
    assert bridge.written == ["a", "b", "c", "b"]
    assert held(pushgateway, "pipeline_runs_total", job="news", pipeline="a", outcome="success") == 2
    assert held(pushgateway, "pipeline_runs_total", job="news", pipeline="b", outcome="success") == 2


def succeeded(pipeline: str) -> RunRecord:
    given = {"run_id": "r", "pipeline": pipeline, "target": "dw:t", "mode": "append"}
    return RunRecord(status="succeeded", finished_at=utc_now(), **given)


def test_promtool_finds_no_fault_with_the_names(promtool: str) -> None:
    from prometheus_client.exposition import generate_latest

    runs, streams = RunMetrics(), StreamMetrics()
    record = RunRecord(
        run_id="r",
        pipeline="orders",
        target="dw:t",
        mode="append",
        status="failed",
        slot=utc_now(),
        finished_at=utc_now(),
        metrics={"targets": [{"seconds": {"apply": 1.0}}]},
    )
    runs.run_finished(record, RunEnd())
    runs.scheduler_ticked(SchedulerTick(0.1, started=1, lags=(1.0,)), 1.0)
    streams.count_batch("events", 1, {"dw:t": 1}, {"read": 0.1})
    text = generate_latest(runs.registry) + generate_latest(streams.registry)
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    complaints = [
        line
        for line in (checked.stdout + checked.stderr).decode().splitlines()
        if "_created" not in line  # of the library that writes the text
    ]
    assert complaints == []
