"""Selectors in the commands, workflows in what they show, and ``flow clear``."""

from __future__ import annotations

import datetime as dt
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_slots
from ematix_flow.cli.slot_runners import slots_url
from ematix_flow.schedule.workflows import WorkflowFiring
from ematix_flow.state.slots.base import Slot

PIPELINES = """
from pathlib import Path

from ematix_flow import BigInt, ematix

@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"

@ematix.table(schema="w")
class Orders:
    id: BigInt

@ematix.table(schema="w")
class Daily:
    id: BigInt

@ematix.pipeline(target=Orders, target_connection="shop", mode="truncate", tags=["core"],
                 schedule="* * * * *")
def orders(conn):
    return "SELECT id FROM missing" if Path("broken").exists() else "SELECT id FROM raw"

@ematix.pipeline(target=Daily, target_connection="shop", mode="truncate", depends_on=[orders])
def daily(conn):
    return "SELECT id FROM raw"

@ematix.pipeline(target=Daily, target_connection="shop", mode="truncate", name="apart")
def apart(conn):
    return "SELECT id FROM raw"

ematix.workflow("minutely", jobs=[daily], schedule="* * * * *")
ematix.workflow("after", jobs=[apart], triggered_by="minutely")
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "selected_pipelines.py").write_text(PIPELINES, encoding="utf-8")
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "selected_pipelines")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE raw (id INTEGER)")
        connection.execute("INSERT INTO raw VALUES (1)")
    return tmp_path


COMMANDS = ["list", "status", "validate", "plan", "dry-run", "run"]
SELECTIONS = [
    (["-s", "orders+"], ["orders", "daily"]),
    (["--select", "tag:core", "--select", "apart"], ["orders", "apart"]),
    (["workflow:minutely"], ["daily"]),
    (["--exclude", "apart"], ["orders", "daily"]),
    (["+daily", "--exclude", "daily"], ["orders"]),
]


@pytest.mark.parametrize(("given", "chosen"), SELECTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_same_selectors(flow, command, given, chosen):
    shown = flow(command, *given, "-o", "json").json
    found = [each.get("pipeline", each.get("name")) for each in shown if each.get("kind") != "workflow"]
    assert sorted(found) == sorted(chosen)


@pytest.mark.parametrize(
    "command", ["list", "status", "validate", "plan", "dry-run", "run", "run-due", "clear"]
)
def test_a_selector_that_chooses_nothing_is_a_usage_error(flow, command):
    failed = flow(command, "--select", "tag:cor")
    assert failed.code == 2
    assert "no pipeline has the tag 'cor'. Did you mean 'core'?" in failed.err


def test_run_due_is_narrowed_down(flow):
    assert {run["pipeline"] for run in flow("run-due", "--select", "orders", "-o", "json").json} == {"orders"}
    assert flow("scheduler", "ordrs", "--max-iterations", "1").code == 2


def test_old_rows_of_workflows_are_forgotten_with_those_of_their_jobs(flow, shop):
    (shop / ".ematix-flow.toml").write_text('[run_log]\nkeep = "1d"\n')
    now, first = dt.datetime.now(dt.timezone.utc), dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    old = [Slot("workflow:minutely", now - dt.timedelta(days=days)) for days in (3, 4, 5)]
    fired = [Slot("workflow:after:firings", first + dt.timedelta(seconds=number)) for number in (1, 2)]
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open(old, "succeeded")
        store.open(fired, "succeeded", WorkflowFiring(1, now - dt.timedelta(days=3)).to_text())
    assert flow("run-due").code == 0
    with open_slots(slots_url(None), env=os.environ) as store:
        assert store.get_many([*old, *fired]) == {}
        assert store.newest(["workflow:after:firings"])  # the newest of all stays


def test_plan_shows_the_order_of_a_run(flow):
    shown = flow("plan", "--all")
    assert shown.out.startswith("run order\n  1.  orders\n      apart\n  2.  daily   after orders\n\n")
    steps = {
        plan["pipeline"]: (plan["step"], plan["after"]) for plan in flow("plan", "--all", "-o", "json").json
    }
    assert steps == {"orders": (1, []), "apart": (1, []), "daily": (2, ["orders"])}


def test_a_workflow_is_run_by_schedule_and_by_trigger_and_shown(flow):
    if (late := dt.datetime.now(dt.timezone.utc).second) > 40:
        time.sleep(60 - late)  # the next minute would fire in between
    assert {run["pipeline"] for run in flow("run-due", "-o", "json").json} == {"orders", "daily", "apart"}
    shown = {each.get("workflow"): each for each in flow("status", "-o", "json").json}
    assert shown["minutely"]["outcome"] == shown["after"]["outcome"] == "succeeded"
    assert shown["after"]["waits_for"][0].startswith("a success of minutely since ")
    table = flow("status").out
    assert "workflow minutely" in table and "after minutely" in table
    kinds = {each["name"]: each["kind"] for each in flow("list", "-o", "json").json}
    assert kinds["after"] == "workflow"


def test_what_was_given_up_is_shown_and_cleared(flow, shop):
    (shop / "broken").touch()
    failed = flow("run-due", "-o", "json")
    assert failed.code == 1
    assert {(run["pipeline"], run["status"]) for run in failed.json} >= {
        ("orders", "gave_up"),
        ("daily", "skipped"),
    }
    told = {each.get("pipeline"): each for each in flow("status", "-o", "json").json}
    assert (told["orders"]["slot"]["status"], told["daily"]["slot"]["status"]) == ("gave_up", "skipped")
    assert "was given up: " in told["daily"]["why"]
    (shop / "broken").unlink()
    tried = flow("clear", "orders+", "--dry-run", "-o", "json").json
    assert [(each["pipeline"], each["was"], each["cleared"]) for each in tried] == [
        ("orders", "gave_up", False),
        ("daily", "skipped", False),
    ]
    shown = flow("clear", "orders+")
    assert shown.code == 0 and "2 slots will run again" in shown.err
    assert flow("clear", "orders+").err.startswith("nothing to clear")
    assert {run["status"] for run in flow("run-due", "-o", "json").json} == {"succeeded"}
    assert {run["status"] for run in flow("runs", "list", "-p", "daily", "-o", "json").json} == {
        "succeeded",
        "skipped",
    }


def test_branches_run_side_by_side(flow):
    done = flow("run", "--all", "--workers", "3", "-o", "json")
    assert done.code == 0
    assert [run["pipeline"] for run in done.json] == ["orders", "apart", "daily"]
    assert flow("run", "--all", "--workers", "0").code == 2


def test_a_failure_is_shown_once_with_the_table_and_without_it_when_quiet(flow, shop):
    (shop / "broken").touch()
    failed = flow("run-due", "orders", "daily")
    assert failed.err.count("no such table") == 2  # of orders once, and why daily was skipped
    assert failed.out.count("no such table") == 2
    flow("clear", "--all")
    quiet = flow("run-due", "orders", "daily", "--quiet")
    assert (quiet.code, quiet.out) == (1, "")
    assert "no such table" in quiet.err and "skipped: orders of" in quiet.err
    again = flow("run-due", "orders", "--quiet")
    assert (again.code, again.out, again.err) == (0, "", "")


@pytest.mark.parametrize("given", [["--select", "orders"], ["orders"]])
def test_all_and_a_choice_do_not_go_together(flow, given):
    refused = flow("run", "--all", *given)
    assert refused.code == 2
    assert f"give {'--select' if len(given) == 2 else 'names'} or --all, not both" in refused.err


def test_older_slots_that_were_given_up_are_reported(flow):
    now = dt.datetime.now(dt.timezone.utc)
    hours = [Slot("orders", now - dt.timedelta(hours=number)) for number in (1, 2, 3)]
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open(hours[1:], "gave_up", "broken")
    first = flow("clear", "orders", "--dry-run")
    assert "1 older slot was given up or skipped too: add  --since 4h" in first.err
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open(hours[:1], "succeeded")
    shown = flow("clear", "orders")
    assert shown.out == "" and shown.err.startswith(
        "nothing to clear: none of these pipelines has a last slot"
    )
    assert "2 older slots were given up or skipped too: add  --since 4h" in shown.err
    assert len(flow("clear", "orders", "--since", "4h", "-o", "json").json) == 2


def test_without_its_store_run_due_warns_and_runs_what_fired(flow, tmp_path):
    (tmp_path / "log.db").write_text("not a database, but a poem " * 99)
    for log in ("log.db", "postgres://etl:secret@127.0.0.1:1/runs"):
        done = flow("run-due", "--run-log", log, "-o", "json")
        assert done.code == 0, done.err
        assert "orders" in {run["pipeline"] for run in done.json if run["status"] == "succeeded"}
        assert "warning: the run log cannot be used: " in done.err and "--require-run-log" in done.err
        assert "secret" not in done.err
    nonsense = flow("run-due", "--run-log", "poem://verse")
    assert nonsense.code == 2 and "poem" in nonsense.err


def test_a_store_that_can_be_read_and_not_written_is_no_reason_to_stop_run_due(flow, tmp_path):
    assert flow("run-due", "--run-log", "log.db", "-o", "json").code == 0
    with sqlite3.connect(tmp_path / "log.db") as log:
        for table in ("flow_leases", "flow_slots"):
            for change in ("INSERT", "UPDATE"):
                log.execute(
                    f"CREATE TRIGGER no_{change}_{table} BEFORE {change} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'attempt to write a readonly database'); END"
                )
    done = flow("run-due", "--run-log", "log.db", "-o", "json")
    assert done.code == 0, done.err
    assert "warning: the run log cannot be used: " in done.err and "readonly" in done.err
    assert "orders" in {run["pipeline"] for run in done.json if run["status"] == "succeeded"}


def test_where_it_is_required_run_due_runs_nothing_without_its_store(flow, tmp_path):
    away = flow("run-due", "--require-run-log", "--run-log", "postgres://etl:secret@127.0.0.1:1/runs")
    assert away.code == 5
    assert "the run log postgres://etl:***@127.0.0.1:1/runs cannot reach PostgreSQL" in away.err
    assert "state: nothing was run" in away.err
    assert "flow connections check" not in away.err and "--run-log" in away.err
    (tmp_path / "log.db").write_text("not a database, but a poem " * 99)
    damaged = flow("run-due", "--require-run-log", "--run-log", "log.db")
    assert damaged.code == 2 and "state: nothing was run; the file is damaged" in damaged.err
    assert "restore a backup, or move it away" in damaged.err


def foretold(flow):
    return {
        each["pipeline"]: (each["would"], each["why"])
        for each in flow("run-due", "--dry-run", "-o", "json").json
    }


def minutes() -> list[dt.datetime]:
    """This minute and those around it, for slots that no poll opens again."""
    now = dt.datetime.now(dt.timezone.utc).replace(second=0, microsecond=0)
    return [now + dt.timedelta(minutes=number) for number in (0, 1, 2)]


def test_a_dry_run_of_what_is_due_changes_nothing(flow, shop):
    open_slots(slots_url(None), env=os.environ).close()
    log_file = slots_url(None).removeprefix("sqlite://")
    with closing(sqlite3.connect(log_file)) as log:
        before = list(log.iterdump())
    assert foretold(flow) == {"orders": ("run", None), "daily": ("run", "after orders, if that succeeds")}
    shown = flow("run-due", "--dry-run")
    assert "fired by * * * * *" in shown.out
    assert "dry run: nothing was run, and nothing was changed" in shown.err
    with closing(sqlite3.connect(log_file)) as log:
        assert list(log.iterdump()) == before
    with closing(sqlite3.connect(shop / "shop.db")) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("raw",)]


def test_a_dry_run_tells_who_has_a_slot_and_what_waits_for_it(flow):
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open([Slot("orders", at) for at in minutes()])
        first = store.unfinished(["orders"])[0]
        store.claim(first, "host/1/abc", 300)
    told = foretold(flow)
    assert told["orders"][0] == "wait" and "is held by host/1 until" in told["orders"][1]
    assert told["daily"][0] == "wait" and told["daily"][1].endswith("has not ended yet")


def test_a_dry_run_tells_what_would_be_skipped_and_given_up(flow):
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open([Slot("orders", at) for at in minutes()], "gave_up", "broken")
        (slot,) = dying = [Slot("apart", minutes()[0])]
        store.open(dying)
        for _ in range(3):
            store.begin(store.claim(store.get(slot), "host/1", 0), 0)
    told = foretold(flow)
    assert told["daily"][0] == "be_skipped" and told["daily"][1].endswith("was given up: broken")
    assert told["apart"] == ("be_given_up", "3 attempts died without an error")
    assert flow("runs").err.startswith("no matching run")


def test_a_dry_run_shows_a_retry(flow):
    with open_slots(slots_url(None), env=os.environ) as store:
        store.open([Slot("apart", at) for at in minutes()[:1]])
        store.retry_later(store.claim(store.unfinished(["apart"])[0], "host/1", 300), 300, "broken")
    would, why = foretold(flow)["apart"]
    assert would == "wait" and why.startswith("attempt 1 of 1 failed: broken; again at ")


def test_what_only_looks_makes_no_run_log(flow, shop):
    log_file = Path(slots_url(None).removeprefix("sqlite://"))
    assert flow("status", "-o", "json").json and foretold(flow)["orders"] == ("run", None)
    assert flow("runs").code == 0 and flow("logs", "feed").code == 2
    assert flow("list").code == 0
    assert not log_file.exists() and not log_file.parent.exists()
