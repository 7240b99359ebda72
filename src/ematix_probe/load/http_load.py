"""Runs one process's share of a load over HTTP: arrivals by the clock, or virtual users."""

from __future__ import annotations

import asyncio

from ematix_probe.load.http_arrivals import HttpArrivals
from ematix_probe.load.http_users import HttpUsers
from ematix_probe.load.shares import Publish, Ready, Share, ShareResult, StopSignal


def run_http_share(share: Share, ready: Ready, publish: Publish, stop: StopSignal) -> ShareResult:
    """Prepare the share, ask ``ready`` for the time of `clock` at which the load begins, and carry it out."""
    loop = new_loop()
    try:
        kind = HttpArrivals if share.profile.model == "open" else HttpUsers
        load = kind(loop, share, publish, stop)
        load.start_at = ready()
        return loop.run_until_complete(load.run())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: it takes half the time of asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made
