"""Runs with expectations and data probes: the plan, the result, the run log, alerts and metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import BigInt, SQLiteConnection, Target, Text, ematix, pk
from ematix_flow.alerters import Alerter, AlertEvent
from ematix_flow.api.pipeline_handle import Pipeline
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import (
    ExpectationFailed,
    PlanError,
    PostTransformFailed,
    SchemaMismatch,
)
from ematix_flow.observe.alerts.alert_observer import AlertObserver, quality_event
from ematix_flow.observe.alerts.alerter_urls import AlertSubscription
from ematix_flow.observe.alerts.event import KINDS
from ematix_flow.observe.observer import RunEnd
from ematix_flow.observe.run_metrics import RunMetrics
from ematix_flow.state.runlog.base import project_run_log
from ematix_flow.state.runlog.records import RunRecord
from ematix_probe import RunHistory, probe, source
from ematix_probe.tester import Tester
from tests.unit.run.sqlite_file import execute


@ematix.table(schema="main")
class Orders:
    order_id: Annotated[BigInt, pk()]
    amount: BigInt | None
    email: Text | None


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE incoming (order_id, amount, email)")
    execute(path, "INSERT INTO incoming VALUES (1, 10, 'a@b.c'), (2, -5, 'x'), (3, NULL, 'd@e.f')")
    return path


Declare = Callable[..., Pipeline]


@pytest.fixture
def declare(shop: Path) -> Declare:
    connection = SQLiteConnection(name="shop", path=str(shop))

    def make(**options: Any) -> Pipeline:
        @ematix.pipeline(
            target=Orders,
            source_connection=connection,
            target_connection=connection,
            name="orders",
            **options,
        )
        def load(conn: Any) -> str:
            return "SELECT order_id, amount, email FROM incoming"

        return load

    return make


RULES = [ematix.expect_or_drop("positive", "amount > 0"), ematix.expect("mail", "email LIKE '%@%'")]


def last_run() -> RunRecord:
    with open_run_log(project_run_log(os.environ), env=os.environ) as log:
        return log.list("orders", limit=1)[0]


def ids(shop: Path, table: str = "orders") -> list[int]:
    if not execute(shop, f"SELECT 1 FROM sqlite_master WHERE name = '{table}'"):
        return []
    return [row[0] for row in execute(shop, f"SELECT order_id FROM {table} ORDER BY 1")]


# ------------------------------------------------------------------ plans


def test_a_plan_shows_the_rules_their_actions_and_the_quarantine_table(declare: Declare) -> None:
    plan = declare(expectations=RULES, quarantine="bad_orders").plan()
    assert "check 2 expectations on the rows, before they become visible" in plan.to_text()
    assert "create table main.bad_orders" in plan.to_text()
    verbose = plan.to_text(verbose=True)
    assert "positive: else quarantine into main.bad_orders" in verbose
    assert "mail: else warn" in verbose
    (target,) = json.loads(json.dumps(plan.to_json()))["targets"]
    assert [(rule["rule"], rule["action"]) for rule in target["expectations"]] == [
        ("positive", "quarantine"),
        ("mail", "warn"),
    ]
    assert target["quarantine"] == "main.bad_orders"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"expectations": lambda t: t.column("amont").not_null()},
            SchemaMismatch,
            "names 'amont', which is not a column of main.orders. Did you mean 'amount'?",
        ),
        (
            {"expectations": lambda t: t.column("email").between(1, 5)},
            PlanError,
            "the expectation 'email.between' cannot be checked in main.orders",
        ),
        (
            {"expectations": [ematix.expect_or_drop("a", "amount > 0")], "quarantine": "Orders"},
            PlanError,
            "is the table that the pipeline loads",
        ),
        (
            {
                "expectations": [ematix.expect_or_drop("a", "amount > 0")],
                "mode": "merge",
                "keys": ["order_id"],
                "handle_deletes": "hard",
            },
            PlanError,
            "takes rows that the source lacks for deleted",
        ),
        (
            {"expectations": ["table", lambda t: t.column("order_id").not_null()]},
            PlanError,
            "two expectations of main.orders are called 'order_id.not_null'",
        ),
    ],
)
def test_a_gate_that_cannot_work_is_refused_by_the_plan(
    declare: Declare, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as refused:
        declare(**options).plan()
    assert said in str(refused.value)


def test_a_quarantine_table_for_two_targets_of_one_database_is_refused(shop: Path) -> None:
    one, other = (SQLiteConnection(name=name, path=str(shop)) for name in ("one", "other"))
    elsewhere = SQLiteConnection(name="elsewhere", path=str(shop.with_name("elsewhere.db")))

    def load_into(second: SQLiteConnection) -> Pipeline:
        @ematix.pipeline(
            targets=[Target(one, table=Orders), Target(second, table=Orders)],
            source_connection=one,
            name=second.name,
            expectations=RULES,
            quarantine="bad_orders",
        )
        def load(conn: Any) -> str:
            return "SELECT order_id, amount, email FROM incoming"

        return load

    with pytest.raises(PlanError, match="connections 'one' and 'other' reach the same") as refused:
        load_into(other).plan()
    assert "main.bad_orders would hold the rows of two targets" in refused.value.what
    assert len(load_into(elsewhere).plan().targets) == 2


# ------------------------------------------------------------------ results and the run log


def test_the_result_and_the_run_log_hold_what_each_rule_found(declare: Declare, shop: Path) -> None:
    result = declare(expectations=RULES).sync()
    assert (result.rows_read, result.rows_inserted, result.rows_quarantined) == (3, 2, 1)
    found = json.loads(json.dumps(result.to_json()))
    (target,) = found["targets"]
    assert (found["rows_quarantined"], target["rows_quarantined"]) == (1, 1)
    positive, mail = target["expectations"]
    assert positive["rule"] == "positive"
    assert (positive["verdict"], positive["failing"], positive["checked"], positive["quarantined"]) == (
        "warn",
        1,
        3,
        1,
    )
    assert (mail["verdict"], mail["share"], mail["samples"]) == (
        "warn",
        pytest.approx(1 / 3),
        [{"order_id": 2, "email": "x"}],
    )
    assert any("1 row went to the quarantine table" in note for note in result.notes)
    assert last_run().metrics["targets"] == found["targets"]


def test_a_load_that_fails_its_gate_is_recorded_with_the_rules_and_not_retried(
    declare: Declare, shop: Path
) -> None:
    load = declare(expectations=lambda t: t.column("amount").not_null(), retry={"max_attempts": 3})
    with pytest.raises(ExpectationFailed) as failed:
        load.sync()
    assert failed.value.attempts == 1
    assert 'on_fail="quarantine" sets the failing rows aside' in (failed.value.next_step or "")
    assert ids(shop) == []
    record = last_run()
    assert record.status == "failed"
    (rule,) = record.metrics["targets"][0]["expectations"]
    assert (rule["rule"], rule["verdict"], rule["failing"]) == ("amount.not_null", "fail", 1)


def test_a_dry_run_shows_the_verdicts_and_changes_nothing(declare: Declare, shop: Path) -> None:
    result = declare(expectations=RULES).dry_run()
    assert [each.verdict for each in result.expectations] == ["warn", "warn"]
    assert (ids(shop), ids(shop, "orders__quarantine")) == ([], [])


def test_no_expectation_and_no_probe_is_checked_if_the_environment_says_so(
    declare: Declare, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_SKIP_QUALITY", "1")
    checks = failing_probe(shop)
    load = declare(expectations=RULES, transforms_pre=[checks], transforms_post=[checks])
    result = load.sync()
    assert ids(shop) == [1, 2, 3]
    assert result.expectations == ()
    skipped = [note for note in result.notes if "EMATIX_SKIP_QUALITY is set" in note]
    assert len(skipped) == 3


@pytest.mark.parametrize("value", ["", "0", "false", "No", "off"])
def test_a_variable_that_says_no_keeps_the_checks(
    declare: Declare, shop: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("EMATIX_SKIP_QUALITY", value)
    assert len(declare(expectations=RULES).sync().expectations) == len(RULES)


# ------------------------------------------------------------------ probes before and after


def failing_probe(shop: Path, **options: Any) -> Any:
    @probe.data(source=source.sqlite(str(shop)), table="incoming")
    def complete(t: Tester) -> None:
        t.column("amount").not_null(**options)

    return complete


def test_a_probe_that_fails_before_the_load_stops_it(declare: Declare, shop: Path) -> None:
    with pytest.raises(ExpectationFailed, match="the probe 'complete' fails, which runs before the load"):
        declare(transforms_pre=[failing_probe(shop)]).sync()
    assert ids(shop) == []


def test_a_probe_that_fails_after_the_load_fails_the_run_and_leaves_the_rows(
    declare: Declare, shop: Path
) -> None:
    with pytest.raises(PostTransformFailed, match=r"\(complete\) failed: amount.not_null"):
        declare(transforms_post=[failing_probe(shop)]).sync()
    assert ids(shop) == [1, 2, 3]


def test_probes_of_a_pipeline_are_recorded_in_the_history_of_the_environment(
    declare: Declare, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_HISTORY", str(tmp_path / "history.db"))

    @probe.data(source=source.sqlite(str(shop)), table="incoming")
    def steady(t: Tester) -> None:
        t.row_count_change(max_drop=0.1)

    result = declare(transforms_pre=[steady], transforms_post=[steady]).sync()
    messages = [report["assertions"][0]["message"] for report in result.probes]
    assert messages == [
        "3 rows; no earlier run is recorded to compare with",
        "3 rows, as many as in the last run; allowed: a fall of 10 %",
    ]
    assert len(RunHistory(tmp_path / "history.db").runs("steady")) == 2


def test_a_probe_counts_although_its_run_cannot_be_recorded(
    declare: Declare, shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_HISTORY", str(shop.parent / "shop.db" / "history.db"))
    result = declare(transforms_pre=[failing_probe(shop, severity="warn")]).sync()
    assert [report["verdict"] for report in result.probes] == ["warn"]
    assert "the run of the probe 'complete' is not recorded" in caplog.text


def test_a_probe_that_needs_its_past_stops_the_load_when_the_history_cannot_be_opened(
    declare: Declare, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_HISTORY", str(tmp_path / "typo" / "history.db"))

    @probe.data(source=source.sqlite(str(shop)), table="incoming")
    def steady(t: Tester) -> None:
        t.row_count_change(max_drop=0.1)

    with pytest.raises(ExpectationFailed, match="there is no folder"):
        declare(transforms_pre=[steady]).sync()
    assert ids(shop) == []


def test_a_history_of_probes_that_cannot_be_named_so_stops_the_load(
    declare: Declare, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_PROBE_HISTORY", "nowhere://x")
    with pytest.raises(ExpectationFailed, match="'nowhere' is not a kind of history"):
        declare(transforms_pre=[failing_probe(shop, severity="warn")]).sync()


def test_a_probe_that_warns_is_reported_and_stops_nothing(declare: Declare, shop: Path) -> None:
    checks = failing_probe(shop, severity="warn")
    result = declare(transforms_pre=[checks], transforms_post=[checks]).sync()
    assert [report["verdict"] for report in result.probes] == ["warn", "warn"]
    assert sum("the probe 'complete' warns" in note for note in result.notes) == 2
    assert result.post == (("complete", "ok"),)
    assert [report["probe_name"] for report in last_run().metrics["probes"]] == ["complete", "complete"]


# ------------------------------------------------------------------ alerts and metrics


class Hears(Alerter):
    name = "hears"

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []

    def send(self, event: AlertEvent) -> None:
        self.events.append(event)


def alerts_of(record: RunRecord) -> list[AlertEvent]:
    hears = Hears()
    with open_run_log(project_run_log(os.environ), env=os.environ) as log:
        observer = AlertObserver(AlertSubscription(hears, "hears", kinds=frozenset(KINDS)), log)
        observer.run_finished(record, RunEnd())
        observer.run_finished(record, RunEnd())  # the same problem again
    return hears.events


def test_rows_that_were_set_aside_send_one_alert_with_the_next_command(declare: Declare, shop: Path) -> None:
    declare(expectations=RULES).sync()
    (event,) = alerts_of(last_run())
    assert (event.kind, event.next_step) == ("quality_failed", "flow quarantine list orders")
    assert event.error_message == "positive: 1 of 3 rows fail"
    assert event.state == "1 row is in quarantine, the rest is loaded"


def test_an_alert_says_that_an_earlier_run_set_the_rows_aside(declare: Declare) -> None:
    declare(expectations=RULES).sync()
    (positive, _) = last_run().metrics["targets"][0]["expectations"]
    event = quality_event(last_run(), [{**positive, "quarantined": 0}])
    assert event.state == "no row was added to quarantine: an earlier run set the failing ones aside"


@pytest.mark.parametrize(
    ("options", "alerts"),
    [
        ({"expectations": RULES[1:]}, 0),
        ({"expectations": RULES[1:], "alert_on_quality_warn": True}, 1),
        ({"expectations": lambda t: t.column("amount").not_null(), "on_fail": "warn"}, 1),
    ],
)
def test_rules_that_only_warn_send_an_alert_if_that_is_the_policy(
    declare: Declare, shop: Path, options: dict[str, Any], alerts: int
) -> None:
    declare(**options).sync()
    assert len(alerts_of(last_run())) == alerts


def test_metrics_count_verdicts_and_quarantined_rows(declare: Declare, shop: Path) -> None:
    declare(expectations=RULES).sync()
    metrics = RunMetrics()
    metrics.run_finished(last_run(), RunEnd())
    value = metrics.registry.get_sample_value
    labels = {"pipeline": "orders", "rule": "positive", "verdict": "warn"}
    assert value("pipeline_expectations_total", labels) == 1
    assert value("pipeline_quarantined_rows_total", {"pipeline": "orders"}) == 1


def test_a_table_that_is_no_quarantine_table_is_not_to_be_dropped(shop: Path, declare: Declare) -> None:
    with pytest.raises(SchemaMismatch, match=r"'main\.incoming' is a table that is there") as raised:
        declare(expectations=RULES, quarantine="incoming").plan()
    assert "drop" not in str(raised.value)
    assert "name another table" in str(raised.value.next_step)
