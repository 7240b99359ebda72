"""``ematix-probe run``, ``list``, ``explain`` and ``doctor``: what they print, write and return."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from tests.unit.probe.conftest import PROBES, Call

ODD_PROBE = """
class Odd:
    name = "odd"

    def assertion_names(self):
        return ["a"]

    def run(self):
        raise ValueError('password=geheim1')


odd = Odd()
"""


def test_a_run_shows_each_probe_and_the_rows_that_fail(shop: Path, ematix_probe: Call) -> None:
    called = ematix_probe("run", "checks.py")
    assert called.code == 1
    lines = called.out.splitlines()
    assert lines[0].startswith("[PASS] customers (customers)  3 assertions in ")
    assert lines[1].startswith("[FAIL] orders (orders)  1 assertion in ")
    assert lines[2].strip() == "fail: amount.between: 2 of 3 rows (66.67 %) are outside of 0 … 100"
    assert [line.strip() for line in lines[3:5]] == ["id=2, amount=300.0", "id=3, amount=-1.0"]
    assert lines[5].startswith("[WARN] orders_warning")
    assert called.err.splitlines() == ["3 probes: 1 passed, 1 warned, 1 failed"]


@pytest.mark.parametrize(
    ("selected", "fail_on", "code"),
    [
        ("customers", "fail", 0),
        ("orders", "fail", 1),
        ("orders_warning", "fail", 0),
        ("orders_warning", "warn", 1),
    ],
)
def test_the_exit_code_says_whether_all_holds(
    shop: Path, ematix_probe: Call, selected: str, fail_on: str, code: int
) -> None:
    called = ematix_probe("run", "checks.py", "--select", selected, "--fail-on", fail_on)
    assert called.code == code
    assert called.out.count("[") == 1


def test_an_error_of_a_source_is_a_verdict_and_not_a_traceback(shop: Path, ematix_probe: Call) -> None:
    Path("checks.py").write_text(PROBES.replace("shop.db", "gone.db"), encoding="utf-8")
    called = ematix_probe("run", "checks.py", "--select", "orders")
    assert called.code == 1
    assert "[ ERR] orders (orders)" in called.out
    assert "there is no SQLite file gone.db" in called.out
    assert "Traceback" not in called.out + called.err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["run"], "missing argument"),
        (["run", "gone.py"], "there is no file gone.py"),
        (["run", "checks.py", "--select", "order"], "there is no probe 'order'. Did you mean 'orders'?"),
        (["run", "checks.py", "--fail-on", "never"], "'never' is not one of"),
        (["run", "checks.py", "--histroy", "x"], "no such option: --histroy"),
        (["rnu", "checks.py"], "there is no command 'rnu'. Did you mean 'run'?"),
        (["runs", "lst"], "there is no command 'lst'. Did you mean 'list'?"),
        (["runs", "list"], "no history is named"),
        (["runs", "list", "--limit", "x"], "--limit takes a whole number, not 'x'"),
        (["runs", "list", "--limit", "0"], "--limit takes a number from 1 up, not '0'"),
        (["explain", "checks.py"], "there are 3 probes"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(
    shop: Path, ematix_probe: Call, arguments: list[str], what: str
) -> None:
    called = ematix_probe(*arguments)
    assert (called.code, called.out) == (2, "")
    assert what in " ".join(called.err.split())
    assert "next:" in called.err
    assert "Traceback" not in called.err


def test_a_file_that_cannot_be_imported_is_exit_code_2(shop: Path, ematix_probe: Call) -> None:
    Path("checks.py").write_text("probe = 1 / 0\n", encoding="utf-8")
    called = ematix_probe("run", "checks.py")
    assert (called.code, called.out) == (2, "")
    assert "checks.py raised ZeroDivisionError" in called.err
    assert "where: checks.py:1" in called.err
    assert "Traceback" not in called.err
    assert "Traceback" in ematix_probe("--debug", "run", "checks.py").err


def test_json_on_stdout_is_one_document_and_talk_is_on_stderr(shop: Path, ematix_probe: Call) -> None:
    Path("checks.py").write_text("print('talk of the file')\n" + PROBES, encoding="utf-8")
    called = ematix_probe("run", "checks.py", "--output", "json", "--history", "h.db")
    assert called.code == 1
    assert [(each["probe_name"], each["verdict"]) for each in called.json] == [
        ("customers", "pass"),
        ("orders", "fail"),
        ("orders_warning", "warn"),
    ]
    failing = called.json[1]["assertions"][0]
    assert (failing["failing"], failing["checked"], failing["share"]) == (2, 3, 2 / 3)
    assert failing["samples"] == [{"id": 2, "amount": 300.0}, {"id": 3, "amount": -1.0}]
    assert "talk of the file" in called.err


def test_an_error_with_json_is_json_too(shop: Path, ematix_probe: Call) -> None:
    called = ematix_probe("run", "gone.py", "-o", "json")
    assert called.code == 2
    assert called.json["error"]["type"] == "UsageError"
    assert called.json["error"]["exit_code"] == 2


def test_reports_go_to_files_and_folders_are_made(shop: Path, ematix_probe: Call) -> None:
    ematix_probe("run", "checks.py", "--junit", "out/junit.xml", "--json", "out/report.json")
    suites = xml.parse("out/junit.xml").getroot()
    assert (suites.get("tests"), suites.get("failures")) == ("5", "1")
    assert [each["probe_name"] for each in json.loads(Path("out/report.json").read_text())] == [
        "customers",
        "orders",
        "orders_warning",
    ]
    ematix_probe("run", "checks.py", "--junit", "out/junit.xml", "--fail-on", "warn")
    assert xml.parse("out/junit.xml").getroot().get("failures") == "2"


def test_a_report_that_cannot_be_written_loses_neither_the_verdicts_nor_the_other_report(
    shop: Path, ematix_probe: Call
) -> None:
    Path("odd.py").write_text(
        ODD_PROBE.replace("raise ValueError('password=geheim1')", "import os; os.mkdir('x.xml'); 1 / 0"),
        encoding="utf-8",
    )
    called = ematix_probe(
        *("run", "odd.py", "checks.py::customers"),
        *("-o", "json", "--junit", "x.xml", "--json", "ok.json"),
    )
    assert called.code == 1
    assert [each["verdict"] for each in called.json] == ["error", "pass"]
    assert "the report x.xml cannot be written: Is a directory" in called.err
    assert json.loads(Path("ok.json").read_text()) == called.json


@pytest.mark.parametrize("place", [".", "/", "shop.db/x", ".."])
@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
def test_a_place_that_takes_no_report_is_refused_before_the_first_probe_runs(
    shop: Path, ematix_probe: Call, option: str, place: str
) -> None:
    called = ematix_probe("run", "checks.py::customers", option, place)
    assert (called.code, called.out) == (1, "")
    shown = " ".join(called.err.split())
    assert f"error: the report {place} cannot be written: " in shown
    assert "no probe was run next: name a file in a folder that is writable" in shown


def test_every_place_that_cannot_be_written_is_named_before_the_run(shop: Path, ematix_probe: Call) -> None:
    called = ematix_probe("run", "checks.py", "--json", ".", "--html", "ok.html", "--history", "gone/h.db")
    assert (called.code, called.out) == (1, "")
    assert called.err.count("error: ") == 2
    assert not Path("ok.html").exists()
    assert [each.name for each in Path().iterdir() if each.name.startswith(".ok")] == []
    called = ematix_probe("run", "checks.py", "--json", "same", "--html", "./same")
    assert called.code == 2
    assert "two reports go to the file" in called.err


def test_secrets_are_shown_nowhere(shop: Path, ematix_probe: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter-2-hunter")
    Path("checks.py").write_text(
        "import os\n"
        "print('the password is', os.environ['SHOP_PASSWORD'])\n"
        "from ematix_probe import probe, source\n"
        "url = 'postgres://eve:${SHOP_PASSWORD}@127.0.0.1:9/shop?connect_timeout=1'\n"
        "@probe.data(source=source.postgres(url), table='orders')\n"
        "def remote(t):\n"
        "    t.row_count(at_least=1)\n"
        "@probe.data(source=source.sqlite('shop.db'), table='customers')\n"
        "def local(t):\n"
        "    t.column('email').is_in(['x'])\n",
        encoding="utf-8",
    )
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute("UPDATE customers SET email = 'token=' || 'hunter-2-hunter'")
    for output in ("text", "json"):
        called = ematix_probe(
            *("run", "checks.py", "--output", output, "--history", "h.db"),
            *("--junit", "j.xml", "--json", "r.json"),
        )
        assert called.code == 1
        assert "PostgreSQL cannot be reached" in called.out
        shown = called.out + called.err + Path("j.xml").read_text() + Path("r.json").read_text()
        assert "hunter" not in shown
        assert "***" in shown
    assert b"hunter" not in Path("h.db").read_bytes()
    shown = ematix_probe("runs", "show", "1", "--history", "h.db")
    assert shown.code == 0
    assert "hunter" not in shown.out


@pytest.mark.parametrize(
    ("place", "why"), [("gone/h.db", "there is no folder"), ("checks.py", "is not a database")]
)
def test_a_history_that_does_not_open_is_refused_before_the_first_probe_runs(
    shop: Path, ematix_probe: Call, place: str, why: str
) -> None:
    called = ematix_probe("run", "checks.py::customers", "--history", place)
    assert (called.code, called.out) == (1, "")
    assert "error: the history sqlite://" in called.err
    assert why in " ".join(called.err.split())


def test_a_history_that_is_lost_during_the_run_keeps_the_verdicts(shop: Path, ematix_probe: Call) -> None:
    Path("odd.py").write_text(
        ODD_PROBE.replace(
            "raise ValueError",
            "__import__('pathlib').Path('h.db').write_text('no database' * 99); raise ValueError",
        ),
        encoding="utf-8",
    )
    called = ematix_probe("run", "odd.py", "checks.py::customers", "--history", "h.db")
    assert called.code == 1
    assert "[PASS] customers" in called.out
    assert "error in customers: the history sqlite://" in called.err


def test_list_shows_probes_with_their_source_and_place(shop: Path, ematix_probe: Call) -> None:
    called = ematix_probe("list", "checks.py")
    assert called.code == 0
    assert " ".join(called.out.splitlines()[1].split()) == "customers data customers shop.db 3 checks.py:7"
    listed = ematix_probe("list", "checks.py", "-o", "json").json
    assert listed[0]["assertions"] == ["id.not_null", "id.unique", "row_count"]


def test_explain_shows_the_one_statement_of_a_probe(shop: Path, ematix_probe: Call) -> None:
    called = ematix_probe("explain", "checks.py", "customers")
    assert called.code == 0
    assert "about        Who buys." in called.out
    assert called.out.count("SELECT") >= 1
    explained = ematix_probe("explain", "checks.py", "customers", "-o", "json").json
    assert explained["dialect"] == "sqlite"
    with closing(sqlite3.connect("shop.db")) as database:
        from ematix_probe.sources.sqlite_functions import register

        register(database)
        assert len(database.execute(explained["statement"]).fetchall()) == 1


def test_explain_of_a_server_connects_only_when_asked(ematix_probe: Call) -> None:
    Path("remote.py").write_text(
        "from ematix_probe import probe, source\n"
        "@probe.data(source=source.postgres('postgres://127.0.0.1:9/shop?connect_timeout=1'), table='t')\n"
        "def remote(t):\n    t.row_count(at_least=1)\n",
        encoding="utf-8",
    )
    called = ematix_probe("explain", "remote.py")
    assert called.code == 0
    assert "--connect shows it" in called.err
    assert ematix_probe("explain", "remote.py", "--connect").code == 1


def test_doctor_lists_libraries_and_the_state_of_the_history(shop: Path, ematix_probe: Call) -> None:
    ematix_probe("run", "checks.py", "--history", "h.db")
    findings = {
        each["subject"]: each for each in ematix_probe("doctor", "--history", "h.db", "-o", "json").json
    }
    assert {"python", "duckdb", "pyspark", "uvloop"} <= set(findings)
    assert "the newest run ended at" in findings["history"]["found"]
    Path("broken.db").write_text("no database at all, but long enough to be read as one" * 20)
    called = ematix_probe("doctor", "--history", "broken.db")
    assert called.code == 1
    assert "cannot be read" in " ".join(called.out.split())


def test_help_and_version_are_there(ematix_probe: Call) -> None:
    assert "Exit codes: 0 all passed" in ematix_probe("--help").out
    assert ematix_probe("--version").out.startswith("ematix-probe ")
    for command in ("run", "list", "explain", "doctor", "runs"):
        called = ematix_probe(command, "--help")
        assert called.code == 0
        assert called.out.startswith(f"Usage: ematix-probe {command} ")


def test_flow_probe_is_the_same_command(
    shop: Path, capsys: pytest.CaptureFixture[str], ematix_probe: Call
) -> None:
    from ematix_flow.cli.main import main

    assert main(["probe", "run", "checks.py", "--output", "json"]) == 1
    assert [each["verdict"] for each in json.loads(capsys.readouterr().out)] == ["pass", "fail", "warn"]
    assert main(["probe", "run", "gone.py"]) == 2
    assert "there is no file gone.py" in capsys.readouterr().err


def test_ctrl_c_ends_the_run_with_130_and_says_so(shop: Path, ematix_probe: Call) -> None:
    Path("checks.py").write_text(
        PROBES + "\n\nclass Interrupted:\n    name = 'stopped'\n"
        "    def assertion_names(self):\n        return ['a']\n"
        "    def run(self):\n        raise KeyboardInterrupt\n\nstopped = Interrupted()\n",
        encoding="utf-8",
    )
    called = ematix_probe("run", "checks.py", "-s", "customers", "-s", "stopped")
    assert called.code == 130
    assert "[PASS] customers" in called.out
    assert "error: interrupted" in called.err


def test_a_probe_that_raises_is_one_sentence_and_the_traceback_is_there_on_demand(ematix_probe: Call) -> None:
    Path("odd.py").write_text(ODD_PROBE, encoding="utf-8")
    called = ematix_probe("run", "odd.py")
    assert (called.code, "Traceback" in called.err) == (1, False)
    assert "error in odd: unexpected ValueError: password=***" in called.err
    called = ematix_probe("run", "odd.py", "--debug")
    assert "Traceback" in called.err
    assert "geheim1" not in called.err


def test_a_probe_that_raises_stops_no_other_probe_and_is_an_error_in_every_report(
    shop: Path, ematix_probe: Call
) -> None:
    Path("odd.py").write_text(ODD_PROBE, encoding="utf-8")
    files = ("--json", "r.json", "--junit", "r.xml", "--html", "r.html")
    called = ematix_probe("run", "odd.py", "checks.py::customers", *files)
    assert called.code == 1
    assert "[PASS] customers" in called.out
    assert "2 probes: 1 passed, 1 with errors" in called.err
    odd, customers = json.loads(Path("r.json").read_text())
    assert (odd["verdict"], customers["verdict"]) == ("error", "pass")
    assert odd["assertions"][0]["message"].startswith("unexpected ValueError: password=***")
    assert xml.parse("r.xml").getroot().get("errors") == "1"
    for file in ("r.json", "r.xml", "r.html"):
        assert "geheim1" not in Path(file).read_text()


FORGING = """
from ematix_probe import probe, source

NAME = "a\\n[PASS] all fine\\x1b[32m"

@probe.data(source=source.sqlite("shop.db"), query=f'SELECT 1 AS "{NAME}"')
def forging(t):
    t.column(NAME).is_in([2])
    t.column(NAME).is_in([3], name="\\x1b[2J")
    t.column("\\x1b").not_null()
"""


def test_a_name_with_control_characters_forges_no_line_in_any_output(shop: Path, ematix_probe: Call) -> None:
    Path("forging.py").write_text(FORGING, encoding="utf-8")
    files = ("--junit", "r.xml", "--html", "r.html", "--history", "h.db")
    run = ematix_probe("run", "forging.py", *files)
    assert run.code == 1
    shown = [
        ematix_probe(*words).out
        for words in (("runs", "show", "1", "--history", "h.db"), ("explain", "forging.py"))
    ]
    pages = [Path(file).read_text(encoding="utf-8") for file in ("r.xml", "r.html")]
    for text in (run.out, run.err, *shown, *pages):
        assert "\x1b" not in text
        forged = [
            line for line in text.splitlines() if "SELECT" not in text and line.lstrip().startswith("[PASS]")
        ]
        assert not forged
    assert "a\\n[PASS] all fine\\x1b[32m.enum" in run.out


TEXT_PERCENTILE = """
from ematix_probe import probe, source

@probe.data(source=source.sqlite("shop.db"), table="customers")
def texts(t):
    t.column("email").percentile_between(1, "a", "b")
    t.column("id").percentile_between(1, 0, 1)
"""


@pytest.mark.parametrize("samples", ["on", "off"])
def test_without_samples_the_percentile_of_a_text_is_neither_shown_nor_recorded(
    shop: Path, ematix_probe: Call, monkeypatch: pytest.MonkeyPatch, samples: str
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_SAMPLES", samples)
    Path("texts.py").write_text(TEXT_PERCENTILE, encoding="utf-8")
    run = ematix_probe("run", "texts.py", "--history", "h.db", "--json", "r.json")
    recorded = ematix_probe("runs", "show", "1", "--history", "h.db", "-o", "json").out
    for text in (run.out, recorded, Path("r.json").read_text()):
        assert ("bob@b.org" in text) == (samples == "on")
        assert "p100 is 2" in text
    assert "email.p100_between" in run.out
