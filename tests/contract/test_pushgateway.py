"""Numbers of commands that end at once, in a real Pushgateway."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ematix_flow.errors import FlowError
from ematix_flow.observe.observer import Ending, Tick
from ematix_flow.observe.run_metrics import RunMetrics
from ematix_flow.observe.stream_metrics import StreamMetrics
from ematix_flow.state.records import RunRecord, utc_now
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
    runs.run_finished(record, Ending())
    runs.ticked(Tick(0.1, started=1, lags=(1.0,)), 1.0)
    streams.batch("events", 1, {"dw:t": 1}, {"read": 0.1})
    text = generate_latest(runs.registry) + generate_latest(streams.registry)
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    complaints = [
        line
        for line in (checked.stdout + checked.stderr).decode().splitlines()
        if "_created" not in line  # of the library that writes the text
    ]
    assert complaints == []
