"""Writes reports as one HTML page: verdicts, failing assertions with samples, figures and charts of loads.

The page is one file without scripts. It fetches nothing, and its policy forbids a browser to try. Every text
of a report is masked and escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape as escape_markup
from pathlib import Path
from typing import Any

from ematix_probe.control_characters import escape_controls
from ematix_probe.duration import format_duration
from ematix_probe.report import RunReport
from ematix_probe.reports.files import write_file
from ematix_probe.reports.html_charts import distribution_chart, latency_chart, rate_chart
from ematix_probe.reports.html_style import STYLE
from ematix_probe.reports.json_report import report_json
from ematix_probe.reports.text import summary

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LOAD_FIGURES = (
    ("attempts", "requests", ""),
    ("errors", "errors", ""),
    ("error_rate", "error rate", "%"),
    ("throughput", "started", "/s"),
    ("completed_rate", "answered", "/s"),
    ("scheduled_rate", "intended", "/s"),
    ("late_starts", "started late", ""),
    ("not_started", "never started", ""),
    ("max_in_flight", "most in flight", ""),
    ("connections", "connections", ""),
)


def write_html(reports: Sequence[RunReport], path: str | Path) -> None:
    """Write all reports as one page."""
    write_file(path, html_text(reports))


def html_text(reports: Sequence[RunReport]) -> str:
    """The page. The reports are in the order in which they were run."""
    values = [report_json(report) for report in reports]
    title = summary(reports) if reports else "no probe was run"
    contents = "".join(_contents_line(number, value) for number, value in enumerate(values))
    body = "".join(_report(number, value) for number, value in enumerate(values))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1>\n"
        + (f"<nav><ul>{contents}</ul></nav>\n" if len(values) > 1 else "")
        + f"{body}</main></body></html>\n"
    )


def _contents_line(number: int, report: Mapping[str, Any]) -> str:
    name = escape(report["probe_name"])
    return f'<li>{_verdict(report["verdict"])} <a href="#probe-{number}">{name}</a></li>'


def _report(number: int, report: Mapping[str, Any]) -> str:
    metadata = report["metadata"]
    subject = f"{report['schema']}.{report['table']}" if report["schema"] else report["table"]
    began = str(report["started_at"])[:19].replace("T", " ")
    facts = {
        "of": subject,
        "source": metadata.get("source"),
        "load": metadata.get("load"),
        "started": f"{began} UTC",
        "took": format_duration(report["duration_seconds"]),
    }
    shown = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value
    )
    heading = f"<h2>{_verdict(report['verdict'])} {escape(report['probe_name'])}</h2>"
    notes = "".join(f'<p class="note">{escape(str(each))}</p>' for each in metadata.get("warnings") or ())
    assertions = _assertions(report["assertions"])
    load = _load(metadata) if metadata.get("kind") == "load" and "summary" in metadata else ""
    return f'<section id="probe-{number}">{heading}<dl>{shown}</dl>{notes}{assertions}{load}</section>\n'


def _verdict(verdict: str) -> str:
    return f'<b class="verdict {escape(verdict)}">{escape(verdict)}</b>'


def _assertions(results: Sequence[Mapping[str, Any]]) -> str:
    # what needs a reader comes first
    order = {"error": 0, "fail": 1, "warn": 2, "pass": 3}
    rows = []
    for each in sorted(results, key=lambda result: order.get(result["verdict"], 0)):
        rows.append(
            f"<tr><td>{_verdict(each['verdict'])}</td><td>{escape(each['name'])}</td>"
            f"<td>{_lines(each['message'])}{_samples(each)}</td>"
            f'<td class="number">{_failing(each)}</td></tr>'
        )
    head = ("verdict", "assertion", "message", "failing")
    return _table(head, rows) if rows else "<p>It has no assertion.</p>"


def _failing(result: Mapping[str, Any]) -> str:
    if result["failing"] is None:
        return ""
    if result["checked"] is None:
        return f"{result['failing']:,}"
    return f"{result['failing']:,} of {result['checked']:,}"


def _samples(result: Mapping[str, Any]) -> str:
    rows = result["samples"]
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>" for row in rows]
    number = len(rows)
    title = "1 sample" if number == 1 else f"{number} samples"
    return f"<details open><summary>{title}</summary>{_table(names, lines)}</details>"


def _cell(value: Any) -> str:
    return '<span class="null">NULL</span>' if value is None else escape(str(value))


def _load(metadata: Mapping[str, Any]) -> str:
    """What is particular to a load: its figures, charts and errors."""
    charts = latency_chart(metadata) + rate_chart(metadata) + distribution_chart(metadata)
    return "".join(
        (
            _figures(metadata["summary"]),
            f'<div class="charts">{charts}</div>' if charts else "",
            _percentiles(metadata),
            _counts("errors", metadata["errors"], metadata["error_messages"]),
            _counts("statuses", metadata["statuses"], {}),
        )
    )


def _figures(figures: Mapping[str, Any]) -> str:
    tiles = []
    for name, label, unit in _LOAD_FIGURES:
        value = figures.get(name)
        if value is not None:
            shown = f"{value * 100:.3g} %" if unit == "%" else f"{_number(value)}{unit and f' {unit}'}"
            tiles.append(f"<div><b>{shown}</b>{label}</div>")
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _percentiles(metadata: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{_percentile_name(each['percentile'])}</td>"
        f'<td class="number">{_number(each["latency_ms"])}</td>'
        f'<td class="number">{_number(each["service_ms"])}</td></tr>'
        for each in metadata["percentiles"]
        if each["latency_ms"] is not None
    ]
    if not rows:
        return ""
    note = (
        "Latency counts from the intended start of a request, service time from its real start."
        if metadata["model"] == "open"
        else "Latency counts from the time at which a user was ready to send."
    )
    error = f"Percentiles are at most {metadata['relative_error']:.2%} too high."
    head = ("percentile", "latency, ms", "service time, ms")
    return f"<h3>Latency of good answers</h3>{_table(head, rows)}<p>{note} {error}</p>"


def _percentile_name(percentile: float) -> str:
    return {0.0: "min", 100.0: "max"}.get(percentile, f"p{percentile:g}")


def _counts(title: str, counts: Mapping[str, int], messages: Mapping[str, Sequence[str]]) -> str:
    if not counts:
        return ""
    rows = []
    for name, count in counts.items():
        details = "".join(f"<br><small>{escape(text)}</small>" for text in messages.get(name, ()))
        rows.append(f'<tr><td>{escape(name)}{details}</td><td class="number">{count:,}</td></tr>')
    return f"<h3>{escape(title.capitalize())}</h3>{_table((title, 'requests'), rows)}"


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    titles = "".join(f"<th>{escape(str(title))}</th>" for title in head)
    head_row, body = f"<thead><tr>{titles}</tr></thead>", "".join(rows)
    return f'<div class="wide"><table>{head_row}<tbody>{body}</tbody></table></div>'


def _lines(text: str) -> str:
    return "<br>".join(escape(line) for line in text.split("\n"))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def escape(text: str) -> str:
    """The text without markup and without control characters."""
    return escape_markup(escape_controls(text))
