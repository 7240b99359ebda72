"""Finds the open alerts of a pipeline in the run log; there is no separate store.

A sent alert is recorded with the run that it was about. A successful run closes it, and so does a sent
recovery.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.state.runlog.base import RunLog
from ematix_flow.state.runlog.records import RunRecord

METRICS_KEY = "alerts"  # in a run's metrics
RECOVERED = "recovered"
_LOOKBACK_RUNS = (5, 50)  # first few, then more: runs that found the pipeline locked may be between failures
_MAX_RECORDED = 50
_VARYING = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4,})*|\d+")

_recording_lock = threading.Lock()  # one process records for a run, but with one thread per alerter


@dataclass(frozen=True)
class SentAlert:
    """A sent alert: its receiver, its kind, and its run."""

    receiver: str
    kind: str
    signature: str
    sent_at: dt.datetime
    run_id: str


def failure_signature(error_type: str | None, message: str | None) -> str:
    """Return a signature that is equal for the same kind of failure: numbers and ids are ignored."""
    first = (message or "").split("\n", 1)[0]
    return _VARYING.sub("#", f"{error_type or ''}: {first}")[:300]


def open_alerts(run_log: RunLog, record: RunRecord, to: str, *, past_well: bool = False) -> list[SentAlert]:
    """Return the alerts to this receiver since the last success of the pipeline, newest first, each once.

    With ``past_well`` also older ones whose recovery was not sent.
    """
    for most in _LOOKBACK_RUNS:
        runs = run_log.list(record.pipeline, limit=most)
        found, ended = _unresolved(runs, record, to, past_well)
        if ended or len(runs) < most:
            break
    return found


def _unresolved(
    runs: Sequence[RunRecord], record: RunRecord, to: str, past_well: bool
) -> tuple[list[SentAlert], bool]:
    """Return the open alerts among these runs, and whether older runs do not matter."""
    found: dict[tuple[str, str], SentAlert] = {}
    ended = False
    for run in runs:
        if run.started_at > record.started_at:
            continue  # a later run
        if run.ended_well and run.run_id != record.run_id:
            ended = True
            if not past_well:
                break
        for entry in reversed(_recorded_alerts(run)):
            if entry["to"] != to:
                continue
            if entry["kind"] == RECOVERED:
                return list(found.values()), True
            moment = dt.datetime.fromisoformat(entry["at"])
            sent = SentAlert(to, entry["kind"], entry["signature"], moment, run.run_id)
            found.setdefault((sent.kind, sent.signature), sent)
    return list(found.values()), ended


def record_sent_alerts(run_log: RunLog, run_id: str, alerts: Sequence[SentAlert]) -> None:
    """Record the open alerts with a run, newest first, so that the next run need not read older runs."""
    entries = [
        {"to": sent.receiver, "kind": sent.kind, "signature": sent.signature, "at": sent.sent_at.isoformat()}
        for sent in reversed(alerts)
    ]
    with _recording_lock:
        noted = _recorded_alerts(run_log.get(run_id))
        run_log.add_metrics(run_id, {METRICS_KEY: [*noted, *entries][-_MAX_RECORDED:]})


def _recorded_alerts(run: RunRecord) -> list[dict[str, Any]]:
    return list(run.metrics.get(METRICS_KEY, ()))
