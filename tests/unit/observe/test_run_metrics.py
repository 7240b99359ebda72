from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ematix_flow.errors import FlowError
from ematix_flow.observe.metrics import memory_metrics
from ematix_flow.observe.observer import RunEnd, SchedulerTick
from ematix_flow.observe.run_metrics import MOST_PIPELINES, RunMetrics
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.state.runlog.records import RunRecord
from tests.watched_runs import orders_pipeline

UTC = dt.timezone.utc
BEGAN = dt.datetime(2026, 3, 1, 12, tzinfo=UTC)
ENDED = BEGAN + dt.timedelta(seconds=40)
SLOT = dt.datetime(2026, 3, 1, 12, tzinfo=UTC)


def ended(status: str = "succeeded", **fields: object) -> RunRecord:
    given = {"run_id": "r", "pipeline": "orders", "target": "dw:t", "mode": "append", **fields}
    return RunRecord(status=status, started_at=BEGAN, finished_at=ENDED, **given)


def test_a_run_is_counted_in_every_path_that_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_METRICS", "memory://every-path")
    pipeline = orders_pipeline(tmp_path)
    pipeline.sync()
    pipeline.sync()
    metrics = memory_metrics("every-path")
    assert metrics.value("pipeline_runs_total", pipeline="orders", outcome="success") == 2
    assert metrics.value("pipeline_rows_total", pipeline="orders", kind="inserted") == 14
    assert metrics.value("pipeline_duration_seconds_count", pipeline="orders") == 2
    assert metrics.value("pipeline_retry_attempt", pipeline="orders") == 1
    assert metrics.value("pipeline_last_run_succeeded", pipeline="orders") == 1
    assert metrics.value("pipeline_stage_seconds_total", pipeline="orders", stage="apply") is not None


def test_a_failure_is_counted_and_leaves_the_last_success_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_METRICS", "memory://failing")
    with pytest.raises(FlowError):
        orders_pipeline(tmp_path, "bad", broken=True).sync()
    metrics = memory_metrics("failing")
    assert metrics.value("pipeline_runs_total", pipeline="bad", outcome="failure") == 1
    assert metrics.value("pipeline_last_run_succeeded", pipeline="bad") == 0
    assert metrics.value("pipeline_last_success_timestamp_seconds", pipeline="bad") is None


def test_a_slot_is_given_up_with_its_last_attempt_and_a_success_clears_it() -> None:
    metrics = RunMetrics()
    metrics.run_finished(ended("failed", slot=SLOT), RunEnd(2, will_retry=True))
    assert metrics.value("pipeline_gave_up", pipeline="orders") is None
    metrics.run_finished(ended("failed", slot=SLOT, attempt=2), RunEnd(2))
    assert metrics.value("pipeline_gave_up", pipeline="orders") == 1
    assert metrics.value("pipeline_slots_total", pipeline="orders", outcome="gave_up") == 1
    assert metrics.value("pipeline_retry_attempt", pipeline="orders") == 2
    metrics.run_finished(ended(slot=SLOT), RunEnd())
    assert metrics.value("pipeline_gave_up", pipeline="orders") == 0
    assert metrics.value("pipeline_slots_total", pipeline="orders", outcome="succeeded") == 1


def test_a_run_that_found_its_pipeline_locked_says_nothing_of_how_it_stands() -> None:
    metrics = RunMetrics()
    metrics.run_finished(ended(), RunEnd())
    locked = ended("locked", slot=SLOT, error_type="PipelineLocked", error_message="it runs already")
    metrics.run_finished(locked, RunEnd())
    assert metrics.value("pipeline_last_run_succeeded", pipeline="orders") == 1
    assert metrics.value("pipeline_runs_total", pipeline="orders", outcome="locked") == 1
    assert metrics.value("pipeline_duration_seconds_count", pipeline="orders") == 1
    assert metrics.value("pipeline_slots_total", pipeline="orders", outcome="succeeded") is None


def test_a_run_with_nothing_new_ended_well() -> None:
    metrics = RunMetrics()
    metrics.run_finished(ended("skipped", slot=SLOT), RunEnd())
    assert metrics.value("pipeline_last_success_timestamp_seconds", pipeline="orders") == ENDED.timestamp()
    assert metrics.value("pipeline_slots_total", pipeline="orders", outcome="succeeded") == 1


def test_streams_are_counted_by_their_own_numbers_and_not_as_runs() -> None:
    metrics = RunMetrics()
    metrics.run_finished(ended(mode="stream"), RunEnd())
    assert metrics.value("pipeline_runs_total", pipeline="orders", outcome="success") is None


def test_the_looks_of_a_scheduler_are_counted() -> None:
    metrics = RunMetrics()
    assert metrics.value("ematix_flow_scheduler_leader") is None  # without polls no scheduler is shown
    metrics.scheduler_ticked(
        SchedulerTick(0.1, started=2, lags=(3.0,), refused=1, taken_over=1, max_attempts={"a": 1}), 1000.0
    )
    metrics.scheduler_ticked(SchedulerTick(0.1, failed=True), 1010.0)
    metrics.scheduler_ticked(SchedulerTick(0.1, leads=False), 1020.0)
    scheduler = "ematix_flow_scheduler"
    for outcome in ("ok", "failed", "idle"):
        assert metrics.value(f"{scheduler}_ticks_total", outcome=outcome) == 1
    for outcome, many in (("started", 2), ("refused", 1), ("taken_over", 1)):
        assert metrics.value(f"{scheduler}_claims_total", outcome=outcome) == many
    assert metrics.value(f"{scheduler}_due_lag_seconds_sum") == 3
    assert metrics.value(f"{scheduler}_last_tick_timestamp_seconds") == 1020
    assert metrics.value(f"{scheduler}_leader") == 0
    assert metrics.value(f"{scheduler}_leases_lost_total") == 1


def test_labels_are_bounded_and_hold_no_secret() -> None:
    metrics = RunMetrics()
    for number in range(MOST_PIPELINES + 3):
        metrics.slot_ended(f"p{number}", "skipped")
    assert metrics.value("pipeline_slots_total", pipeline="other", outcome="skipped") == 3
    shy = RunMetrics()
    shy.slot_ended("load postgresql://u:hunter2@h/db", "skipped")
    shy.slot_ended("x" * 1000, "what is this")
    text = generate_latest(shy.registry).decode()
    assert "hunter2" not in text and "x" * 300 not in text and "what is this" not in text


def test_the_names_keep_to_openmetrics() -> None:
    metrics = RunMetrics()
    rule = {"rule": "positive", "verdict": "warn", "quarantined": 2}
    target = {"seconds": {"apply": 0.5}, "expectations": [rule]}
    metrics.run_finished(ended(slot=SLOT, rows=RowCounts(read=3), metrics={"targets": [target]}), RunEnd())
    metrics.set_freshness_slas({"orders": 3600.0})
    metrics.scheduler_ticked(SchedulerTick(0.1, started=1, lags=(1.0,)), 1000.0)
    families = {
        each.name: each for each in text_string_to_metric_families(generate_latest(metrics.registry).decode())
    }
    assert families["pipeline_runs"].type == "counter"
    assert families["pipeline_stage_seconds"].unit == "seconds"
    assert all(each.documentation and each.samples for each in families.values())
    units = {name: each.unit for name, each in families.items() if name.endswith("_seconds")}
    assert set(units.values()) == {"seconds"}
