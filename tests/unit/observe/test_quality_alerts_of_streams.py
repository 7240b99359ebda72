"""Alerts about expectations while a stream goes on: once for each rule, also over the end of the run."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ematix_flow.alerters import Alerter, AlertEvent
from ematix_flow.backends.state_stores.run_logs import open_run_log
from ematix_flow.observe.alerts.alert_observer import AlertObserver
from ematix_flow.observe.alerts.alerter_urls import AlertSubscription
from ematix_flow.observe.alerts.event import KINDS, AlertKind
from ematix_flow.observe.observer import RunEnd
from ematix_flow.spec.expectations import ExpectationResult
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now


class Listener(Alerter):
    name = "listener"

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []

    def send(self, event: AlertEvent) -> None:
        self.events.append(event)

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(event.kind, event.error_message.split(": ")[0]) for event in self.events]


def failure(rule: str, *, alerts: bool = True) -> ExpectationResult:
    return ExpectationResult(rule, "expression", "quarantine", "warn", "", 1, 3, 1, alerts=alerts)


class Stream:
    """Runs of one stream, each with a separate observer, as after a restart of the process."""

    def __init__(self, log: RunLog, listener: Listener, kinds: Sequence[AlertKind] = KINDS) -> None:
        self.log, self.listener, self.kinds, self.runs = log, listener, frozenset(kinds), 0

    def start(self) -> None:
        self.runs += 1
        began = utc_now() + dt.timedelta(seconds=self.runs)
        self.record = RunRecord(
            run_id=uuid.uuid4().hex, pipeline="orders", target="t", mode="stream", started_at=began
        )
        self.log.start(self.record)
        self.observer = AlertObserver(AlertSubscription(self.listener, "key", kinds=self.kinds), self.log)
        self.found: list[ExpectationResult] = []

    def fail_first(self, *failures: ExpectationResult) -> None:
        self.found += failures
        self.observer.expectations_failed(self.record, failures)

    def stop(self) -> None:
        found = [each.to_json() for each in self.found]
        targets = [{"target": "t", "expectations": found}]
        self.log.finish(self.record.run_id, "succeeded", metrics={"targets": targets})
        self.observer.run_finished(self.log.get(self.record.run_id), RunEnd())


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    with open_run_log(f"sqlite://{tmp_path}/log.db", env={}) as opened:
        yield opened


def test_each_rule_alerts_once_until_a_run_has_rows_that_pass(log: RunLog, listener: Listener) -> None:
    stream = Stream(log, listener)
    for _ in range(2):
        stream.start()
        stream.fail_first(failure("positive 1"))
        stream.fail_first(failure("positive 2"))
        stream.stop()
    assert listener.texts == [("quality_failed", "positive 1"), ("quality_failed", "positive 2")]
    stream.start()
    stream.observer.run_is_well(stream.record)
    stream.stop()
    assert [event.kind for event in listener.events] == ["quality_failed"] * 2 + ["recovered"]
    stream.start()
    stream.fail_first(failure("positive 1"))
    assert listener.texts[-1] == ("quality_failed", "positive 1")


def test_an_alert_about_dead_letters_names_their_command(log: RunLog, listener: Listener) -> None:
    stream = Stream(log, listener)
    stream.start()
    stream.fail_first(replace(failure("positive"), dead_letters=True))
    stream.stop()
    (event,) = listener.events
    assert event.state == "1 row is a dead letter, the rest is loaded"
    assert event.next_step == "flow dlq list --pipeline orders"


def test_a_rule_without_alerts_and_a_receiver_of_other_alerts_get_none(
    log: RunLog, listener: Listener
) -> None:
    quiet, deaf = Stream(log, listener), Stream(log, listener, ("failed", "recovered"))
    for stream, found in ((quiet, failure("small", alerts=False)), (deaf, failure("positive"))):
        stream.start()
        stream.fail_first(found)
        stream.stop()
    assert listener.events == []
