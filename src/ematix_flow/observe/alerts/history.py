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

from ematix_flow.state.records import RunRecord
from ematix_flow.state.runlog import RunLog

KEY = "alerts"  # in a run's metrics
RECOVERED = "recovered"
_LOOKS = (5, 50)  # runs; between two that failed may be some that found the pipeline locked
_MOST_NOTED = 50
_VARYING = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{4,})*|\d+")

_noting = threading.Lock()  # a run is noted by one process alone, but by a thread for each alerter


@dataclass(frozen=True)
class Sent:
    """An alert that is out: to whom, of what, and about which run."""

    to: str
    kind: str
    signature: str
    at: dt.datetime
    run_id: str


def signature(error_type: str | None, message: str | None) -> str:
    """Equal for failures that a person would call the same: numbers and ids in them differ."""
    first = (message or "").split("\n", 1)[0]
    return _VARYING.sub("#", f"{error_type or ''}: {first}")[:300]


def open_alerts(run_log: RunLog, record: RunRecord, to: str, *, past_well: bool = False) -> list[Sent]:
    """The alerts to this receiver since the pipeline was last well, the newest first, each once.

    With ``past_well`` also older ones whose recovery was not told.
    """
    for most in _LOOKS:
        runs = run_log.list(record.pipeline, limit=most)
        found, ended = _unresolved(runs, record, to, past_well)
        if ended or len(runs) < most:
            break
    return found


def _unresolved(
    runs: Sequence[RunRecord], record: RunRecord, to: str, past_well: bool
) -> tuple[list[Sent], bool]:
    """Those among these runs, and whether older ones do not matter."""
    found: dict[tuple[str, str], Sent] = {}
    ended = False
    for run in runs:
        if run.started_at > record.started_at:
            continue  # runs go on while this one is told of
        if run.ended_well and run.run_id != record.run_id:
            ended = True
            if not past_well:
                break
        for entry in reversed(_noted(run)):
            if entry["to"] != to:
                continue
            if entry["kind"] == RECOVERED:
                return list(found.values()), True
            moment = dt.datetime.fromisoformat(entry["at"])
            sent = Sent(to, entry["kind"], entry["signature"], moment, run.run_id)
            found.setdefault((sent.kind, sent.signature), sent)
    return list(found.values()), ended


def note(run_log: RunLog, run_id: str, alerts: Sequence[Sent]) -> None:
    """Remember with a run which alerts are out, the newest first: the next run need not look further back."""
    entries = [
        {"to": sent.to, "kind": sent.kind, "signature": sent.signature, "at": sent.at.isoformat()}
        for sent in reversed(alerts)
    ]
    with _noting:
        noted = _noted(run_log.get(run_id))
        run_log.add_metrics(run_id, {KEY: [*noted, *entries][-_MOST_NOTED:]})


def _noted(run: RunRecord) -> list[dict[str, Any]]:
    return list(run.metrics.get(KEY, ()))
