"""Which alerts of a pipeline are out, read from the runs in the run log: no store of its own.

An alert that was sent is noted with the run that it was about. A run that succeeded ends the matter, and
so does a recovery that was told.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.state.run_records import RunRecord
from ematix_flow.state.runlog.base import RunLog

METRICS_KEY = "alerts"  # in a run's metrics
RECOVERED = "recovered"
_LOOKBACK_RUNS = (5, 50)  # runs; between two that failed may be some that found the pipeline locked
_MAX_RECORDED = 50
_VARYING = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4,})*|\d+")

_recording_lock = threading.Lock()  # a run is noted by one process alone, but by a thread for each alerter


@dataclass(frozen=True)
class SentAlert:
    """An alert that is out: to whom, of what, and about which run."""

    receiver: str
    kind: str
    signature: str
    sent_at: dt.datetime
    run_id: str


def failure_signature(error_type: str | None, message: str | None) -> str:
    """Equal for failures that a person would call the same: numbers and ids in them differ."""
    first = (message or "").split("\n", 1)[0]
    return _VARYING.sub("#", f"{error_type or ''}: {first}")[:300]


def open_alerts(run_log: RunLog, record: RunRecord, to: str, *, past_well: bool = False) -> list[SentAlert]:
    """The alerts to this receiver since the pipeline was last well, the newest first, each once.

    With ``past_well`` also older ones whose recovery was not told.
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
    """Those among these runs, and whether older ones do not matter."""
    found: dict[tuple[str, str], SentAlert] = {}
    ended = False
    for run in runs:
        if run.started_at > record.started_at:
            continue  # runs go on while this one is told of
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
    """Remember with a run which alerts are out, the newest first: the next run need not look further back."""
    entries = [
        {"to": sent.receiver, "kind": sent.kind, "signature": sent.signature, "at": sent.sent_at.isoformat()}
        for sent in reversed(alerts)
    ]
    with _recording_lock:
        noted = _recorded_alerts(run_log.get(run_id))
        run_log.add_metrics(run_id, {METRICS_KEY: [*noted, *entries][-_MAX_RECORDED:]})


def _recorded_alerts(run: RunRecord) -> list[dict[str, Any]]:
    return list(run.metrics.get(METRICS_KEY, ()))
