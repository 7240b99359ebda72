"""``ematix-probe runs list|show|trend|diff|prune`` over histories in a file."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ematix_probe.cli.output import sparkline, verdict_strip
from ematix_probe.history.records import RecordedRun
from ematix_probe.report import AssertionResult, RunReport, Verdict
from ematix_probe.run_history import RunHistory
from tests.unit.probe.conftest import Call

NOON = dt.datetime(2026, 5, 17, 12, tzinfo=dt.timezone.utc)


def report(number: int, rows: int | None, verdict: Verdict = "pass", probe: str = "orders") -> RunReport:
    """Run ``number`` of a probe, an hour after the one before; it took ``number`` seconds."""
    measures = {} if rows is None else {"row_count": rows}
    result = AssertionResult(0, verdict, f"{rows} rows", "row_count", "row_count", measures=measures)
    start = NOON + dt.timedelta(hours=number)
    return RunReport(probe, "orders", "shop", verdict, [result], start, start + dt.timedelta(seconds=number))


@pytest.fixture
def history() -> RunHistory:
    """Five runs of orders, of which the third has no figure, and one of customers."""
    history = RunHistory("h.db")
    for number, (rows, verdict) in enumerate(
        [(100, "pass"), (110, "pass"), (None, "error"), (120, "warn"), (10, "fail")], 1
    ):
        history.record(report(number, rows, verdict))
    history.record(report(9, 7, probe="customers"))
    return history


@pytest.fixture
def runs(ematix_probe: Call, history: RunHistory) -> Call:
    def call(*arguments: object) -> object:
        return ematix_probe("runs", *arguments, "--history", "h.db")

    return call  # type: ignore[return-value]


def test_list_shows_the_newest_first_and_how_to_see_more(runs: Call) -> None:
    called = runs("list", "--limit", 2)
    assert [line.split()[:4] for line in called.out.splitlines()[1:]] == [
        ["6", "customers", "shop.orders", "pass"],
        ["5", "orders", "shop.orders", "fail"],
    ]
    assert "runs list --before 5" in called.err
    assert [run["id"] for run in runs("list", "--before", 5, "-p", "orders", "-o", "json").json] == [
        4,
        3,
        2,
        1,
    ]


def test_the_commands_that_are_advised_can_be_copied(runs: Call, ematix_probe: Call) -> None:
    advised = [
        next(line for line in runs(*arguments).err.splitlines() if "ematix-probe runs" in line)
        for arguments in (("list", "--limit", 2, "-p", "orders"), ("show", 99))
    ]
    commands = [line.partition("ematix-probe ")[2].partition("  ")[0] for line in advised]
    assert [run["id"] for run in ematix_probe(*commands[0].split(), "-o", "json").json] == [3, 2]
    assert ematix_probe(*commands[1].split()).code == 0


def test_a_history_whose_url_has_a_password_is_not_written_into_a_command() -> None:
    assert RunHistory("postgresql://u:s3cret@h/db").option == "--history …"
    assert RunHistory("my runs.db").option == "--history 'my runs.db'"


def test_show_has_all_that_is_recorded_of_a_run(runs: Call) -> None:
    called = runs("show", 5)
    assert called.out.splitlines()[1].split() == ["probe", "orders"]
    assert called.out.splitlines()[-1].split() == ["row_count", "fail", "10", "rows", "row_count=10"]
    shown = runs("show", 5, "-o", "json").json
    assert shown["assertions"][0]["measures"] == {"row_count": 10}
    assert shown["duration_seconds"] == 5


def test_trend_shows_verdicts_and_a_chart_from_the_oldest_to_the_newest(runs: Call) -> None:
    called = runs("trend", "orders")
    lines = called.out.splitlines()
    assert lines[1].split() == ["verdict", "..EwF"]
    assert lines[2].split() == ["duration", "▁▃▅▆█", "5s"]
    assert lines[-1].split() == ["row_count", "..EwF", "row_count", "▇▇", "█▁", "10", "10", "120"]
    found = runs("trend", "orders", "-o", "json").json
    assert found["assertions"][0]["measures"] == {"row_count": [100, 110, None, 120, 10]}


def test_diff_shows_what_changed_between_two_runs_or_since_one(runs: Call) -> None:
    called = runs("diff", 1, 5)
    assert [line.split() for line in called.out.splitlines()[-2:]] == [
        ["row_count", "verdict", "pass", "fail"],
        ["row_count", "row_count", "100", "10", "-90.0", "%"],
    ]
    assert runs("diff", 1, "-o", "json").json["to"]["id"] == 5
    newest = runs("diff", 5, "-o", "json").json
    assert (newest["from"]["id"], newest["to"]["id"]) == (4, 5)
    assert runs("diff", 1, 1).out.splitlines()[-1] == "no verdict and no figure changed"


def test_diff_of_the_only_run_of_a_probe_asks_for_two(runs: Call) -> None:
    called = runs("diff", 6)
    assert called.code == 2
    assert "run 6 is the only one of 'customers'" in called.err


def test_prune_keeps_the_newest_of_each_probe(runs: Call, history: RunHistory) -> None:
    assert runs("prune", "--keep", 2, "-o", "json").json["deleted"] == 3
    assert [run.id for run in history.runs()] == [6, 5, 4]
    assert runs("prune", "--keep", 1, "--older-than", "9000d", "-o", "json").json["deleted"] == 0
    wrong = runs("prune", "--keep", 1, "--older-than", "soon")
    assert (wrong.code, wrong.out) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["show", 77], "has no run 77"),
        (["show", 2**70], f"has no run {2**70}"),
        (["trend", "order"], "has no run of 'order'. Did you mean 'orders'?"),
        (["trend", "orders", "row_cuont"], "no assertion 'row_cuont'. Did you mean 'row_count'?"),
    ],
)
def test_what_is_not_recorded_is_said_with_what_is(runs: Call, arguments: list[object], what: str) -> None:
    called = runs(*arguments)
    assert (called.code, called.out) == (1, "")
    assert what in " ".join(called.err.split())
    assert "next:" in called.err


def test_an_empty_history_is_no_error_and_reading_makes_no_file(ematix_probe: Call) -> None:
    called = ematix_probe("runs", "list", "--history", "new.db")
    assert (called.code, called.out) == (0, "")
    assert "no recorded run in sqlite://" in called.err
    assert ematix_probe("runs", "list", "--history", "new.db", "-o", "json").json == []
    assert ematix_probe("runs", "trend", "orders", "--history", "new.db").code == 1
    assert not Path("new.db").exists()


def test_the_history_may_come_from_the_environment(
    ematix_probe: Call, history: RunHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_HISTORY", "h.db")
    assert len(ematix_probe("runs", "list", "-o", "json").json) == 6


@pytest.mark.parametrize("name", ["h.db", "h.duckdb"])
def test_a_broken_history_file_is_said_to_be_damaged(ematix_probe: Call, name: str) -> None:
    Path(name).write_bytes(b"this is not a database, but it is longer than the header of one " * 50)
    called = ematix_probe("runs", "list", "--history", name)
    assert (called.code, called.out) == (1, "")
    assert "cannot be read" in " ".join(called.err.split())
    assert "restore a backup, or name another file" in called.err
    assert "Traceback" not in called.err


def test_a_database_of_something_else_is_refused_unchanged(ematix_probe: Call, shop: Path) -> None:
    with closing(sqlite3.connect("other.db")) as database, database:
        database.execute("CREATE TABLE runs (distance INTEGER)")
    before = Path("other.db").read_bytes()
    called = ematix_probe("run", "checks.py::customers", "--history", "other.db")
    assert called.code == 1
    assert "has a table 'runs' that is not a history" in " ".join(called.err.split())
    assert Path("other.db").read_bytes() == before


def test_a_history_of_a_later_version_is_refused_unchanged(ematix_probe: Call, shop: Path) -> None:
    RunHistory("h.db").record(report(1, 1))
    with closing(sqlite3.connect("h.db")) as database, database:
        database.execute("PRAGMA user_version = 99")
    before = Path("h.db").read_bytes()
    for arguments in (["runs", "list"], ["run", "checks.py::customers"]):
        called = ematix_probe(*arguments, "--history", "h.db")
        assert called.code == 1
        assert "has version 99, and this ematix-probe knows only up to 2" in " ".join(called.err.split())
        assert "upgrade ematix-probe" in called.err
    assert Path("h.db").read_bytes() == before


@pytest.mark.parametrize(
    ("url", "what"),
    [
        (" ", "a history needs a path or a URL"),
        ("sqlite://", "has no path"),
        ("postgers://host/db", "'postgers' is not a kind of history. Did you mean 'postgresql'?"),
        ("s3://", "names no place"),
        ("s3://bucket?regoin=eu", "has no option 'regoin'. Did you mean 'region'?"),
        ("mysql://user:secret1@host", "the history mysql://user:***@host names no database"),
    ],
)
def test_a_wrong_place_of_a_history_is_refused(ematix_probe: Call, url: str, what: str) -> None:
    called = ematix_probe("runs", "list", f"--history={url}")
    assert called.code == 1
    assert what in " ".join(called.err.split())
    assert "secret1" not in called.err


def test_a_sparkline_has_a_bar_a_value() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, None, 5]) == "▄ ▄"
    assert sparkline([None, None]) == ""
    assert sparkline([]) == ""
    assert verdict_strip(["pass", None, "warn", "fail", "error"]) == ". wFE"


def test_a_recorded_run_has_the_counts_and_no_rows(shop: Path, ematix_probe: Call) -> None:
    ematix_probe("run", "checks.py::orders", "--history", "h.db")
    (assertion,) = RunHistory("h.db").run(1).assertions
    assert (assertion.failing, assertion.checked, list(assertion.samples)) == (2, 3, [])


def test_samples_are_recorded_where_they_are_wanted() -> None:
    odd = AssertionResult(0, "fail", "m", "a", samples=[{"id": "x\0\ud800", "note": "password=geheim1"}])
    run = RunReport("p", "t", None, "fail", [odd], NOON, NOON)
    history = RunHistory("h.db", samples=True)
    recorded: RecordedRun = history.run(history.record(run))
    assert recorded.assertions[0].samples == [{"id": "x\\x00\\ud800", "note": "password=***"}]


FIRST_VERSION = """
CREATE TABLE runs (id INTEGER PRIMARY KEY, probe_name TEXT NOT NULL, table_name TEXT NOT NULL,
  schema_name TEXT,
  verdict TEXT NOT NULL, started_at TEXT NOT NULL, finished_at TEXT NOT NULL);
CREATE TABLE assertions (id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES runs(id),
  assertion_index INTEGER NOT NULL, verdict TEXT NOT NULL, message TEXT NOT NULL, name TEXT);
INSERT INTO runs VALUES (1, 'orders', 'orders', 'shop', 'fail',
  '2026-05-17 10:00:00.5+00:00', '2026-05-17T10:00:02Z');
INSERT INTO assertions VALUES (1, 1, 0, 'fail', '3 rows', NULL);
"""


@pytest.mark.parametrize("user_version", [0, 1])
def test_a_history_of_the_first_version_is_upgraded_with_its_runs(
    ematix_probe: Call, user_version: int
) -> None:
    with closing(sqlite3.connect("h.db")) as database, database:
        database.executescript(FIRST_VERSION + f"PRAGMA user_version = {user_version};")
    history = RunHistory("h.db")
    (old,) = history.runs()
    assert (old.started_at, old.duration_seconds) == (NOON.replace(hour=10, microsecond=500_000), 1.5)
    assert history.run(1).assertions[0].name == "assertion 0"
    assert history.record(report(3, 5)) == 2
    assert [run.id for run in history.trend("orders").runs] == [1, 2]
    with closing(sqlite3.connect("h.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
    assert (
        json.loads(ematix_probe("runs", "show", 1, "--history", "h.db", "-o", "json").out)["verdict"]
        == "fail"
    )
