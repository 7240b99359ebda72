"""The metrics of streams, and the answers of the metrics server."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.observe.metrics_server import MAX_CLIENTS, MetricsServer
from ematix_flow.observe.stream_metrics import MOST_PARTITIONS, MOST_PIPELINES, MOST_TARGETS, StreamMetrics

P = "ematix_flow_stream_"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> StreamMetrics:
    return StreamMetrics(stale_after_seconds=30, clock=clock, monotonic=clock)


@pytest.fixture
def server(metrics: StreamMetrics) -> Iterator[MetricsServer]:
    with metrics.serve(0) as serving:
        yield serving


def value(metrics: StreamMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(P + name, labels)


def ask(server: MetricsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    request = urllib.request.Request(server.url + path, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def asked(server: MetricsServer, path: str) -> tuple[int, Any]:
    status, text, _ = ask(server, path)
    return status, json.loads(text)


# ------------------------------------------------------------------ numbers


def test_a_batch_is_counted_by_pipeline_target_and_phase(metrics: StreamMetrics, clock: Clock) -> None:
    metrics.count_batch("orders", 10, {"dw:a": 9, "dw:b": 3}, {"read": 0.2, "apply": 1.5})
    metrics.count_batch("orders", 5, {"dw:a": 5}, {"read": 0.1})
    assert value(metrics, "rows_read_total", pipeline="orders") == 15
    assert value(metrics, "rows_total", pipeline="orders", target="dw:a") == 14
    assert value(metrics, "rows_total", pipeline="orders", target="dw:b") == 3
    assert value(metrics, "batches_total", pipeline="orders", status="committed") == 2
    assert value(metrics, "batch_seconds_count", pipeline="orders", phase="read") == 2
    assert value(metrics, "batch_seconds_sum", pipeline="orders", phase="apply") == 1.5
    assert value(metrics, "last_batch_timestamp_seconds", pipeline="orders") == clock.now


def test_only_a_committed_batch_moves_the_time_of_the_last(metrics: StreamMetrics) -> None:
    metrics.count_batch("orders", 3, {}, {}, status="failed")
    assert value(metrics, "batches_total", pipeline="orders", status="failed") == 1
    assert value(metrics, "last_batch_timestamp_seconds", pipeline="orders") is None


def test_lag_is_by_partition_and_forgets_those_that_are_gone(metrics: StreamMetrics) -> None:
    metrics.set_lag("orders", {"a/b/0": 5, "a/b/1": 7, "queue": 3})
    assert value(metrics, "lag", pipeline="orders", topic="a/b", partition="1") == 7
    assert value(metrics, "lag", pipeline="orders", topic="queue", partition="") == 3
    metrics.set_lag("orders", {"a/b/0": 1})
    assert value(metrics, "lag", pipeline="orders", topic="a/b", partition="0") == 1
    assert value(metrics, "lag", pipeline="orders", topic="a/b", partition="1") is None


def test_lag_that_a_source_tells_as_time_is_not_shown_as_messages(metrics: StreamMetrics) -> None:
    metrics.set_lag("orders", {"events/shard-0": 2500, "events/shard-1": 0}, "milliseconds")
    assert value(metrics, "lag_seconds", pipeline="orders", topic="events", partition="shard-0") == 2.5
    assert value(metrics, "lag_seconds", pipeline="orders", topic="events", partition="shard-1") == 0
    assert value(metrics, "lag", pipeline="orders", topic="events", partition="shard-0") is None
    metrics.set_lag("orders", {"events/shard-0": 3})
    assert value(metrics, "lag_seconds", pipeline="orders", topic="events", partition="shard-0") is None
    assert value(metrics, "lag", pipeline="orders", topic="events", partition="shard-0") == 3
    metrics.set_lag("late", {f"topic/{n:05}": n for n in range(MOST_PARTITIONS + 4)}, "milliseconds")
    longest = (MOST_PARTITIONS + 3) / 1000
    assert value(metrics, "lag_seconds", pipeline="late", topic="other", partition="other") == longest


def test_the_other_numbers_are_counted(metrics: StreamMetrics) -> None:
    metrics.count_dead_letters("orders", "decode", 3)
    metrics.count_skipped("orders", 2)
    metrics.count_tombstones("orders")
    metrics.set_watermark_lag("orders", 12.5)
    metrics.count_restart("orders", "CannotConnect")
    metrics.set_state("orders", "running")
    assert value(metrics, "dead_letters_total", pipeline="orders", stage="decode") == 3
    assert value(metrics, "skipped_total", pipeline="orders") == 2
    assert value(metrics, "tombstones_total", pipeline="orders") == 1
    assert value(metrics, "watermark_lag_seconds", pipeline="orders") == 12.5
    assert value(metrics, "restarts_total", pipeline="orders") == 1
    assert value(metrics, "up", pipeline="orders") == 1
    metrics.set_state("orders", "stopped")
    assert value(metrics, "up", pipeline="orders") == 0


def test_labels_are_bounded_and_the_rest_is_counted_together(metrics: StreamMetrics) -> None:
    metrics.count_batch("orders", 0, {f"t{n}": 1 for n in range(MOST_TARGETS + 3)}, {})
    assert value(metrics, "rows_total", pipeline="orders", target="other") == 3
    metrics.set_lag("orders", {f"topic/{n:05}": 1 for n in range(MOST_PARTITIONS + 4)})
    assert value(metrics, "lag", pipeline="orders", topic="other", partition="other") == 4
    for number in range(MOST_PIPELINES + 5):
        metrics.count_skipped(f"p{number}")
    assert value(metrics, "skipped_total", pipeline="other") == 6  # orders is one of them
    metrics.count_batch("orders", 0, {}, {"nonsense": 1.0}, status="nonsense")
    assert value(metrics, "batch_seconds_count", pipeline="orders", phase="other") == 1


def test_nonsense_is_no_error_and_no_secret_becomes_a_label(metrics: StreamMetrics) -> None:
    metrics.count_batch("orders", -5, {"t": -1}, {"read": float("nan"), "apply": -1.0})
    metrics.set_lag("orders", {"": -2})
    metrics.set_watermark_lag("orders", float("inf"))
    metrics.set_state("orders", "nonsense")  # type: ignore[arg-type]
    metrics.count_dead_letters("\udce9" + "x" * 1000, "nonsense", -1)
    metrics.count_batch("orders", 1, {"postgres://ann:hunter22@db/x": 1}, {})
    assert value(metrics, "rows_read_total", pipeline="orders") == 1
    assert value(metrics, "rows_total", pipeline="orders", target="postgres://ann:***@db/x") == 1


def test_two_of_them_do_not_meet() -> None:
    first, second = StreamMetrics(), StreamMetrics()
    first.count_skipped("orders")
    assert value(second, "skipped_total", pipeline="orders") is None


# ------------------------------------------------------------------ answers


def test_the_numbers_are_shown_as_prometheus_text_and_as_openmetrics(
    metrics: StreamMetrics, server: MetricsServer
) -> None:
    metrics.count_batch("ord\n\"ers'\\", 3, {"dw:a": 3}, {"read": 0.5})
    metrics.set_state("ord\n\"ers'\\", "running")
    status, text, headers = ask(server, "/metrics")
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    found = {family.name: family for family in prometheus(text)}
    assert found[P + "rows_read"].samples[0].labels == {"pipeline": "ord\n\"ers'\\"}
    status, text, headers = ask(server, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert {family.name for family in openmetrics(text)} >= {P + "rows", P + "batch_seconds", P + "up"}


def test_health_tells_how_each_pipeline_is(
    metrics: StreamMetrics, server: MetricsServer, clock: Clock
) -> None:
    assert asked(server, "/health") == (200, {"status": "ok", "pipelines": {}})
    metrics.set_state("orders", "running")
    metrics.count_batch("orders", 1, {}, {})
    clock.now += 5
    metrics.count_restart("orders", CannotConnect("no route to amqp://ann:hunter22@mq", next_step="wait"))
    clock.now += 2
    status, told = asked(server, "/health")
    assert (status, told["status"]) == (200, "ok")
    assert told["pipelines"]["orders"] == {
        "state": "restarting",
        "since_seconds": 2.0,
        "last_batch_seconds_ago": 7.0,
        "last_attempt_seconds_ago": 7.0,
        "restarts": 1,
        "last_error": "CannotConnect: no route to amqp://ann:***@mq",
        "failing_targets": {},
    }


def test_a_target_that_fails_alone_degrades_its_pipeline_until_it_is_back(
    metrics: StreamMetrics, server: MetricsServer, clock: Clock
) -> None:
    metrics.set_state("orders", "running")
    metrics.target_failed("orders", "dw:a", CannotConnect("no route to amqp://ann:hunter22@mq"))
    clock.now += 4
    metrics.target_failed("orders", "dw:a", CannotConnect("still none to amqp://ann:hunter22@mq"))
    status, told = asked(server, "/health")
    assert (status, told["status"], told["pipelines"]["orders"]["state"]) == (200, "degraded", "running")
    assert told["pipelines"]["orders"]["failing_targets"] == {
        "dw:a": {"since_seconds": 4.0, "last_error": "CannotConnect: still none to amqp://ann:***@mq"}
    }
    status, told = asked(server, "/ready")
    assert (status, told["status"]) == (200, "ready")
    metrics.target_recovered("orders", "dw:b")
    assert asked(server, "/health")[1]["status"] == "degraded"
    metrics.target_recovered("orders", "dw:a")
    assert asked(server, "/health")[1]["status"] == "ok"


def test_failures_before_a_restart_are_not_shown_for_the_new_start(metrics: StreamMetrics) -> None:
    metrics.target_failed("orders", "dw:a", "away")
    metrics.set_state("orders", "failed", "broken")
    assert metrics.health().status == "failed"
    metrics.set_state("orders", "starting")
    assert (metrics.health().status, metrics.health().is_healthy) == ("ok", True)


def test_failing_targets_are_reported_up_to_a_bound(metrics: StreamMetrics) -> None:
    for number in range(MOST_TARGETS + 5):
        metrics.target_failed("orders", f"dw:{number}", "away")
    assert len(metrics.health().pipelines["orders"]["failing_targets"]) == MOST_TARGETS


def test_a_pipeline_that_failed_for_good_is_not_healthy(
    metrics: StreamMetrics, server: MetricsServer
) -> None:
    metrics.set_state("orders", "running")
    metrics.set_state("returns", "failed", ConfigError("no such topic"))
    status, told = asked(server, "/health")
    assert (status, told["status"]) == (503, "failed")
    assert told["pipelines"]["returns"]["last_error"] == "ConfigError: no such topic"


def test_it_is_ready_when_every_pipeline_runs(metrics: StreamMetrics, server: MetricsServer) -> None:
    assert asked(server, "/ready")[0] == 503
    metrics.set_state("orders", "starting")
    assert asked(server, "/ready")[0] == 503
    metrics.set_state("orders", "running")
    assert asked(server, "/ready")[0] == 200
    metrics.set_state("returns", "starting")
    status, told = asked(server, "/ready")
    assert (status, told["status"]) == (503, "not ready")
    assert {name: each["ready"] for name, each in told["pipelines"].items()} == {
        "orders": True,
        "returns": False,
    }


def test_a_pipeline_that_looks_for_no_batch_any_more_is_not_ready(
    metrics: StreamMetrics, server: MetricsServer, clock: Clock
) -> None:
    metrics.set_state("orders", "running")
    clock.now += 31
    assert asked(server, "/ready")[0] == 503
    metrics.mark_alive("orders")
    clock.now += 30
    assert asked(server, "/ready")[0] == 200
    clock.now += 1
    assert asked(server, "/ready")[0] == 503
    metrics.count_restart("orders", "x")
    metrics.set_state("orders", "running")
    assert asked(server, "/ready")[0] == 200


def test_other_questions_are_answered_and_harmless(server: MetricsServer) -> None:
    assert asked(server, "/nothing") == (404, {"paths": ["/metrics", "/health", "/ready"]})
    assert ask(server, "/metrics", "POST")[0] == 501
    status, text, headers = ask(server, "/health", "HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 0


def test_those_who_connect_and_say_nothing_do_not_stop_the_others_for_long(server: MetricsServer) -> None:
    silent = [socket.create_connection((server.host, server.port)) for _ in range(MAX_CLIENTS - 1)]
    try:
        assert ask(server, "/health")[0] == 200
    finally:
        for each in silent:
            each.close()


def test_rubbish_does_not_break_the_server(server: MetricsServer) -> None:
    for sent in (b"\x00\xff\n\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"GET"):
        with socket.create_connection((server.host, server.port)) as peer:
            peer.sendall(sent)
    assert ask(server, "/health")[0] == 200


def test_a_port_that_is_taken_is_reported_with_what_to_do(
    metrics: StreamMetrics, server: MetricsServer
) -> None:
    with pytest.raises(ConfigError, match="another process listens there") as raised:
        metrics.serve(server.port)
    assert raised.value.next_step == "choose another port, or 0 for any that is free"


@pytest.mark.parametrize(("port", "host"), [(70000, "127.0.0.1"), (-1, "127.0.0.1"), (0, "203.0.113.1")])
def test_an_address_that_cannot_be_is_reported(metrics: StreamMetrics, port: int, host: str) -> None:
    with pytest.raises(ConfigError, match=r"not a port|cannot be shown"):
        metrics.serve(port, host)


def test_a_closed_server_frees_its_port_and_its_thread(metrics: StreamMetrics) -> None:
    server = metrics.serve(0)
    server.close()
    server.close()
    again = metrics.serve(server.port)
    again.close()
    assert "stream-metrics" not in [thread.name for thread in threading.enumerate()]


def test_it_also_listens_on_the_new_protocol(metrics: StreamMetrics) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with metrics.serve(0, "::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert ask(server, "/health")[0] == 200


def test_many_threads_may_count_while_others_ask(metrics: StreamMetrics, server: MetricsServer) -> None:
    def count(number: int) -> None:
        for turn in range(50):
            metrics.count_batch("orders", 1, {f"t{number}": 1}, {"read": 0.1})
            metrics.set_lag("orders", {f"topic/{turn}": turn})

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert ask(server, "/metrics")[0] == 200
    for thread in threads:
        thread.join()
    assert value(metrics, "rows_read_total", pipeline="orders") == 200
