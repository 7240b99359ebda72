"""Arrivals by the clock and virtual users: how many requests are sent when, and what their latency is.

Bounds of latencies are lower bounds that follow from what the server does, so that a busy machine changes
no verdict.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_probe import RunHistory, check, feed, http
from ematix_probe.load.histogram import RELATIVE_ERROR
from ematix_probe.load.progress import LoadProgress
from tests.contract.load_runs import figure, run_load
from tests.contract.load_server import LoadServer, running_load_server
from tests.waiting import wait_until


@pytest.fixture
def server() -> Iterator[LoadServer]:
    with running_load_server() as running:
        yield running


def test_a_stall_of_the_server_shows_in_the_latency_of_every_arrival_that_it_met(server: LoadServer) -> None:
    # 300 arrivals, one each 10 ms; the fiftieth and all after it get no answer for two seconds
    server.stall = (50, 2.0)
    report = run_load(
        http("GET", server.url),
        lambda t: t.p99_under("1s").metric("attempts").at_least(300),
        rate=100,
        duration=3,
    )
    assert len(server.received) == figure(report, "attempts") == 300
    # arrival 50+n waited 2 s - n * 10 ms at least, for n up to 199: the latencies by rank from the slowest
    assert figure(report, "latency_ms.max") >= 2000
    assert figure(report, "latency_ms.p99") >= 2000 - 3 * 10
    assert figure(report, "latency_ms.p50") >= 2000 - 150 * 10
    assert [each.verdict for each in report.assertions] == ["fail", "pass"]
    assert report.assertions[0].failing >= 100  # those that took more than a second
    slow = [row["max_ms"] for row in report.metadata["series"]]
    assert slow[0] >= 2000  # it shows in the second of the intended start
    assert figure(report, "scheduled_rate") == 100


def test_a_stall_shows_the_same_when_no_place_is_free_to_send(server: LoadServer) -> None:
    server.stall = (20, 1.0)
    report = run_load(http("GET", server.url), rate=100, duration=1.5, max_in_flight=5)
    assert len(server.received) == figure(report, "attempts") == 150
    assert figure(report, "max_in_flight") == 5
    assert figure(report, "late_starts") >= 90
    assert figure(report, "latency_ms.max") >= 1000
    assert figure(report, "latency_ms.p50") >= 1000 - 75 * 10  # from the intended start, not the real one
    assert figure(report, "start_delay_ms.p50") >= 100
    assert any("waited before they could be started" in each for each in report.metadata["warnings"])


def test_users_wait_for_the_answer_and_so_a_stall_meets_one_request_of_each(server: LoadServer) -> None:
    server.stall = (20, 0.5)
    report = run_load(http("GET", server.url), users=2, duration=1)
    assert figure(report, "latency_ms.max") >= 500
    assert figure(report, "latency_ms.p50") < 500
    assert figure(report, "max_in_flight") == 2
    assert figure(report, "attempts") == len(server.received) > 40


def test_arrivals_that_never_get_a_place_are_errors(server: LoadServer) -> None:
    report = run_load(http("GET", server.url + "/never"), rate=20, duration=0.5, max_in_flight=1, timeout=0.2)
    assert figure(report, "attempts") == figure(report, "errors") == 10
    assert figure(report, "not_started") >= 5
    assert report.metadata["errors"]["not started"] == figure(report, "not_started")
    assert any("intended requests were started in time" in each for each in report.metadata["warnings"])


def test_percentiles_are_those_of_the_server_within_the_error_of_the_histogram(server: LoadServer) -> None:
    # each tenth answer takes 200 ms, the others none
    report = run_load(http("GET", server.url + "/sometimes/200"), rate=200, duration=1)
    assert figure(report, "latency_ms.p50") < 200 <= figure(report, "latency_ms.p95") * (1 + RELATIVE_ERROR)
    histogram = report.metadata["histogram"]
    assert sum(count for _, count in histogram) == 200
    assert sum(count for end, count in histogram if end >= 200) >= 20


@pytest.mark.parametrize(
    ("load", "sent", "measured"),
    [
        ({"rate": 400, "duration": 1, "warmup": 0.5}, 400, 200),
        ({"stages": [(0.4, 100), (0.2, 100), (0.4, 0)]}, 60, 60),  # up, level, down
        ({"stages": [(0, 200), (0.5, 200)]}, 100, 100),  # a jump
        ({"rate": 0.5, "duration": 0.2}, 1, 1),
    ],
)
def test_the_intended_number_of_requests_is_sent(
    server: LoadServer, load: dict[str, object], sent: int, measured: int
) -> None:
    report = run_load(http("GET", server.url), **load)
    assert len(server.received) == sent
    assert figure(report, "attempts") == measured
    assert report.metadata["warmup_attempts"] == sent - measured
    assert sum(row["attempts"] for row in report.metadata["series"]) == sent


def test_a_rate_is_held_within_a_percent_or_the_report_says_that_it_was_not(server: LoadServer) -> None:
    report = run_load(http("GET", server.url), rate=500, duration=2, warmup=0.5)
    assert len(server.received) == 1000
    assert (figure(report, "attempts"), figure(report, "scheduled_rate")) == (750, 500)
    late = any("intended requests were started in time" in each for each in report.metadata["warnings"])
    assert late or 495 <= figure(report, "throughput") <= 505


@pytest.mark.long
def test_a_rate_is_held_within_a_percent(server: LoadServer) -> None:
    report = run_load(
        http("GET", server.url), lambda t: t.throughput_above(495), rate=500, duration=30, warmup=2
    )
    assert report.verdict == "pass", report.assertions
    assert figure(report, "attempts") == 28 * 500
    assert figure(report, "throughput") <= 505


def test_stages_of_users_add_and_take_users(server: LoadServer) -> None:
    report = run_load(
        http("GET", server.url + "/wait/5"), stages=[(0, 3), (0.3, 3), (0, 1), (0.3, 1)], model="closed"
    )
    assert figure(report, "max_in_flight") == 3
    assert server.connections == 3
    # the last request of a user who leaves may have been sent, but none after it
    used = Counter(each.connection for each in server.received)
    assert max(used.values()) > 1.3 * min(used.values())


def test_users_think_between_two_requests(server: LoadServer) -> None:
    report = run_load(http("GET", server.url), users=2, duration=0.5, think_time=(0.1, 0.2))
    assert 4 <= len(server.received) <= 2 * 6
    assert report.verdict == "pass"


@pytest.mark.parametrize("model", [{"rate": 100, "duration": 1}, {"users": 4, "duration": 0.6}])
def test_several_processes_do_together_what_one_would(server: LoadServer, model: dict[str, float]) -> None:
    secret = "paid"  # a check that is a function goes to the processes with what it refers to
    target = http(
        "GET",
        server.url + "/{id}",
        feeder=feed([{"id": n} for n in range(100_000)]),
        checks=[check.that("paid", lambda answer: answer.text == secret)],
    )
    report = run_load(target, processes=2, **model)
    assert report.verdict == "pass", report.metadata["errors"]
    assert report.metadata["processes"] == 2
    ids = [int(each.path[1:]) for each in server.received]
    assert len(set(ids)) == len(ids) == figure(report, "attempts")
    assert sum(count for _, count in report.metadata["histogram"]) == len(ids)
    if "rate" in model:
        assert sorted(ids) == list(range(100))
        assert figure(report, "scheduled_rate") == 100
    else:
        assert {number % 2 for number in ids} == {0, 1}
        assert figure(report, "connections") == 4


def test_a_process_that_dies_makes_the_probe_an_error(server: LoadServer) -> None:
    def die(answer: object) -> bool:
        os._exit(7)

    report = run_load(http("GET", server.url, checks=[die]), rate=10, duration=1, processes=2)
    assert report.verdict == "error"
    assert "ended without a result" in report.assertions[0].message


def test_progress_is_told_each_second(server: LoadServer) -> None:
    from ematix_probe import probe

    told: list[LoadProgress] = []

    @probe.load(target=http("GET", server.url), rate=50, duration=1.3, warmup=1.2)
    def load(t):  # type: ignore[no-untyped-def]
        t.error_rate_below(1)

    load.run(progress=told.append)
    assert (told[0].phase, told[0].target, told[0].attempts) == ("warm-up", 50, 0)
    assert told[0].rate > 0
    assert told[0].line().startswith("1s of 1.3s · warm-up · ")


PROBES = """
from ematix_probe import http, probe

@probe.load(target=http("GET", "http://127.0.0.1:{port}/"), rate=50, duration="10m", processes={processes})
def endless(t):
    t.error_rate_below(0.01)

@probe.load(target=http("GET", "http://127.0.0.1:{port}/second"), rate=50, duration="10m")
def never_begun(t):
    t.error_rate_below(0.01)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_ends_a_load_with_the_report_of_what_was_measured(
    server: LoadServer, tmp_path: Path, processes: int
) -> None:
    (tmp_path / "probes.py").write_text(PROBES.format(port=server.port, processes=processes))
    command = [sys.executable, "-m", "ematix_probe.cli.main", "run", "probes.py", "--json", "report.json"]
    command += ["--history", "history.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: len(server.received) >= 25 or running.poll() is not None)
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=60)
    assert running.returncode == 130, output + errors
    (report,) = json.loads((tmp_path / "report.json").read_text())
    assert report["probe_name"] == "endless"
    assert report["metadata"]["interrupted"] is True
    assert report["verdict"] == "error"
    assert re.match(
        r"  error: error_rate_below: interrupted after \d+\.\d s of 600 s$", output.splitlines()[1]
    )
    history = RunHistory(tmp_path / "history.db")
    assert [run.verdict for run in history.runs()] == ["error"]
    assert history.past("endless", "error_rate_below") == []
    assert 25 <= report["metadata"]["summary"]["attempts"] <= len(server.received)
    assert any("interrupted after" in each for each in report["metadata"]["warnings"])
    assert {each.path for each in server.received} == {"/"}
    assert "Traceback" not in errors
