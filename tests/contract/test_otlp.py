"""Metrics and traces over OpenTelemetry's protocol, read by a receiver made of its official classes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.errors import FlowError
from ematix_flow.observe.metrics import open_metrics
from ematix_flow.observe.observer import RunEnd, StreamBatch
from ematix_flow.observe.otlp_metrics import PREFERENCE
from ematix_flow.observe.traces import BATCHES_PER_MINUTE, open_traces
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from tests.otlp_receiver import OtlpReceiver, attributes, receiving
from tests.watched_runs import orders_pipeline

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATUS_ERROR = 2
DELTA, CUMULATIVE = 1, 2


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("TRACEPARENT", "TRACESTATE", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", PREFERENCE):
        monkeypatch.delenv(name, raising=False)
    with receiving() as found:
        yield found


def traced(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch, protocol: str = "http") -> None:
    monkeypatch.setenv("EMATIX_FLOW_TRACES", f"otel+otlp+{protocol}://{receiver.address(protocol)}")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_run_is_a_trace_with_its_id_and_a_span_for_each_stage(
    protocol: str, receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced(receiver, monkeypatch, protocol)
    result = orders_pipeline(tmp_path).sync()
    spans = {span.name: span for span in receiver.spans()}
    run = spans.pop("flow.pipeline.run")
    assert run.trace_id == uuid.UUID(result.run_id).bytes
    told = attributes(run.attributes)
    assert told["flow.pipeline.name"] == "orders"
    assert told["flow.pipeline.attempt"] == 1
    assert told["flow.run.id"] == result.run_id
    assert told["flow.run.trigger"] == "sync"
    assert told["flow.run.status"] == "succeeded"
    assert told["flow.rows.inserted"] == 7
    assert set(spans) == {"flow.stage.prepare", "flow.stage.apply"}
    for span in spans.values():
        assert (span.trace_id, span.parent_span_id) == (run.trace_id, run.span_id)
        assert attributes(span.attributes)["flow.target"] == "warehouse_orders:orders"
        assert run.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert receiver.resources()[0]["service.name"] == "ematix-flow"


def test_a_failed_run_is_a_span_with_its_error_and_no_secret(
    receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced(receiver, monkeypatch)
    with pytest.raises(FlowError):
        orders_pipeline(tmp_path, "bad", broken=True).sync()
    observer = open_traces(f"otel+otlp+http://{receiver.address('http')}")
    record = _record(error_message="cannot reach postgresql://me:hunter2@host/db")
    observer.run_started(_record(status="running", finished_at=None, error_message=None))
    observer.run_finished(record, RunEnd())
    observer.close()
    bad, shy = receiver.spans()
    assert bad.status.code == shy.status.code == STATUS_ERROR
    (event,) = bad.events
    assert event.name == "exception"
    assert attributes(event.attributes)["exception.type"] == "SourceFailed"
    assert "no such table: nowhere" in attributes(event.attributes)["exception.message"]
    assert "hunter2" not in str(shy)


def test_a_run_is_part_of_the_trace_that_the_environment_names(
    receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced(receiver, monkeypatch)
    monkeypatch.setenv("TRACEPARENT", PARENT)
    result = orders_pipeline(tmp_path).sync()
    (run,) = [span for span in receiver.spans() if span.name == "flow.pipeline.run"]
    assert run.trace_id.hex() == PARENT.split("-")[1]
    assert run.parent_span_id.hex() == PARENT.split("-")[2]
    assert attributes(run.attributes)["flow.run.id"] == result.run_id


def test_batches_of_a_stream_are_separate_traces_and_not_too_many(receiver: OtlpReceiver) -> None:
    observer = open_traces(f"otel+otlp+grpc://{receiver.address('grpc')}")
    for number in range(BATCHES_PER_MINUTE * 3):
        observer.batch_committed(
            StreamBatch("events", number, 5, {"dw:t": 4}, 1, {"read": 0.1, "apply": 0.2})
        )
    observer.close()
    batches = [span for span in receiver.spans() if span.name == "flow.stream.batch"]
    # a test that meets the turn of a minute sees two of them
    assert BATCHES_PER_MINUTE <= len(batches) <= 2 * BATCHES_PER_MINUTE
    assert len({span.trace_id for span in batches}) == len(batches)
    told = attributes(batches[0].attributes)
    assert (told["flow.rows.read"], told["flow.rows.written"], told["flow.dead_letters"]) == (5, 4, 1)
    phases = [span for span in receiver.spans() if span.parent_span_id == batches[0].span_id]
    assert [span.name for span in phases] == ["flow.stage.read", "flow.stage.apply"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_metrics_arrive_under_the_names_that_prometheus_makes_of_them(
    protocol: str, receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_METRICS", f"otlp+{protocol}://{receiver.address(protocol)}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=s3cret")
    orders_pipeline(tmp_path).sync()
    metrics = receiver.metrics()
    runs = metrics["pipeline_runs"].sum
    assert runs.is_monotonic and runs.aggregation_temporality == CUMULATIVE
    (point,) = runs.data_points
    assert (point.as_double, attributes(point.attributes)) == (
        1,
        {"pipeline": "orders", "outcome": "success"},
    )
    (duration,) = metrics["pipeline_duration_seconds"].histogram.data_points
    assert duration.count == sum(duration.bucket_counts) == 1
    assert len(duration.bucket_counts) == len(duration.explicit_bounds) + 1
    assert not duration.HasField("min")
    assert metrics["pipeline_duration_seconds"].unit == "s"
    assert metrics["pipeline_last_run_succeeded"].gauge.data_points[0].as_double == 1
    assert receiver.headers[0]["x-api-key"] == "s3cret"


def test_the_plain_scheme_speaks_http(receiver: OtlpReceiver) -> None:
    sink = open_metrics(f"otlp://{receiver.address('http')}", open_local_run_log("memory://plain", env={}))
    sink.run_finished(_record(), RunEnd())
    sink.close()
    assert "pipeline_runs" in receiver.metrics()


def test_who_prefers_deltas_gets_what_was_counted_since_the_last_sending(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFERENCE, "delta")
    sink: Any = open_metrics(
        f"otlp://{receiver.address('http')}", open_local_run_log("memory://delta", env={})
    )
    for _ in range(2):
        sink.run_finished(_record(), RunEnd())
        sink._flush()
        runs = receiver.metrics()["pipeline_runs"].sum
        assert runs.aggregation_temporality == DELTA
        assert runs.data_points[0].as_double == 1
    sink.close()


def _record(**fields: Any) -> RunRecord:
    given: dict[str, Any] = {
        "run_id": "7e1cfd22-75d9-4e84-9ab2-f24fcc62e1ef",
        "pipeline": "orders",
        "target": "dw:t",
        "mode": "append",
        "status": "failed",
        "finished_at": utc_now(),
        "error_message": "it broke",
        **fields,
    }
    return RunRecord(**given)
