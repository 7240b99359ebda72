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
from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord

_MAX_UNLOGGED = 20
_DIED = "the process of the run died"


class AlertObserver(Observer):
    """Alerts one receiver.

    An alert that could not be sent is not recorded, so that the next failure alerts again.
    """

    def __init__(self, address: AlertSubscription, run_log: RunLog) -> None:
        self._address, self._run_log = address, run_log
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

    def _alert_quality(self, record: RunRecord, problems: Sequence[Mapping[str, Any]]) -> None:
        """Alert that rows fail expectations although the run loaded them or set them aside."""
        out = self._open_alerts(record, past_well=True)
        if any(sent.kind != "quality_failed" for sent in out):
            self.run_is_well(record)  # the run itself has recovered from a failure
            out = []
        what = failure_signature("", "; ".join(sorted(str(each["rule"]) for each in problems)))
        known = [sent for sent in out if (sent.kind, sent.signature) == ("quality_failed", what)]
        remind = self._address.remind
        event = quality_event(record, problems)
        if not known or (remind is not None and event.timestamp - known[0].sent_at >= remind):
            send_with_timeout(self._address.alerter, event)
            sent = SentAlert(self._address.key, event.kind, what, event.timestamp, record.run_id)
            out = [sent, *(each for each in out if each not in known)]
        self._record_alerts(record.pipeline, record.run_id, out)

    def _record_alerts(self, pipeline: str, run_id: str, alerts: list[SentAlert]) -> None:
        try:
            record_sent_alerts(self._run_log, run_id, alerts)
        except FlowError:  # the run log has already warned
            if alerts[0].kind != "recovered":
                self._unlogged[pipeline] = alerts[:_MAX_UNLOGGED]

    def _open_alerts(self, record: RunRecord, *, past_well: bool = False) -> list[SentAlert]:
        unlogged = self._unlogged.get(record.pipeline, [])
        try:
            return open_alerts(self._run_log, record, self._address.key, past_well=past_well) or unlogged
        except FlowError:
            return unlogged


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
    aside = "1 row is" if quarantined == 1 else f"{quarantined:,} rows are"
    state = f"{aside} in quarantine, the rest is loaded" if quarantined else "the rows are loaded"
    if not quarantined and any(each.get("action") == "quarantine" for each in problems):
        state = "no row was added to quarantine: an earlier run set the failing ones aside"
    return AlertEvent(
        "quality_failed",
        record.pipeline,
        error_message="; ".join(_describe_problem(each) for each in problems),
        run_id=record.run_id,
        slot=record.slot,
        state=state,
        next_step=f"flow quarantine list {record.pipeline}"
        if quarantined
        else f"flow runs show {record.run_id[:8]}",
        host=record.host,
    )


def _describe_problem(each: Mapping[str, Any]) -> str:
    if each.get("failing") is None:
        return f"{each['rule']}: {each['message']}"
    return f"{each['rule']}: {each['failing']:,} of {each['checked']:,} rows fail"


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
