"""Which receiver gets which alert, and how often: from the run log, the same in every process."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.alerters import (
    Alerter,
    AlertEvent,
    AlertNotSent,
    active_alerters,
    clear_alerters,
    register_alerter,
)
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.errors import CannotConnect, ConfigError, FlowError, SourceFailed
from ematix_flow.observe.alerts.alert_observer import AlertObserver
from ematix_flow.observe.alerts.alerter_urls import AlertSubscription
from ematix_flow.observe.alerts.event import KINDS
from ematix_flow.observe.observer import RunEnd
from ematix_flow.observe.settings import Observability, open_observers
from ematix_flow.run.last_runs import record_skipped_run
from ematix_flow.spec.pipelines import PipelineSpec
from ematix_flow.state.runlog.base import NullRunLog, RunLog
from ematix_flow.state.runlog.records import RunRecord, RunStatus
from ematix_flow.state.times import utc_now

DAY = dt.timedelta(days=1)


class Hears(Alerter):
    """Keeps what it is sent; ``deaf`` makes it fail."""

    name = "hears"

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []
        self.deaf = False

    def send(self, event: AlertEvent) -> None:
        if self.deaf:
            raise OSError("nobody listens")
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


class ObservedRuns:
    """Runs of one pipeline, each told by an observer that knows nothing of those before."""

    def __init__(self, log: RunLog, hears: Hears) -> None:
        self.log, self.hears = log, hears
        self.began = utc_now()

    def run(
        self,
        status: RunStatus,
        error: FlowError | None = None,
        *,
        attempt: int = 1,
        attempts: int = 1,
        remind: dt.timedelta | None = DAY,
        kinds: tuple[str, ...] = KINDS,
        key: str = "hears",
        pipeline: str = "orders",
    ) -> RunRecord:
        self.began += dt.timedelta(seconds=1)
        started = RunRecord(
            run_id=uuid.uuid4().hex, pipeline=pipeline, target="t", mode="append", started_at=self.began,
            attempt=attempt,
        )  # fmt: skip
        self.log.start(started)
        self.log.finish(started.run_id, status, error=error)
        ended = self.log.get(started.run_id)
        observer = AlertObserver(AlertSubscription(self.hears, key, remind, frozenset(kinds)), self.log)
        observer.run_finished(ended, RunEnd(attempts, attempt < attempts, error))
        return ended

    def fail(self, what: str = "no route to host 10.0.0.7", **how: object) -> RunRecord:
        return self.run("failed", CannotConnect(what), **how)  # type: ignore[arg-type]


@pytest.fixture
def hears() -> Hears:
    return Hears()


@pytest.fixture
def told(tmp_path: Path, hears: Hears) -> Iterator[ObservedRuns]:
    with open_run_log(f"sqlite://{tmp_path}/log.db", env={}) as log:
        yield ObservedRuns(log, hears)


def test_a_lasting_failure_and_its_end_are_alerted_once_each(told: ObservedRuns, hears: Hears) -> None:
    for number in range(60):
        told.fail(f"no route to host 10.0.0.{number}")
    assert hears.kinds == ["failed"]
    told.run("succeeded")
    told.run("succeeded")
    assert hears.kinds == ["failed", "recovered"]
    told.fail()
    assert hears.kinds == ["failed", "recovered", "failed"]


def test_what_was_well_all_along_recovers_from_nothing(told: ObservedRuns, hears: Hears) -> None:
    told.run("succeeded")
    told.run("skipped")
    assert hears.events == []


def test_another_failure_is_alerted_and_the_first_one_not_again(told: ObservedRuns, hears: Hears) -> None:
    told.fail("no route")
    told.run("failed", SourceFailed("no such table"))
    told.fail("no route")
    assert [event.error_type for event in hears.events] == ["CannotConnect", "SourceFailed"]


def test_giving_up_is_alerted_even_after_the_failure_was(told: ObservedRuns, hears: Hears) -> None:
    for attempt in (1, 2, 3):
        told.fail(attempt=attempt, attempts=3)
    assert hears.kinds == ["failed", "gave_up"]
    last = hears.events[-1]
    assert (last.attempt_count, last.max_attempts, last.gave_up) == (3, 3, True)
    for attempt in (1, 2, 3):  # the next slot
        told.fail(attempt=attempt, attempts=3)
    assert len(hears.events) == 2


def test_runs_that_say_nothing_of_the_pipeline_change_nothing(told: ObservedRuns, hears: Hears) -> None:
    told.fail()
    told.run("locked", FlowError("the same pipeline is running"))
    told.run("cancelled", FlowError("Ctrl-C"))
    told.fail()
    assert hears.kinds == ["failed"]


def test_a_pipeline_that_is_held_back_by_another_is_not_well(told: ObservedRuns, hears: Hears) -> None:
    told.fail()
    spec = PipelineSpec("orders", "m:orders", ())
    record_skipped_run(told.log, spec, "items failed, and orders depends on it", "schedule")
    told.fail()
    assert hears.kinds == ["failed"]


def test_a_run_without_news_is_a_recovery(told: ObservedRuns, hears: Hears) -> None:
    told.fail()
    told.run("skipped")
    assert hears.kinds == ["failed", "recovered"]


def test_a_lasting_failure_is_alerted_again_after_a_while(told: ObservedRuns, hears: Hears) -> None:
    told.fail(remind=DAY)
    told.fail(remind=dt.timedelta(microseconds=1))
    assert hears.kinds == ["failed", "failed"]
    told.fail(remind=None)
    assert len(hears.events) == 2


def test_an_undelivered_alert_is_sent_with_the_next_run(told: ObservedRuns, hears: Hears) -> None:
    hears.deaf = True
    for _ in range(2):
        with pytest.raises(AlertNotSent, match="nobody listens"):
            told.fail()
    hears.deaf = False
    told.fail()
    assert hears.kinds == ["failed"]
    hears.deaf = True
    with pytest.raises(AlertNotSent):
        told.run("succeeded")
    hears.deaf = False
    told.run("succeeded")
    told.run("succeeded")
    assert hears.kinds == ["failed", "recovered"]


def test_each_receiver_gets_the_events_it_subscribed_to(told: ObservedRuns, hears: Hears) -> None:
    kinds = ("gave_up", "recovered")
    told.fail(kinds=kinds, attempts=2)
    told.run("succeeded", kinds=kinds)
    assert hears.events == []
    told.fail(kinds=kinds, attempt=2, attempts=2)
    told.fail(key="another", attempt=2, attempts=2)
    told.run("succeeded", kinds=kinds)
    assert hears.kinds == ["gave_up", "gave_up", "recovered"]


def test_pipelines_do_not_hide_each_other(told: ObservedRuns, hears: Hears) -> None:
    told.fail(pipeline="orders")
    told.fail(pipeline="returns")
    told.run("succeeded", pipeline="returns")
    assert [(event.kind, event.pipeline) for event in hears.events] == [
        ("failed", "orders"), ("failed", "returns"), ("recovered", "returns"),
    ]  # fmt: skip


def test_without_a_run_log_a_process_remembers_for_itself(hears: Hears) -> None:
    log = NullRunLog("nowhere", ConfigError("no disk"))
    observer = AlertObserver(AlertSubscription(hears, "hears"), log)
    record = RunRecord(
        run_id="r", pipeline="orders", target="t", mode="append", status="failed", finished_at=utc_now()
    )
    for _ in range(3):
        observer.run_finished(record, RunEnd())
    well = RunRecord(
        run_id="s", pipeline="orders", target="t", mode="append", status="succeeded", finished_at=utc_now()
    )
    observer.run_finished(well, RunEnd())
    observer.run_finished(well, RunEnd())
    assert hears.kinds == ["failed", "recovered"]


def test_a_program_may_register_its_own(told: ObservedRuns, hears: Hears) -> None:
    register_alerter(hears)
    try:
        assert active_alerters() == (hears,)
        ended = told.fail(key="someone else")
        with open_observers(Observability(), told.log) as observers:
            observers.run_finished(ended, RunEnd())
        assert hears.kinds == ["failed", "failed"]
    finally:
        clear_alerters()
    assert active_alerters() == ()
    with pytest.raises(ConfigError, match="no method send"):
        register_alerter("slack://x")  # type: ignore[arg-type]
