"""What one run of a pipeline needs from outside, as a value."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ematix_flow.engine.connections import StartSpark
from ematix_flow.observe.listener import Listener
from ematix_flow.observe.observer import Observers
from ematix_flow.state.runlog.base import RunLog


@dataclass(frozen=True)
class RunContext:
    """What a run needs from outside: the engine, the run log, the listener and observers, the trigger.

    With ``retried_by_scheduler`` the run is a single attempt, number ``attempt``: the scheduler retries its
    slot. Runs older than ``keep_runs_for`` are deleted.
    """

    run_log: RunLog
    spark: StartSpark
    listener: Listener = field(default_factory=Listener)
    trigger: str = "sync"
    slot: dt.datetime | None = None
    attempt: int = 1
    retried_by_scheduler: bool = False
    observers: Observers = field(default_factory=Observers)
    keep_runs_for: dt.timedelta | None = None
    sleep: Callable[[float], None] = time.sleep
