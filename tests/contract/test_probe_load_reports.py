"""What remains of a load: the command's output, JSON, JUnit, HTML, and the history with its trends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from ematix_probe import RunHistory, http, probe
from ematix_probe.cli.main import main
from ematix_probe.errors import HistoryError
from ematix_probe.history.forgiving import ForgivingHistory
from ematix_probe.pytest_runs import ProbeRuns
from ematix_probe.report import report_from_dict
from tests.contract.load_server import LoadServer, running_load_server

PROBES = """
from ematix_probe import http, probe

@probe.load(target=http("GET", "http://127.0.0.1:{port}/orders"), rate=100, duration=0.2)
def orders(t):
    t.p99_under("10s")
    t.error_rate_below(0.01)
    t.throughput_above(1)
    t.status_in([200])
    t.metric("latency_ms.max").at_most(1e9, name="slowest")

@probe.load(target=http("GET", "http://127.0.0.1:{port}/status/500"), rate=100, duration=0.2)
def broken(t):
    t.error_rate_below(0.01)
    t.p99_under("10s", severity="warn")

@probe.load(target=http("GET", "http://192.0.2.1/"), rate=1, duration=1)
def elsewhere(t):
    t.error_rate_below(0.01)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoadServer]:
    with running_load_server() as running:
        (tmp_path / "probes.py").write_text(PROBES.format(port=running.port))
        yield running


def test_a_load_is_reported_as_text_json_junit_and_html(
    server: LoadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", "r.json", "--junit", "r.xml", "--html", "r.html"]
    code = main(["run", "probes.py::orders", "probes.py::broken", *files])
    told = capsys.readouterr()
    assert code == 1
    assert "[PASS] orders (GET http://127.0.0.1" in told.out
    assert "20 of 20 requests failed: 100 %, the limit 1 % (20 × status 500)" in told.out

    good, bad = json.loads(Path("r.json").read_text())
    assert [each["name"] for each in good["assertions"]] == [
        *("p99_under", "error_rate_below", "throughput_above", "status_in", "slowest")
    ]
    metadata = good["metadata"]
    assert (metadata["kind"], metadata["model"], metadata["load"]) == (
        "load",
        "open",
        "100 requests a second",
    )
    assert metadata["summary"]["attempts"] == sum(count for _, count in metadata["histogram"]) == 20
    assert metadata["statuses"] == {"200": 20}
    assert [each["verdict"] for each in bad["assertions"]] == ["fail", "warn"]
    assert report_from_dict(good).to_dict()["metadata"] == metadata

    suites = xml.parse("r.xml").getroot()
    assert [(s.get("name"), s.get("tests"), s.get("failures")) for s in suites] == [
        ("orders", "5", "0"),
        ("broken", "2", "1"),
    ]
    failure = suites.find("testsuite[@name='broken']/testcase/failure")
    assert failure is not None
    assert "20 × status 500" in (failure.get("message") or "")

    page = Path("r.html").read_text()
    assert page.count("<svg") == 3 + 1  # a load without a good answer has no latencies to draw
    assert "status 500" in page


def test_a_host_that_was_not_allowed_is_refused_before_any_probe_runs(
    server: LoadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    selected = ["-s", "orders", "-s", "elsewhere", "--history", "history.db"]
    assert main(["run", "probes.py", *selected]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert server.connections == 0
    assert not RunHistory("history.db").runs()
    assert "nobody allowed that host" in told.err
    assert "--allow-host 192.0.2.1" in told.err
    assert main(["run", "probes.py::orders", "--allow-host", "http://x"]) == 2
    assert "'http://x' in allow_hosts= is no host" in capsys.readouterr().err


def test_figures_of_loads_are_recorded_and_have_a_trend(
    server: LoadServer, capsys: pytest.CaptureFixture[str]
) -> None:
    history = RunHistory("history.db")
    for path in ("/orders", "/orders", "/wait/30"):

        @probe.load(target=http("GET", server.url + path), rate=100, duration=0.1, name="orders")
        def load(t):  # type: ignore[no-untyped-def]
            t.p99_under("10s")
            t.error_rate_below(0.01)
            t.metric("attempts").at_least(10)

        load.run(history=history)
    found = history.trend("orders")
    assert [run.verdict for run in found.runs] == ["pass"] * 3
    measures = {each.name: each.measures for each in found.assertions}
    assert measures["attempts.at_least"] == {"attempts": [10, 10, 10]}
    assert measures["error_rate_below"] == {"error_rate": [0, 0, 0]}
    latencies = measures["p99_under"]["latency_ms.p99"]
    assert latencies[2] >= 29
    summary = found.runs[-1].metadata["summary"]
    assert summary["latency_ms.p99"] == pytest.approx(latencies[2], abs=1e-6)

    assert main(["runs", "trend", "orders", "--history", "history.db"]) == 0
    shown = capsys.readouterr().out
    assert "latency_ms.p99" in shown
    assert "orders (GET http://127.0.0.1" in shown
    assert main(["runs", "show", "3", "--history", "history.db"]) == 0
    assert "latency_ms.p99=" in capsys.readouterr().out
    assert main(["runs", "diff", "1", "3", "--history", "history.db"]) == 0
    assert "latency_ms.p99" in capsys.readouterr().out


def test_a_history_that_cannot_be_opened_is_refused_before_the_first_request(
    server: LoadServer, tmp_path: Path
) -> None:
    @probe.load(target=http("GET", server.url + "/orders"), rate=10, duration=0.1)
    def load(t):  # type: ignore[no-untyped-def]
        t.p99_under("10s")

    place = tmp_path / "typo" / "history.db"
    for history in (place, ForgivingHistory(RunHistory(place))):
        with pytest.raises(HistoryError, match="there is no folder") as refused:
            load.run(history=history)
        assert refused.value.state == "the probe was not run"
    shown = ProbeRuns(None, str(place), ()).result("key", load)  # what its tests show in pytest
    assert shown.report is None and "there is no folder" in (shown.error or "")
    assert server.connections == 0


def test_list_and_explain_send_nothing(server: LoadServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "probes.py"]) == 0
    assert main(["explain", "probes.py::orders"]) == 0
    told = capsys.readouterr().out
    assert "100 requests a second" in told
    assert "p99 <= 10s" in told or "p99_under" in told
    assert server.connections == 0


def test_a_load_that_cannot_begin_is_an_error_of_every_assertion() -> None:
    @probe.load(
        target=http("GET", "http://no-such-host.invalid/"),
        rate=1,
        duration=1,
        allow_hosts=["no-such-host.invalid"],
    )
    def load(t):  # type: ignore[no-untyped-def]
        t.p99_under("1s")
        t.error_rate_below(0.5)

    report = load.run()
    assert report.verdict == "error"
    assert {each.verdict for each in report.assertions} == {"error"}
    assert "'no-such-host.invalid' has no address" in report.assertions[0].message
