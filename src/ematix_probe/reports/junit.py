"""Writes reports as JUnit's XML: a test suite for each probe, a test case for each assertion.

JUnit knows no warning: an assertion that warns is a passing case whose output begins with ``warning:``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as xml

from ematix_probe.control_characters import mask_and_escape
from ematix_probe.redaction import mask
from ematix_probe.report import AssertionResult, RunReport
from ematix_probe.reports.files import write_file
from ematix_probe.reports.text import message_lines, sample_lines

# what XML 1.0 cannot hold, not even escaped
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(reports: Sequence[RunReport], path: str | Path, *, fail_on_warn: bool = False) -> None:
    """With ``fail_on_warn``, an assertion that warns is a failure."""
    write_file(path, junit_text(reports, fail_on_warn=fail_on_warn))


def junit_text(reports: Sequence[RunReport], *, fail_on_warn: bool = False) -> str:
    suites = [_suite(report, fail_on_warn) for report in reports]
    totals = {
        name: str(sum(int(suite.get(name, 0)) for suite in suites))
        for name in ("tests", "failures", "errors")
    }
    seconds = sum(report.duration_seconds for report in reports)
    root = xml.Element("testsuites", {"name": "ematix-probe", **totals, "time": f"{seconds:.3f}"})
    root.extend(suites)
    xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{xml.tostring(root, encoding="unicode")}\n'


def _suite(report: RunReport, fail_on_warn: bool) -> xml.Element:
    failing = ("fail", "warn") if fail_on_warn else ("fail",)
    verdicts = [each.verdict for each in report.assertions]
    suite = xml.Element(
        "testsuite",
        {
            "name": _legal(mask_and_escape(report.probe_name)),
            "tests": str(len(verdicts)),
            "failures": str(sum(verdict in failing for verdict in verdicts)),
            "errors": str(verdicts.count("error")),
            "skipped": "0",
            "time": f"{report.duration_seconds:.3f}",
            "timestamp": report.started_at.isoformat(timespec="seconds"),
        },
    )
    # the assertions of a run are measured together, so that the first case has the time of all
    for number, each in enumerate(report.assertions):
        seconds = report.duration_seconds if number == 0 else 0.0
        suite.append(_case(report, each, seconds, fail_on_warn))
    return suite


def _case(report: RunReport, result: AssertionResult, seconds: float, fail_on_warn: bool) -> xml.Element:
    case = xml.Element(
        "testcase",
        {
            "classname": _legal(mask_and_escape(f"{report.probe_name}.{report.subject}")),
            "name": _legal(mask_and_escape(result.name)),
            "time": f"{seconds:.3f}",
        },
    )
    text = _legal("\n".join([*message_lines(result), *sample_lines(result)]))
    if result.verdict == "error":
        _add(case, "error", text, message=_legal("\n".join(message_lines(result))), type="error")
    elif result.verdict == "fail" or (result.verdict == "warn" and fail_on_warn):
        _add(case, "failure", text, message=_legal("\n".join(message_lines(result))), type=result.verdict)
    elif result.verdict == "warn":
        _add(case, "system-out", f"warning: {text}")
    return case


def _add(case: xml.Element, tag: str, text: str, **attributes: str) -> None:
    xml.SubElement(case, tag, attributes).text = text


def _legal(text: str) -> str:
    """The text, masked, with each character that XML cannot hold written as its code: ``\\x00``."""

    def code(found: re.Match[str]) -> str:
        number = ord(found[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _ILLEGAL.sub(code, mask(text))
