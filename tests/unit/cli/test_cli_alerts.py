"""Alerts and freshness from the command line: sent once over many processes, without harm to a run."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from pathlib import Path

import pytest

from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from tests.alert_servers import http_receiver, refusing_port
from tests.unit.cli.conftest import Called, Flow

PIPELINES = """
from ematix_flow import BigInt, SQLiteConnection, TimestampTZ, ematix

db = SQLiteConnection(name="db", path="db.sqlite")

@ematix.table(schema=None)
class Orders:
    id: BigInt
    at: TimestampTZ | None

@ematix.pipeline(target=Orders, target_connection=db, mode="truncate", allow_empty=True, freshness_sla="6h")
def orders(conn):
    return "SELECT id, at FROM raw"

@ematix.table(schema=None)
class Copy:
    id: BigInt
    at: TimestampTZ | None

@ematix.pipeline(target=Copy, target_connection=db, mode="truncate", freshness_sla=dt.timedelta(days=2),
                 freshness_column="at")
def copy(conn):
    return "SELECT id, at FROM raw"
""".replace("from ematix_flow", "import datetime as dt\n\nfrom ematix_flow", 1)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(PIPELINES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMATIX_FLOW_MODULE", "shop")
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", f"sqlite://{tmp_path}/log.db")
    monkeypatch.delenv("EMATIX_FLOW_ALERTERS", raising=False)
    sqlite3.connect("db.sqlite").close()
    return tmp_path


def fix_source() -> None:
    with sqlite3.connect("db.sqlite") as db:
        db.execute("CREATE TABLE raw (id INTEGER, at TEXT)")
        db.execute("INSERT INTO raw VALUES (1, ?)", [(utc_now() - dt.timedelta(days=1)).isoformat()])


def alerts(called: Called) -> list[str]:
    return re.findall(r"^\[ALERT\] \S+ (\w+): (\w+) ", called.err, re.M)


def test_a_pipeline_that_fails_and_recovers_sends_two_alerts(shop: Path, flow: Flow) -> None:
    assert alerts(flow("run", "orders", "--alerter", "stdout://")) == [("failed", "orders")]
    assert alerts(flow("run", "orders", "--alerter", "stdout://")) == []
    fix_source()
    well = flow("run", "orders", "--alerter", "stdout://")
    assert (well.code, alerts(well)) == (0, [("recovered", "orders")])
    assert alerts(flow("run", "orders", "--alerter", "stdout://")) == []


def test_a_bad_url_is_an_error_before_anything_runs(shop: Path, flow: Flow) -> None:
    for command in (["run", "orders"], ["run-due"], ["freshness-check"]):
        refused = flow(*command, "--alerter", "email://mail.example.com")
        assert refused.code == 2 and "names no recipient" in refused.err
    assert flow("runs", "list", "--output", "json").json == []


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: none}}]
current-context: c
"""


def test_a_scheduler_whose_runs_would_alert_nobody_does_not_start(
    shop: Path, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(shop / "kubeconfig"))
    executor = ["--executor", "k8s://etl?image=flow:1", "--run-log", "postgres://flow@127.0.0.1:9/log"]
    refused = flow("scheduler", *executor, "--alerter", "stdout://")
    assert refused.code == 2 and "could send no alerts" in refused.err
    assert "--from-literal=EMATIX_FLOW_ALERTERS=…" in refused.err and "&env-from=flow" in refused.err
    (shop / ".ematix-flow.toml").write_text('[alerts]\nurls = ["stdout://"]\n', encoding="utf-8")
    unreachable = flow("scheduler", *executor, "--max-iterations", "1")  # the image has that file, too
    assert "could send no alerts" not in unreachable.err


@pytest.mark.parametrize("behaviour", ["answers 500", "closes mid answer", "never ends", "hangs"])
def test_a_server_that_misbehaves_does_not_change_what_becomes_of_a_run(
    behaviour: str, shop: Path, flow: Flow
) -> None:
    with http_receiver(behaviour) as server:
        url = f"webhook+http://{server.host}/sesame99"
        failed = flow("run", "orders", "--alerter", url, "--alerter", "stdout://", "--output", "json")
    assert (failed.code, failed.json[0]["status"], alerts(failed)) == (1, "failed", [("failed", "orders")])
    assert f"warning: webhook at {server.host} could not report a run" in failed.err
    assert "sesame99" not in failed.err


def test_what_nobody_takes_comes_with_the_next(shop: Path, flow: Flow) -> None:
    with refusing_port() as port:
        assert flow("run", "orders", "--alerter", f"slack://localhost:{port}/x?insecure=1").code == 1
    with http_receiver() as server:
        url = f"slack://{server.host}/x?insecure=1"
        for _ in range(2):
            flow("run", "orders", "--alerter", url)
    assert len(server.posted) == 1


def test_runs_that_a_scheduler_starts_elsewhere_alert(shop: Path, flow: Flow) -> None:
    module = shop / "shop.py"
    module.write_text(PIPELINES.replace('"6h"', '"6h", schedule="* * * * *"'), encoding="utf-8")
    with http_receiver() as server:
        url = f"webhook+http://{server.host}/in"
        done = flow("scheduler", "--max-iterations", "1", "--alerter", url, "--interval", "120")
    assert done.code == 0
    (post,) = server.posted
    assert (post.json["kind"], post.json["pipeline"], post.json["error_type"]) == (
        "failed",
        "orders",
        "SourceFailed",
    )
    assert post.json["slot"] is not None


def test_a_test_says_what_came_of_it(shop: Path, flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = flow("alerts", "test")
    assert nothing.code == 2 and "EMATIX_FLOW_ALERTERS" in nothing.err
    with http_receiver("ok", "answers 404") as server:
        monkeypatch.setenv("EMATIX_FLOW_ALERTERS", f"stdout:// webhook+http://{server.host}/sesame99")
        well = flow("alerts", "test")
        assert well.code == 0 and re.search(rf"webhook at {server.host} +ok", well.out)
        bad = flow("alerts", "test", "--output", "json")
    assert bad.code == 1
    assert [(each["alerter"], each["status"]) for each in bad.json] == [
        ("stdout", "ok"),
        (f"webhook at {server.host}", "failed"),
    ]
    assert "404" in bad.json[1]["reason"] and "sesame99" not in bad.out + bad.err
    assert server.posted[0].json["kind"] == "test"


# ------------------------------------------------------------------ freshness


def succeeded(pipeline: str, ago: dt.timedelta) -> None:
    ended = utc_now() - ago
    record = RunRecord(run_id=f"{ended}", pipeline=pipeline, target="t", mode="append", started_at=ended)
    with open_run_log(f"sqlite://{Path.cwd()}/log.db", env={}) as log:
        log.start(record)
        log.finish(record.run_id, "succeeded", finished_at=ended)


@pytest.mark.parametrize(
    ("hours", "state", "code"),
    [(1, "healthy", 0), (5, "warning", 0), (7, "breached", 1), (None, "breached", 1)],
)
def test_freshness_is_the_time_since_the_last_success(
    hours: int | None, state: str, code: int, shop: Path, flow: Flow
) -> None:
    if hours is not None:
        succeeded("orders", dt.timedelta(hours=hours))
    found = flow("freshness-check", "orders", "--output", "json")
    assert (found.code, found.json[0]["state"], found.json[0]["sla_seconds"]) == (code, state, 21_600)
    assert state in flow("freshness-check", "orders").out


def test_a_column_says_how_fresh_the_target_is(shop: Path, flow: Flow) -> None:
    missing = flow("freshness-check", "copy", "--output", "json")
    assert missing.code == 1 and "the target cannot be read: " in missing.json[0]["reason"]
    fix_source()
    assert flow("run", "copy").code == 0
    (found,) = flow("freshness-check", "copy", "--output", "json").json
    assert found["state"] == "healthy" and found["lag_seconds"] == pytest.approx(86_400, rel=0.01)


def test_one_that_cannot_be_asked_keeps_no_other_from_being_checked(shop: Path, flow: Flow) -> None:
    lake = PIPELINES.replace("target_connection=db", "target_connection=lake").replace("=None", '="sales"')
    lake = lake.replace("import BigInt", "import BigInt, DeltaLocalConnection")
    lake = lake.replace("\ndb = ", '\nlake = DeltaLocalConnection(name="lake", path="lake")\ndb = ')
    (shop / "lake.py").write_text(lake, encoding="utf-8")
    succeeded("orders", dt.timedelta(hours=1))
    found = flow("freshness-check", "--module", "lake", "--output", "json")
    states = {each["pipeline"]: (each["state"], each["reason"]) for each in found.json}
    assert found.code == 1 and states["orders"] == ("healthy", None)
    assert states["copy"][0] == "breached"
    assert "cannot be read without Spark (leave out freshness_column=" in states["copy"][1]


def test_staleness_is_reported_once_and_so_is_its_end(
    shop: Path, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ematix_flow.schedule.freshness._MEANWHILE", dt.timedelta(0))
    check = ["freshness-check", "orders", "--alerter", "stdout://"]
    assert alerts(flow(*check)) == [("sla_breached", "orders")]
    succeeded("orders", dt.timedelta(hours=8))
    assert alerts(flow(*check)) == []
    succeeded("orders", dt.timedelta(hours=1))
    well = flow(*check)
    assert (well.code, alerts(well)) == (0, [("recovered", "orders")])
    assert alerts(flow(*check)) == []


def test_of_two_machines_that_look_at_once_one_tells(shop: Path, flow: Flow) -> None:
    with refusing_port() as port:
        flow("freshness-check", "orders", "--alerter", f"slack://localhost:{port}/x?insecure=1")
    assert alerts(flow("freshness-check", "orders", "--alerter", "stdout://")) == []


def test_a_name_that_is_none_gets_a_guess(shop: Path, flow: Flow) -> None:
    assert "Did you mean 'orders'" in flow("freshness-check", "order").err


def test_nothing_promised_is_nothing_to_check(shop: Path, flow: Flow) -> None:
    (shop / "empty.py").write_text("", encoding="utf-8")
    found = flow("freshness-check", "--module", "empty")
    assert found.code == 0 and "freshness_sla=" in found.err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ('freshness_sla="soon"', "is not a duration"),
        ("freshness_sla=-5", "takes seconds or a timedelta"),
        ("freshness_sla=0", "no load is that fresh"),
        ('freshness_column="at"', "freshness_sla=, which is not set"),
        ('freshness_sla="6h", freshness_column="att"', "Did you mean 'at'"),
    ],
)
def test_a_promise_that_makes_no_sense_points_at_its_line(
    option: str, words: str, shop: Path, flow: Flow
) -> None:
    changed = PIPELINES.replace('freshness_sla="6h"', option)
    (shop / "shop.py").write_text(changed, encoding="utf-8")
    refused = flow("list")
    assert refused.code == 2 and words in refused.err and "shop.py:" in refused.err
