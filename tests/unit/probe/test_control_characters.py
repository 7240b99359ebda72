"""Control characters become codes, and the secrets that hold some are masked first."""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import replace
from pathlib import Path

import pytest

from ematix_flow.cli.expectation_tables import expectations_text, probes_text
from ematix_flow.cli.output import OutputColumn, render_table
from ematix_probe.cli import terminal
from ematix_probe.control_characters import escape_controls
from ematix_probe.redaction import MASK, remember_secret
from ematix_probe.report import AssertionResult, RunReport
from ematix_probe.reports.junit import junit_text
from ematix_probe.reports.text import report_text
from ematix_probe.run_history import RunHistory
from tests.unit.probe.conftest import Call

PRIVATE_KEY = "-----BEGIN KEY-----\r\nQUJD\u00a0\u202eREVG\n-----END KEY-----"
PARTS = ("BEGIN", "QUJD", "REVG", "END KEY")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x00\x7f\x9b", r"\x1b[2J\x00\x7f\x9b"),
        ("a\u202eb\u2066c\u200fd\u061c", r"a\u202eb\u2066c\u200fd\u061c"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("\ud800", r"\ud800"),
        ("10\u00a0000 €\u3000注文", "10\u00a0000 €\u3000注文"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("👩\u200d💻", "👩\u200d💻"),
    ],
)
def test_only_what_moves_the_cursor_or_reorders_text_becomes_codes(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


def test_characters_to_keep_stay() -> None:
    assert escape_controls("a\nb\tc", keep="\n") == "a\nb\\tc"


def _report() -> RunReport:
    text = f"bad: {PRIVATE_KEY}"
    rows = [{text: text}]
    result = AssertionResult(0, "fail", text, text, "expression", failing=1, checked=1, samples=rows)
    loaded = {"kind": "load", "errors": {"other": 1}, "error_messages": {"other": [text]}, "warnings": [text]}
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    return RunReport(text, text, None, "fail", [result], start, start, loaded)


def test_no_report_shows_a_part_of_a_secret_of_several_lines() -> None:
    remember_secret(PRIVATE_KEY)
    for text in (report_text(_report()), junit_text([_report()])):
        assert text.count(f"bad: {MASK}") >= 5
        assert not [part for part in PARTS if part in text]


def test_no_table_of_a_run_shows_a_part_of_a_secret_of_several_lines() -> None:
    remember_secret(PRIVATE_KEY)
    found = {"rule": PRIVATE_KEY, "action": "fail", "verdict": "error", "message": PRIVATE_KEY, "samples": ()}
    found |= dict.fromkeys(("failing", "checked", "quarantined"))
    targets = [{"target": PRIVATE_KEY, "expectations": [found]}]
    probes = [
        {
            "probe_name": PRIVATE_KEY,
            "verdict": "fail",
            "assertions": [{"name": PRIVATE_KEY, "verdict": "fail", "message": PRIVATE_KEY}],
        }
    ]
    for text in (
        render_table((OutputColumn("error"),), [(PRIVATE_KEY,)], stream=io.StringIO()),
        expectations_text(targets, stream=io.StringIO()),
        probes_text(probes),
    ):
        assert MASK in text
        assert not [part for part in PARTS if part in text]


PROBE = """
from ematix_probe import probe, source

KEY = {key!r}

def keys(t):
    t.column("k").is_in([KEY])

keys.__doc__ = f"About {{KEY}}"
keys = probe.data(source=source.sqlite("shop.db"), query="SELECT 'a' AS k")(keys)
"""


def test_explain_shows_no_part_of_a_secret_of_several_lines(shop: Path, ematix_probe: Call) -> None:
    Path("keys.py").write_text(PROBE.format(key=PRIVATE_KEY), encoding="utf-8")
    assert all(part in ematix_probe("explain", "keys.py").out for part in PARTS)
    remember_secret(PRIVATE_KEY)
    shown = ematix_probe("explain", "keys.py").out
    assert f"About {MASK}" in shown
    assert not [part for part in PARTS if part in shown]


def test_runs_show_no_part_of_a_secret_of_several_lines(ematix_probe: Call) -> None:
    history = RunHistory("h.db")
    first, second = (history.record(replace(_report(), probe_name="keys")) for _ in range(2))
    commands = (("show", first), ("list",), ("trend", "keys"), ("diff", first, second))
    remember_secret(PRIVATE_KEY)
    for words in commands:
        called = ematix_probe("runs", *words, "--history", "h.db")
        assert called.code == 0
        assert MASK in called.out
        assert not [part for part in PARTS if part in called.out]


def test_messages_on_the_terminal_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("flow \x1b[31mred\nnext")
    assert capsys.readouterr().err == "flow \\x1b[31mred\nnext\n"
