"""The observer that turns the outcomes of runs into alerts, and sends none of them twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ematix_flow.errors import FlowError
from ematix_flow.observe.alerts.alerter import send_with_timeout
from ematix_flow.observe.alerts.alerter_urls import AlertSubscription
from ematix_flow.observe.alerts.event import FRESHNESS, AlertEvent, AlertKind
from ematix_flow.observe.alerts.sent_alerts import (
    SentAlert,
    failure_signature,
    open_alerts,
    record_sent_alerts,
)
from ematix_flow.observe.observer import Observer, RunEnd
from ematix_flow.spec.expectations import ExpectationResult
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord
from ematix_probe.wording import share_of_rows

_MAX_UNLOGGED = 20
_LONGEST_SIGNATURE = 300
_DIED = "the process of the run died"


class AlertObserver(Observer):
    """Alerts one receiver.

    An alert that could not be sent is not recorded, so that the next failure alerts again.
    """

    def __init__(self, address: AlertSubscription, run_log: RunLog) -> None:
        self._address, self._run_log = address, run_log
        # by id of a run that goes on: its end overwrites the record of them
        self._sent_during: dict[str, list[SentAlert]] = {}
        self._unlogged: dict[str, list[SentAlert]] = {}  # by pipeline: alerts that the run log did not record
        self.name = address.alerter.name

    def run_finished(self, record: RunRecord, ending: RunEnd) -> None:
        if record.status in ("failed", "interrupted"):
            self._alert_failure(record, ending)
        elif record.ended_well:
            problems = _failed_expectations(record)
            if problems and "quality_failed" in self._address.kinds:
                self._alert_quality(record, problems)
            else:
                self.run_is_well(record)
        self._sent_during.pop(record.run_id, None)

    def expectations_failed(self, record: RunRecord, failures: Sequence[ExpectationResult]) -> None:
        problems = [each.to_json() for each in failures if each.alerts]
        if problems and "quality_failed" in self._address.kinds:
            self._sent_during[record.run_id] = self._alert_quality(record, problems)
        else:
            self.run_is_well(record)

    def run_is_well(self, record: RunRecord) -> None:
        alerts = self._open_alerts(record, past_well=True)
        if not alerts or "recovered" not in self._address.kinds:
            return
        first = min(sent.sent_at for sent in alerts)
        event = AlertEvent(
            "recovered",
            record.pipeline.removeprefix(FRESHNESS),
            error_message=f"alerts were out since {first.isoformat(timespec='seconds')}",
            run_id=record.run_id,
            slot=record.slot,
        )
        send_with_timeout(self._address.alerter, event)
        self._unlogged.pop(record.pipeline, None)
        # recorded with the failed run: this one may go on, and its end would overwrite the record
        recovery = SentAlert(self._address.key, event.kind, "", event.timestamp, alerts[0].run_id)
        self._record_alerts(record.pipeline, recovery.run_id, [recovery])

    def _alert_failure(self, record: RunRecord, ending: RunEnd) -> None:
        event = failure_event(record, ending)
        if event.kind not in self._address.kinds:
            return
        stale = event.kind == "sla_breached"  # the same alert, however its message changes
        what = "" if stale else failure_signature(event.error_type, event.error_message)
        out = self._open_alerts(record)
        known = [sent for sent in out if (sent.kind, sent.signature) == (event.kind, what)]
        remind = self._address.remind
        if not known or (remind is not None and event.timestamp - known[0].sent_at >= remind):
            send_with_timeout(self._address.alerter, event)
            sent = SentAlert(self._address.key, event.kind, what, event.timestamp, record.run_id)
            out = [sent, *(each for each in out if each not in known)]
        self._record_alerts(record.pipeline, record.run_id, out)

    def _alert_quality(self, record: RunRecord, problems: Sequence[Mapping[str, Any]]) -> list[SentAlert]:
        """Alert that rows fail expectations although the run loaded them or set them aside.

        Once for each rule. Returns the open alerts.
        """
        out = self._open_alerts(record, past_well=True)
        if any(sent.kind != "quality_failed" for sent in out):
            self.run_is_well(record)  # the run itself has recovered from a failure
            out = []
        signatures = dict.fromkeys(f": {each['rule']}"[:_LONGEST_SIGNATURE] for each in problems)
        event, remind = quality_event(record, problems), self._address.remind
        known = {
            sent.signature
            for sent in out
            if sent.kind == event.kind and (remind is None or event.timestamp - sent.sent_at < remind)
        }
        if not known.issuperset(signatures):
            send_with_timeout(self._address.alerter, event)
            others = [sent for sent in out if sent.kind != event.kind or sent.signature not in signatures]
            sent_now = [
                SentAlert(self._address.key, event.kind, each, event.timestamp, record.run_id)
                for each in signatures
            ]
            out = [*sent_now, *others]
        self._record_alerts(record.pipeline, record.run_id, out)
        return out

    def _record_alerts(self, pipeline: str, run_id: str, alerts: list[SentAlert]) -> None:
        try:
            record_sent_alerts(self._run_log, run_id, alerts)
        except FlowError:  # the run log has already warned
            if alerts[0].kind != "recovered":
                self._unlogged[pipeline] = alerts[:_MAX_UNLOGGED]

    def _open_alerts(self, record: RunRecord, *, past_well: bool = False) -> list[SentAlert]:
        unlogged = self._unlogged.get(record.pipeline, [])
        during = self._sent_during.get(record.run_id, [])
        try:
            found = open_alerts(self._run_log, record, self._address.key, past_well=past_well) or unlogged
        except FlowError:
            found = unlogged
        known = {(sent.kind, sent.signature) for sent in found}
        return [*found, *(sent for sent in during if (sent.kind, sent.signature) not in known)]


def _failed_expectations(record: RunRecord) -> list[Mapping[str, Any]]:
    """The expectations that rows of a successful run fail, of those that send alerts."""
    return [
        each
        for target in record.metrics.get("targets", ())
        for each in target.get("expectations", ())
        if each["verdict"] != "pass" and each.get("alerts")
    ]


def quality_event(record: RunRecord, problems: Sequence[Mapping[str, Any]]) -> AlertEvent:
    """Return the alert for a run that succeeded with rows that fail expectations."""
    quarantined = sum(each.get("quarantined") or 0 for each in problems)
    to_letters = any(each.get("dead_letters") for each in problems)
    aside = "1 row is" if quarantined == 1 else f"{quarantined:,} rows are"
    letters = "a dead letter" if quarantined == 1 else "dead letters"
    place = letters if to_letters else "in quarantine"
    state = f"{aside} {place}, the rest is loaded" if quarantined else "the rows are loaded"
    shown = "flow dlq list --pipeline" if to_letters else "flow quarantine list"
    if not quarantined and any(each.get("action") == "quarantine" for each in problems):
        state = "no row was added to quarantine: an earlier run set the failing ones aside"
    return AlertEvent(
        "quality_failed",
        record.pipeline,
        error_message="; ".join(_describe_problem(each) for each in problems),
        run_id=record.run_id,
        slot=record.slot,
        state=state,
        next_step=f"{shown} {record.pipeline}" if quarantined else f"flow runs show {record.run_id[:8]}",
        host=record.host,
    )


def _describe_problem(each: Mapping[str, Any]) -> str:
    if each.get("failing") is None:
        return f"{each['rule']}: {each['message']}"
    return f"{each['rule']}: {share_of_rows(each['failing'], each['checked'])} fail"


def failure_event(record: RunRecord, ending: RunEnd) -> AlertEvent:
    """Return the alert for a run that failed or died."""
    error = ending.error
    gave_up = not ending.will_retry and ending.max_attempts > 1 and record.attempt >= ending.max_attempts
    kind: AlertKind = "gave_up" if gave_up else "failed"
    if record.pipeline.startswith(FRESHNESS):
        kind = "sla_breached"
    event = AlertEvent(
        kind,
        record.pipeline.removeprefix(FRESHNESS),
        error_message=(record.error_message or _DIED).split("\n", 1)[0],
        error_type=(record.error_type or "") if kind != "sla_breached" else "",
        attempt_count=record.attempt,
        max_attempts=ending.max_attempts,
        gave_up=gave_up,
        run_id=record.run_id,
        slot=record.slot,
        host=record.host,
    )
    if not isinstance(error, FlowError):
        return event
    return replace(
        event,
        error_message=error.what,
        where=str(error.where or ""),
        state=error.state or ("another attempt follows" if ending.will_retry else ""),
        next_step=error.next_step or "",
    )
