"""Reports of probes as text, JSON and JUnit's XML."""

from __future__ import annotations

import datetime as dt
import json
import os
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from ematix_probe.errors import ReportNotWritten
from ematix_probe.report import (
    AssertionResult,
    RunReport,
    Verdict,
    report_from_dict,
    worst,
    write_json,
    write_junit,
)
from ematix_probe.reports.junit import junit_text
from ematix_probe.reports.text import report_text, summary

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)


def result(index: int, verdict: Verdict, **fields: object) -> AssertionResult:
    named = {"message": f"message {index}", "name": f"c{index}.rule", **fields}
    return AssertionResult(index, verdict, **named)  # type: ignore[arg-type]


def report(*results: AssertionResult, **fields: object) -> RunReport:
    verdict = worst([each.verdict for each in results])
    named = {"probe_name": "orders", "table": "orders", "schema": "shop", **fields}
    end = NOON + dt.timedelta(seconds=1.5)
    return RunReport(verdict=verdict, assertions=results, started_at=NOON, finished_at=end, **named)  # type: ignore[arg-type]


MIXED = report(
    result(0, "pass"),
    result(1, "warn", failing=1, checked=400),
    result(2, "fail", failing=12, checked=40, samples=[{"id": 7, "email": None, "note": "a, b"}]),
    result(3, "error"),
)


def test_the_verdict_of_a_run_is_its_worst() -> None:
    assert MIXED.verdict == "error"
    assert worst(["warn", "pass"]) == "warn"
    assert worst([]) == "pass"


def test_text_has_the_assertions_that_do_not_pass_with_their_rows() -> None:
    assert report_text(MIXED).splitlines() == [
        "[ ERR] orders (shop.orders)  4 assertions in 1.5s",
        "  c1.rule: message 1",
        "  c2.rule: message 2",
        "      id=7, email=NULL, note='a, b'",
        "      … and 11 more",
        "  c3.rule: message 3",
    ]
    assert summary([MIXED, report(result(0, "pass"))]) == "2 probes: 1 passed, 1 with errors"


def test_text_of_a_load_has_its_notes_and_the_first_message_of_its_frequent_errors() -> None:
    broken = 'near "SELEC": syntax error\n  at postgres://eve:geheim1@db/shop ' + "x" * 300
    metadata = {
        "kind": "load",
        "warnings": ["ended early after 3.0 s: the feeder had no row after 3", "message 0"],
        "errors": {"timeout": 1, "OperationalError": 5, "status 500": 3, "connection reset": 2},
        "error_messages": {"OperationalError": [broken, "another"], "connection reset": ["by peer"]},
    }
    _, assertion, first, second, third, note = report_text(
        report(result(0, "fail"), metadata=metadata)
    ).splitlines()
    assert assertion == "  c0.rule: message 0"
    assert first.startswith(
        '  5 × OperationalError: near "SELEC": syntax error at postgres://eve:***@db/shop xxx'
    )
    assert first.endswith("x…") and len(first) < 180
    assert (second, third) == ("  3 × status 500", "  2 × connection reset: by peer")
    assert note == "  note: ended early after 3.0 s: the feeder had no row after 3"
    passed = report_text(report(result(0, "pass"), metadata={**metadata, "warnings": ["late"]})).splitlines()
    assert passed[1:] == ["  note: late"]


def test_values_cannot_move_the_cursor_of_a_terminal_nor_fill_it() -> None:
    rows = [{"a": "\x1b[2Jgone\n", "b": "x" * 500}]
    shown = report_text(report(result(0, "fail", failing=1, samples=rows)))
    assert "\x1b" not in shown
    assert "\\x1b[2Jgone\\n" in shown
    assert max(map(len, shown.splitlines())) < 200


def test_json_of_a_report_reads_back_as_the_report() -> None:
    MIXED.write_json("one.json")
    assert report_from_dict(json.loads(Path("one.json").read_text())).to_dict() == MIXED.to_dict() | {
        "assertions": [each.to_dict() | {"samples": list(each.samples)} for each in MIXED.assertions]
    }


def test_json_holds_every_value_of_a_row_and_is_valid_json() -> None:
    row = {
        "decimal": Decimal("1.10"),
        "nan": float("nan"),
        "infinite": float("-inf"),
        "day": dt.date(2026, 1, 2),
        "bytes": b"\xff",
        "nested": {"a": [1, Decimal(2)]},
        "text": "ü\ud800",
    }
    write_json([report(result(0, "fail", samples=[row], measures={"p99": float("inf")}))], "r.json")
    (written,) = json.loads(Path("r.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert written["assertions"][0]["samples"] == [
        {
            "decimal": "1.10",
            "nan": "nan",
            "infinite": "-inf",
            "day": "2026-01-02",
            "bytes": "ff",
            "nested": {"a": [1, "2"]},
            "text": "ü\ud800",
        }
    ]
    assert written["assertions"][0]["measures"] == {"p99": "inf"}
    assert written["duration_seconds"] == 1.5


def test_junit_has_a_suite_for_a_probe_and_a_case_for_an_assertion() -> None:
    write_junit([MIXED, report(result(0, "pass"))], "j.xml")
    root = xml.parse("j.xml").getroot()
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "time")} == {
        "tests": "5",
        "failures": "1",
        "errors": "1",
        "time": "3.000",
    }
    cases = root.findall("testsuite/testcase")
    assert [(case.get("name"), [child.tag for child in case]) for case in cases] == [
        ("c0.rule", []),
        ("c1.rule", ["system-out"]),
        ("c2.rule", ["failure"]),
        ("c3.rule", ["error"]),
        ("c0.rule", []),
    ]
    failure = cases[2].find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("message 2", "message 2\nid=7, email=NULL, note='a, b'")
    assert cases[0].get("classname") == "orders.shop.orders"


def test_junit_makes_a_failure_of_a_warning_when_it_is_asked_to() -> None:
    root = xml.fromstring(junit_text([MIXED], fail_on_warn=True).encode())
    assert root.get("failures") == "2"


def test_junit_is_valid_xml_for_hostile_rows() -> None:
    odd = result(0, "fail", name="<a & 'b'>\x00", message="\x0b\ud800\uffff", samples=[{"c": "\x01]]>"}])
    (case,) = xml.fromstring(junit_text([report(odd, probe_name="p\x02")]).encode()).iter("testcase")
    assert case.get("name") == "<a & 'b'>\\x00"
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "\\x0b\\ud800\\uffff"


def test_no_report_shows_the_password_of_a_url() -> None:
    url = "postgres://eve:geheim1@db/shop"
    odd = result(0, "fail", message=f"cannot reach {url}", samples=[{"url": url}])
    leaky = report(odd, table=url, schema=None, metadata={"source": url})
    leaky.write_json("r.json")
    leaky.write_junit("j.xml")
    for text in (report_text(leaky), Path("r.json").read_text(), Path("j.xml").read_text()):
        assert "geheim1" not in text
        assert "eve:***@db" in text


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_the_old_one(tmp_path: Path) -> None:
    Path("folder").mkdir()
    Path("file").write_text("old")
    with pytest.raises(ReportNotWritten, match="the report folder cannot be written: Is a directory"):
        MIXED.write_json("folder")
    with pytest.raises(ReportNotWritten, match="cannot be written"):
        MIXED.write_junit("file/inside.xml")
    assert Path("file").read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_a_report_may_go_to_a_pipe_or_a_device() -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        report(result(0, "pass")).write_json("pipe")
        assert json.loads(os.read(reader, 65536))["verdict"] == "pass"
    finally:
        os.close(reader)
