"""Runs one process's share of a load on a database: drivers block, so threads share a pool of connections.

In the open model each thread takes the next arrival and waits for its time: when all are busy, arrivals wait,
and the wait is part of their latency. In the closed model each virtual user is a thread.
"""

from __future__ import annotations

from ematix_probe.load.shares import Publish, Ready, Share, ShareResult, StopSignal
from ematix_probe.load.sql_arrivals import SqlArrivals
from ematix_probe.load.sql_users import SqlUsers


def run_sql_share(share: Share, ready: Ready, publish: Publish, stop: StopSignal) -> ShareResult:
    """Prepare the share, ask ``ready`` for the time of `clock` at which the load begins, and carry it out."""
    kind = SqlArrivals if share.profile.model == "open" else SqlUsers
    load = kind(share, publish, stop)
    load.start_at = ready()
    return load.run()
