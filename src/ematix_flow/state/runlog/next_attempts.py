"""Marks failed runs that are attempted again, so that a stop of one is kept for the next attempt.

The mark is a value of the record's metrics, stored with its end: the time by which the next attempt begins.
"""

from __future__ import annotations

import datetime as dt
import socket
from typing import Any

from ematix_flow.state.file_locks import process_is_alive
from ematix_flow.state.runlog.records import RunRecord
from ematix_flow.state.times import utc_now

_KEY = "next_attempt_by"
_BEGIN_TIME = dt.timedelta(seconds=30)  # for the next attempt to ask for requests, and for clocks that differ


def next_attempt_mark(longest_wait: float) -> dict[str, Any]:
    """Return the mark of a run that ends now and is attempted again within ``longest_wait`` seconds."""
    return {_KEY: (utc_now() + dt.timedelta(seconds=longest_wait)).isoformat()}


def has_next_attempt(record: RunRecord) -> bool:
    """Whether a failed run is about to be attempted again, or has just been, by the same process."""
    by = record.metrics.get(_KEY)
    if record.status != "failed" or not isinstance(by, str):
        return False
    if record.host == socket.gethostname() and not process_is_alive(record.pid):
        return False
    return utc_now() <= dt.datetime.fromisoformat(by) + _BEGIN_TIME
