"""Which alerts of a pipeline are out, read from the runs in the run log: no store of its own.

An alert that was sent is noted with the run that it was about. A run that succeeded ends the matter, and
so does a recovery that was told.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from dataclasses import dataclass
from typing import Any

from ematix_flow.state.records import RunRecord
from ematix_flow.state.runlog import RunLog

KEY = "alerts"  # in a run's metrics
_LOOKS = (20, 2_000)  # runs: a pipeline that fails each minute does so 1,440 times a day
_MOST_NOTED = 20
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


def is_well(record: RunRecord) -> bool:
    """It loaded, or there was nothing new. One that found its pipeline locked says nothing."""
    return record.status == "succeeded" or (record.status == "skipped" and record.error_type is None)


def open_alerts(run_log: RunLog, record: RunRecord, to: str, *, past_well: bool = False) -> list[Sent]:
    """The alerts to this receiver since the pipeline was last well, the newest first.

    With ``past_well`` also older ones whose recovery was not told, as far as a short look finds them.
    """
    for most in _LOOKS:
        runs = run_log.list(record.pipeline, limit=most)
        found, ended = _unresolved(runs, record.run_id, to, past_well)
        if ended or len(runs) < most:
            break
    return found


def note(run_log: RunLog, run_id: str, sent: Sent) -> None:
    """Remember with the run that an alert of it is out."""
    entry = {"to": sent.to, "kind": sent.kind, "signature": sent.signature, "at": sent.at.isoformat()}
    with _noting:
        noted = list(_noted(run_log.get(run_id)))
        run_log.add_metrics(run_id, {KEY: [*noted, entry][-_MOST_NOTED:]})


def _unresolved(runs: tuple[RunRecord, ...], own: str, to: str, past_well: bool) -> tuple[list[Sent], bool]:
    """Those among these runs, and whether no older run matters."""
    found: list[Sent] = []
    ended = False
    for run in runs:
        if is_well(run) and run.run_id != own:
            ended = True
            if not past_well:
                break
        for entry in reversed(_noted(run)):
            if entry.get("to") != to:
                continue
            if entry.get("kind") == "recovered":
                return found, True
            moment = dt.datetime.fromisoformat(entry["at"])
            found.append(Sent(to, entry["kind"], entry["signature"], moment, run.run_id))
    return found, ended


def _noted(run: RunRecord) -> list[dict[str, Any]]:
    return list(run.metrics.get(KEY, ()))
