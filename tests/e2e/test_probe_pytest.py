"""The pytest plugin: a node for each assertion, a run for each probe, also in several processes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from ematix_probe.run_history import RunHistory

# a source that notes each opening, and a probe of each verdict
PROBES = """
import pathlib
from ematix_probe import probe, source
from ematix_probe.sources.sqlite import SQLiteSource

class Counted(SQLiteSource):
    def open(self, subject):
        with open("opened.txt", "a") as notes:
            notes.write(subject.table + "\\n")
        return super().open(subject)

shop = Counted("shop.db")

@probe.data(source=shop, table="customers")
def customers(t):
    t.column("id").not_null().unique()
    t.row_count(at_least=1)
    t.row_count(at_least=2, severity="warn", name="row_count_wanted")

@probe.data(source=shop, table="orders")
def orders(t):
    t.column("amount").between(0, 100)
    t.column("amount").between(-5, 250, severity="warn", name="a::b")
    t.column("amout").not_null()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    with closing(sqlite3.connect("shop.db")) as database:
        database.executescript(
            "CREATE TABLE customers (id INTEGER PRIMARY KEY); INSERT INTO customers VALUES (1), (2);"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, amount REAL);"
            "INSERT INTO orders VALUES (1, 20), (2, 300), (3, -1);"
        )
    Path("probes.py").write_text(PROBES)
    Path("test_quality.py").write_text(
        "from probes import customers, orders\n\ndef test_plain():\n    pass\n"
    )
    Path("test_again.py").write_text("from probes import customers\n")
    Path("pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run_pytest(*arguments: str) -> tuple[int, list[str]]:
    """The exit code, and what was printed. Without plug-ins of others: they cost time."""
    plugins = ["-p", "ematix_probe.pytest_plugin", *(["-p", "xdist"] if "-n" in arguments else [])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, *arguments],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def opened() -> list[str]:
    return sorted(Path("opened.txt").read_text().split())


def test_each_assertion_is_a_test_and_each_probe_runs_once(project: Path) -> None:
    code, out = run_pytest("-v", "--junit-xml", "j.xml", "--probe-history", "h.db")
    text = "\n".join(out)
    assert code == 1
    results = {line.split(" ")[0]: line.split(" ")[1] for line in out if "::" in line and "%]" in line}
    assert results == {
        "test_again.py::customers::id.not_null": "PASSED",
        "test_again.py::customers::id.unique": "PASSED",
        "test_again.py::customers::row_count": "PASSED",
        "test_again.py::customers::row_count_wanted": "PASSED",
        "test_quality.py::customers::id.not_null": "PASSED",
        "test_quality.py::customers::id.unique": "PASSED",
        "test_quality.py::customers::row_count": "PASSED",
        "test_quality.py::customers::row_count_wanted": "PASSED",
        "test_quality.py::orders::amount.between": "FAILED",
        "test_quality.py::orders::a:b": "PASSED",
        "test_quality.py::orders::amout.not_null": "FAILED",
        "test_quality.py::test_plain": "PASSED",
    }
    assert opened() == ["customers", "orders"]

    failure = text[text.index("_ orders: amount.between _") : text.index("_ orders: amout.not_null _")]
    assert "2 of 3 rows (66.67 %) are outside of 0 … 100" in failure
    assert "    id=2, amount=300.0" in failure
    assert "fail in orders (orders), declared at" in failure
    assert "probes.py:20" in failure
    assert "Traceback" not in text
    assert "pytest_plugin.py" not in failure
    assert "there is no column 'amout'" in text
    assert "ProbeWarning: orders: a::b: 1 of 3 rows (33.33 %) is outside" in " ".join(text.split())

    suite = xml.parse("j.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("12", "2", "0")
    assert sorted(run.probe_name for run in RunHistory("h.db").runs()) == ["customers", "orders"]


def test_processes_of_xdist_share_the_run_of_a_probe(project: Path) -> None:
    code, out = run_pytest("-n", "2", "-q", "--probe-history", "h.db")
    assert code == 1
    assert out[-1].startswith("2 failed, 10 passed, 1 warning")
    assert opened() == ["customers", "orders"]
    assert len(RunHistory("h.db").runs()) == 2
    assert "    id=2, amount=300.0" in "\n".join(out)


def test_warnings_fail_when_they_are_asked_to_and_one_assertion_can_be_chosen(project: Path) -> None:
    code, out = run_pytest("-q", "--probe-fail-on-warn", "test_quality.py::orders::a:b")
    assert (code, opened()) == (1, ["orders"])
    Path("pytest.ini").write_text("[pytest]\nprobe_history = ini.db\n")
    code, out = run_pytest("-q", "-m", "probe", "-k", "customers and not again")
    assert (code, "4 passed" in out[-1]) == (0, True)
    assert len(RunHistory("ini.db").runs()) == 1


def test_a_source_that_fails_fails_each_test_with_its_reason(project: Path) -> None:
    Path("shop.db").unlink()
    code, out = run_pytest("-q", "test_quality.py")
    assert code == 1
    text = "\n".join(out)
    assert "7 failed, 1 passed" in out[-1]
    assert text.count("there is no SQLite file shop.db") >= 7
    assert opened() == ["customers", "orders"]


def test_what_cannot_be_recorded_is_a_warning_and_loses_no_verdict(project: Path) -> None:
    code, out = run_pytest("-q", "test_again.py", "--probe-history", "gone/h.db")
    assert code == 0
    assert "4 passed, 1 warning" in out[-1]
    assert "customers was not recorded: the history sqlite://" in " ".join("\n".join(out).split())


def test_assertions_about_the_past_fail_when_the_history_cannot_be_opened(project: Path) -> None:
    Path("test_past.py").write_text(
        "from ematix_probe import probe\nfrom probes import shop\n\n"
        "@probe.data(source=shop, table='orders')\ndef past(t):\n"
        "    t.row_count(at_least=1)\n    t.row_count_change(max_drop=0.1)\n    t.drift('row_count')\n"
    )
    code, out = run_pytest("-q", "test_past.py", "--probe-history", "typo/h.db")
    assert code == 1
    assert "2 failed, 1 passed" in out[-1]
    assert "there is no folder" in "\n".join(out)


RAISES = """
from ematix_probe.report import RunReport

class Raises:
    name = "odd"
    def assertion_names(self):
        return ["a", "b", "c"]
    def run(self):
        open("opened.txt", "a").write("x ")
        raise ValueError("no such thing")

odd = Raises()
"""


def test_a_probe_that_raises_runs_once_and_shows_its_traceback(tmp_path: Path) -> None:
    Path("test_odd.py").write_text(RAISES)
    code, out = run_pytest("-q", "--rootdir", str(tmp_path), "test_odd.py")
    assert code == 1
    assert "3 failed" in out[-1]
    assert 'test_odd.py", line 10, in run' in "\n".join(out)
    assert "ValueError: no such thing" in "\n".join(out)
    assert opened() == ["x"]


def test_a_broken_file_is_a_collection_error_at_the_users_line(project: Path) -> None:
    Path("test_broken.py").write_text(
        "from ematix_probe import probe, source\n"
        "@probe.data(source=source.sqlite('shop.db'), table='orders')\n"
        "def nothing(t):\n    t.column('amount').betwen(0, 1)\n"
    )
    code, out = run_pytest("-q", "test_broken.py", "test_again.py")
    assert code == 2
    text = "\n".join(out)
    assert "test_broken.py:4: in nothing" in text
    assert "betwen" in text


def test_pytest_without_probes_loads_nothing_of_the_package_but_the_plugin(tmp_path: Path) -> None:
    Path("test_plain.py").write_text(
        "import sys\n\n"
        "def test_plain():\n"
        "    loaded = sorted(name for name in sys.modules if name.startswith('ematix_'))\n"
        "    assert loaded == ['ematix_probe', 'ematix_probe._version', 'ematix_probe.pytest_plugin']\n"
    )
    for arguments in ([], ["-n", "1"]):
        code, out = run_pytest("-q", "--rootdir", str(tmp_path), *arguments, "test_plain.py")
        assert code == 0, out
