"""The HTML report: one file that fetches nothing, shows what a reader needs, and escapes what it shows."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ematix_probe.load.declaration import LoadPlan
from ematix_probe.load.histogram import RELATIVE_ERROR
from ematix_probe.load.http_target import http
from ematix_probe.load.metrics import LoadOutcome
from ematix_probe.load.outcome_report import describe_outcome
from ematix_probe.load.profile import LoadProfile
from ematix_probe.load.recording import SECOND, Recorder
from ematix_probe.redaction import remember_secret
from ematix_probe.report import AssertionResult, RunReport
from ematix_probe.reports.html import html_text, write_html

NOW = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.timezone.utc)
HOSTILE = "<script>alert('x')</script>\" onmouseover=\"alert(1)"
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Every element with its attributes, all text, and whether each element was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"

    def attributes(self, name: str) -> Iterator[str]:
        return (value or "" for _, found in self.elements for key, value in found.items() if key == name)

    def number_of(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.elements)


def data_report(*results: AssertionResult, **given: Any) -> RunReport:
    facts = {"probe_name": "orders", "table": "orders", "schema": "shop", "verdict": "fail", **given}
    return RunReport(assertions=results, started_at=NOW, finished_at=NOW + dt.timedelta(seconds=3), **facts)


def load_report(model: str = "open", **given: Any) -> RunReport:
    profile = LoadProfile.constant("open" if model == "open" else "closed", 10, 4)
    recorder = Recorder(1 * SECOND, 4 * SECOND)
    for n in range(40):
        start = n * SECOND // 10
        error = "status 503" if n == 39 else None
        recorder.record(
            start, start + 1000, start + (n + 1) * 1_000_000, 503 if error else 200, error, HOSTILE, 10
        )
    plan = LoadPlan("load", http("GET", "http://127.0.0.1/x"), profile, (), 1.0)
    metadata = describe_outcome(plan, LoadOutcome(recorder, profile, 4.0), processes=1)
    return data_report(probe_name="load", schema=None, table="GET /x", metadata={**metadata, **given})


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    page = Page(html_text([load_report(), data_report()]))
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.elements}
    assert not list(page.attributes("src"))
    assert all(target.startswith("#") for target in page.attributes("href"))
    assert not re.search(r"url\(|@import|https?://", html_text([data_report()]))
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.attributes("content")


def test_every_text_of_a_report_is_escaped() -> None:
    result = AssertionResult(
        0, "fail", HOSTILE, HOSTILE, failing=1, checked=2, samples=[{HOSTILE: HOSTILE, "b": None}]
    )
    report = data_report(
        result, probe_name=HOSTILE, table=HOSTILE, metadata={"source": HOSTILE, "warnings": [HOSTILE]}
    )
    page = Page(html_text([report, load_report(load=HOSTILE)]))
    assert page.open == []
    assert page.number_of("script") == 0
    assert not list(page.attributes("onmouseover"))
    assert page.text.count(HOSTILE) >= 9


def test_secrets_are_masked() -> None:
    remember_secret("hunter2hunter2")
    report = data_report(
        AssertionResult(0, "error", "no hunter2hunter2", "x"),
        metadata={"source": "postgresql://me:opensesame@db/shop"},
    )
    text = html_text([report])
    assert "hunter2" not in text
    assert "opensesame" not in text


def test_failing_assertions_come_first_with_their_count_and_samples() -> None:
    page = Page(
        html_text(
            [
                data_report(
                    AssertionResult(0, "pass", "all good", "id.unique", failing=0, checked=1200),
                    AssertionResult(
                        1,
                        "fail",
                        "3 rows are NULL",
                        "email.not_null",
                        failing=3,
                        checked=1200,
                        samples=[{"id": 7, "email": None}],
                    ),
                )
            ]
        )
    )
    assert page.text.index("email.not_null") < page.text.index("id.unique")
    assert "3 of 1,200" in page.text
    assert "1 sample" in page.text
    assert "NULL" in page.text
    assert "shop.orders" in page.text
    assert "2026-03-04 05:06:07 UTC" in page.text


def test_a_load_is_shown_with_three_charts_its_figures_and_its_errors() -> None:
    page = Page(html_text([load_report()]))
    labels = [found.get("aria-label") for tag, found in page.elements if tag == "svg"]
    assert labels == ["Latency over time", "Rate over time", "Distribution of latency"]
    assert "warm-up, not measured" in page.text
    assert "status 503" in page.text
    assert f"at most {RELATIVE_ERROR:.2%} too high" in page.text
    assert "from the intended start" in page.text
    # 29 good answers of the measured time took 11 to 39 ms: each has a bar's share in the distribution
    bars = re.findall(r"([\d,]+) from [\d.]+ to [\d.]+ ms", page.text)
    assert sum(map(int, bars)) == 29


def test_a_closed_load_shows_no_intended_rate() -> None:
    text = html_text([load_report(model="closed")])
    assert "intended</span>" not in text
    assert "a user was ready to send" in text


def test_a_load_without_an_answer_has_no_chart_of_latency() -> None:
    recorder = Recorder(0, 2 * SECOND)
    recorder.record(0, 10, 20, 0, "connection refused", "", 0)
    profile = LoadProfile.constant("open", 1, 2)
    plan = LoadPlan("load", http("GET", "http://127.0.0.1/x"), profile, ())
    metadata = describe_outcome(plan, LoadOutcome(recorder, profile, 2.0), processes=1)
    page = Page(html_text([data_report(metadata=metadata)]))
    assert [found.get("aria-label") for tag, found in page.elements if tag == "svg"] == ["Rate over time"]
    assert "connection refused" in page.text


def test_a_load_that_could_not_run_shows_its_error() -> None:
    result = AssertionResult(0, "error", "the host 'x' has no address", "p99_under")
    report = data_report(result, metadata={"kind": "load", "error": "the host 'x' has no address"})
    assert "has no address" in Page(html_text([report])).text


def test_no_report_makes_a_page_too(tmp_path: Path) -> None:
    write_html([], tmp_path / "new" / "report.html")
    assert "no probe was run" in (tmp_path / "new" / "report.html").read_text()
