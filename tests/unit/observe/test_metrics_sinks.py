from __future__ import annotations

import builtins
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import pytest

from ematix_flow.errors import ConfigError
from ematix_flow.observe.metric_families import parse_families
from ematix_flow.observe.metrics import open_metrics
from ematix_flow.observe.metrics_observers import CountingObserver
from ematix_flow.observe.observer import RunEnd, SchedulerTick
from ematix_flow.observe.run_follower import OVERLAP, RunFollower
from ematix_flow.observe.settings import METRICS_VARIABLE, Observability
from ematix_flow.observe.sink_urls import parse_sink_url
from ematix_flow.observe.traces import open_traces
from ematix_flow.schedule.executors.base import CannotDispatch
from ematix_flow.schedule.unstarted_runs import RunsDied
from ematix_flow.state.local_stores import open_local_run_log
from ematix_flow.state.runlog.base import NullRunLog, RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now
from tests.services.process import free_port
from tests.watched_runs import loaded, orders_pipeline

NO_LOG = NullRunLog("nowhere", ConfigError("there is none"))


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """One run of a pipeline with this sink."""
    monkeypatch.setenv(METRICS_VARIABLE, url)
    orders_pipeline(tmp_path).sync()


@pytest.fixture
def log() -> RunLog:
    return open_local_run_log("memory://followed", env={})


# ------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("prometheus+psh://x", "Did you mean 'prometheus+push'?"),
        ("stdout", "there is no metrics sink"),
        ("prometheus://:99999", "is invalid"),
        ("prometheus://203.0.113.1:9464", "metrics cannot be shown at 203.0.113.1:9464"),
        ("otlp://collector?insecur=1", "Did you mean 'insecure'?"),
        ("otlp://collector?insecure=perhaps", "insecure= takes 1 or 0"),
        ("prometheus+push://gateway?jb=x", "Did you mean 'job'?"),
        ("prometheus+file://", "names no file"),
        ("prometheus+file:///no/such/folder/flow.prom", "is not a writable folder"),
    ],
)
def test_a_url_that_makes_no_sense_is_reported_before_anything_runs(
    url: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as refused:
        watched(tmp_path, monkeypatch, url)
    assert said in refused.value.what


@pytest.mark.parametrize("url", ["otel://", "otel://stderr", "otlp://x", "otel+otlp://x", "nothing"])
def test_a_url_of_traces_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_traces(url)


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        open_metrics("prometheus+push://me:hunter2@gateway?nothing=1", NO_LOG)
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(parse_sink_url("prometheus+push://me:hunter2@gateway", "metrics", 1))


@pytest.mark.parametrize(
    ("url", "is_plain"),
    [
        ("otlp://collector:4318", False),
        ("otlp://collector:4318?insecure=1", True),
        ("otlp://localhost", True),
        ("otlp://127.0.0.1", True),
        ("otlp://[::1]:4318", True),
        ("otlp://localhost?insecure=0", False),
        ("otlp://10.0.0.1", False),
    ],
)
def test_only_this_machine_is_spoken_to_without_tls_unless_one_asks_for_it(url: str, is_plain: bool) -> None:
    assert parse_sink_url(url, "metrics", 4318).is_plaintext is is_plain


@pytest.mark.parametrize(
    "open_sink", [lambda: open_metrics("otlp://localhost", NO_LOG), lambda: open_traces("otel://stdout")]
)
def test_without_opentelemetry_the_extra_is_named(open_sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as refused:
        open_sink()
    assert refused.value.next_step == 'pip install "ematix-flow-spark[otel]"'


def test_the_runs_of_a_scheduler_count_nothing_themselves() -> None:
    given = Observability(metrics="prometheus://:9464", traces="otel://stdout").to_env()
    assert given == {METRICS_VARIABLE: "null://", "EMATIX_FLOW_TRACES": "otel://stdout"}


# ------------------------------------------------------------------ where numbers go


def test_numbers_are_printed_on_stderr_because_stdout_is_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watched(tmp_path, monkeypatch, "stdout://")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert 'pipeline_runs_total{outcome="success",pipeline="orders"} 1\n' in shown.err


def test_an_endpoint_is_there_while_the_process_lives(log: RunLog) -> None:
    port = free_port()
    sink = open_metrics(f"prometheus://:{port}/numbers", log)
    sink.run_finished(_ended(), RunEnd())
    with urlopen(f"http://127.0.0.1:{port}/numbers", timeout=10) as answer:
        assert 'pipeline_runs_total{outcome="success",pipeline="orders"} 1.0' in answer.read().decode()
    sink.close()
    with pytest.raises(OSError):
        urlopen(f"http://127.0.0.1:{port}/numbers", timeout=10)


def test_a_run_works_while_a_scheduler_has_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: RunLog, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    scheduler = open_metrics(f"prometheus://:{port}", log)
    try:
        watched(tmp_path, monkeypatch, f"prometheus://:{port}")
    finally:
        scheduler.close()
    assert loaded(tmp_path) == 7
    assert "the numbers of this process are not shown" in caplog.text


def test_a_file_adds_up_what_one_process_after_the_other_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "flow.prom"
    for _ in range(3):
        watched(tmp_path, monkeypatch, f"prometheus+file://{file}")
    numbers = _numbers(file)
    assert numbers['pipeline_runs_total{"outcome": "success", "pipeline": "orders"}'] == 3
    assert numbers['pipeline_duration_seconds_count{"pipeline": "orders"}'] == 3
    assert numbers['pipeline_last_run_succeeded{"pipeline": "orders"}'] == 1
    assert "_created" not in file.read_text()
    assert {each.name for each in tmp_path.iterdir() if each.name.startswith("flow")} == {
        "flow.prom",
        "flow.prom.lock",
    }


def test_many_processes_write_one_file_and_no_count_is_lost(tmp_path: Path, log: RunLog) -> None:
    file = tmp_path / "flow.prom"

    def count(number: int) -> None:
        sink = open_metrics(f"prometheus+file://{file}", log)
        sink.run_finished(_ended(pipeline=f"p{number % 3}"), RunEnd())
        sink.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(24)))
    numbers = _numbers(file)
    for pipeline in ("p0", "p1", "p2"):
        assert numbers[f'pipeline_runs_total{{"outcome": "success", "pipeline": "{pipeline}"}}'] == 8


def test_a_file_that_holds_something_else_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "flow.prom"
    file.write_text("this is {no metric\n")
    watched(tmp_path, monkeypatch, f"prometheus+file://{file}")
    assert file.read_text() == "this is {no metric\n"
    assert "could not report a run" in caplog.text
    assert loaded(tmp_path) == 7


# ------------------------------------------------------------------ runs that end elsewhere


def test_a_follower_gives_each_run_that_ends_once(log: RunLog) -> None:
    before, during, later = _running("before"), _running("during"), _running("later")
    log.start(before)
    log.finish(before.run_id, "succeeded")
    log.start(during)
    follower = RunFollower(log, utc_now)
    assert list(follower.poll_ended_runs()) == []
    log.start(later)
    assert list(follower.poll_ended_runs()) == []
    log.finish(later.run_id, "failed")
    assert [run.pipeline for run in follower.poll_ended_runs()] == ["later"]
    log.finish(during.run_id, "succeeded")
    assert [run.pipeline for run in follower.poll_ended_runs()] == ["during"]
    assert list(follower.poll_ended_runs()) == []


def test_a_follower_finds_a_run_that_took_hours(log: RunLog) -> None:
    now = utc_now()
    follower = RunFollower(log, lambda: now)
    list(follower.poll_ended_runs())
    long = _running("long")
    log.start(long)
    assert list(follower.poll_ended_runs()) == []
    now += 10 * OVERLAP
    assert list(follower.poll_ended_runs()) == []
    log.finish(long.run_id, "succeeded")
    assert [run.pipeline for run in follower.poll_ended_runs()] == ["long"]


def test_a_scheduler_knows_how_pipelines_stood_before_it(log: RunLog) -> None:
    for status in ("succeeded", "failed"):
        run = _running("stood", slot=utc_now())
        log.start(run)
        log.finish(run.run_id, status)
    observer = CountingObserver("test", log)
    observer.scheduler_ticked(
        SchedulerTick(0.1, max_attempts={"stood": 1, "new": 1}, freshness_slas={"stood": 7200})
    )
    assert observer.metrics.value("pipeline_freshness_sla_seconds", pipeline="stood") == 7200
    assert observer.metrics.value("pipeline_freshness_sla_seconds", pipeline="new") is None
    assert observer.metrics.value("pipeline_gave_up", pipeline="stood") == 1
    assert observer.metrics.value("pipeline_last_success_timestamp_seconds", pipeline="stood") is not None
    assert observer.metrics.value("pipeline_runs_total", pipeline="stood", outcome="failure") == 0
    assert observer.metrics.value("pipeline_runs_total", pipeline="new", outcome="failure") == 0
    observer.scheduler_ticked(SchedulerTick(0.1, leads=False))
    assert observer.metrics.value("pipeline_gave_up", pipeline="stood") is None  # another reports it now


class _Asked:
    """A run log that notes which questions it was asked."""

    def __init__(self, log: RunLog) -> None:
        self.log, self.asked = log, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.log, name)


def test_how_many_pipelines_there_are_and_how_many_run_costs_no_more_questions(log: RunLog) -> None:
    names = [f"p{number}" for number in range(30)]
    for name in names:
        for status in ("succeeded", "failed"):
            run = _running(name)
            log.start(run)
            log.finish(run.run_id, status)
        log.start(_running(name))  # one that died, or a stream: it writes nothing for hours
    now, asked = utc_now(), _Asked(log)
    observer = CountingObserver("test", cast(RunLog, asked), clock=lambda: now.timestamp())
    observer.scheduler_ticked(SchedulerTick(0.1, max_attempts=dict.fromkeys(names, 1)))
    assert len(asked.asked) < len(names)
    assert observer.metrics.value("pipeline_last_run_succeeded", pipeline="p7") == 0
    assert observer.metrics.value("pipeline_last_success_timestamp_seconds", pipeline="p7") is not None
    now += 10 * OVERLAP
    observer.scheduler_ticked(SchedulerTick(0.1))
    asked.asked.clear()
    observer.scheduler_ticked(SchedulerTick(0.1))
    assert asked.asked == ["list", "list"]


def test_a_pipeline_that_has_failed_for_long_still_tells_its_last_success(log: RunLog) -> None:
    for status in ("succeeded", *["failed"] * 30):
        run = _running("failing")
        log.start(run)
        log.finish(run.run_id, status)
    observer = CountingObserver("test", log)
    observer.scheduler_ticked(SchedulerTick(0.1, max_attempts={"failing": 1}))
    assert observer.metrics.value("pipeline_last_success_timestamp_seconds", pipeline="failing") is not None


def test_a_slot_of_which_the_scheduler_tells_itself_is_counted_once(log: RunLog) -> None:
    observer = CountingObserver("test", log)
    observer.scheduler_ticked(SchedulerTick(0.1, max_attempts={"dies": 1}))
    told = _unstarted(log, "dies", RunsDied("3 attempts died without an error"), attempt=3)
    observer.run_finished(told, RunEnd(3))
    observer.scheduler_ticked(SchedulerTick(0.1, max_attempts={"dies": 1}))
    assert observer.metrics.value("pipeline_runs_total", pipeline="dies", outcome="failure") == 1
    assert observer.metrics.value("pipeline_slots_total", pipeline="dies", outcome="gave_up") == 1
    assert observer.metrics.value("pipeline_gave_up", pipeline="dies") == 1


def test_a_slot_that_waits_for_an_executor_is_not_given_up_without_a_retry_policy(log: RunLog) -> None:
    observer = CountingObserver("test", log)
    observer.scheduler_ticked(SchedulerTick(0.1, max_attempts={"waits": 1}))
    told = _unstarted(log, "waits", CannotDispatch("no memory"))
    observer.run_finished(told, RunEnd(1, will_retry=True))
    observer.scheduler_ticked(SchedulerTick(0.1, max_attempts={"waits": 1}))
    assert observer.metrics.value("pipeline_runs_total", pipeline="waits", outcome="failure") == 1
    assert observer.metrics.value("pipeline_gave_up", pipeline="waits") == 0
    assert observer.metrics.value("pipeline_slots_total", pipeline="waits", outcome="gave_up") == 0


def _unstarted(log: RunLog, pipeline: str, error: Exception, **fields: Any) -> RunRecord:
    run = _running(pipeline, slot=utc_now(), **fields)
    log.start(run)
    log.finish(run.run_id, "failed", error=error)
    return log.get(run.run_id)


def _running(pipeline: str, **fields: Any) -> RunRecord:
    from ematix_flow.state.runlog.records import new_run_id

    return RunRecord(run_id=new_run_id(), pipeline=pipeline, target="dw:t", mode="append", **fields)


def _ended(**fields: Any) -> RunRecord:
    given = {"run_id": "r", "pipeline": "orders", "target": "dw:t", "mode": "append", **fields}
    return RunRecord(status="succeeded", finished_at=utc_now(), **given)


def _numbers(file: Path) -> dict[str, float]:
    import json

    return {
        f"{name}{json.dumps(dict(labels))}": value
        for family in parse_families(file.read_text()).values()
        for (name, labels), value in family.series.items()
    }
