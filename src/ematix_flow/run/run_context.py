"""What one run of a pipeline needs from outside, as a value."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ematix_flow.engine.connections import StartSpark
from ematix_flow.observe.listener import Listener
from ematix_flow.observe.observer import Observers
from ematix_flow.state.runlog.base import RunLog

if TYPE_CHECKING:
    from ematix_flow.state.actions.base import ActionStore


@dataclass(frozen=True)
class RestartedRun:
    """What a run continues: the batch of an earlier run that did not end well, and what was done of it.

    ``run_ids`` are that run, its attempts and the runs that it had restarted itself. ``post_steps`` are the
    post-load steps that ended well, as the record of a run holds them.
    """

    run_id: str
    run_ids: frozenset[str]
    batch: str | None  # None: it failed before it chose one, so it committed nothing
    overdue: tuple[str, ...] = ()
    post_steps: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class RunContext:
    """What a run needs from outside: the engine, the run log, the listener and observers, the trigger.

    ``batch_key`` is the batch key to load under, if it is not that of a slot: several runs under one key load
    once. With ``retried_by_scheduler`` the run is a single attempt, number ``attempt``: the scheduler retries
    its slot. Runs older than ``keep_runs_for`` are deleted. ``actions`` opens the store of the requests that
    the run obeys; without it there are none. With ``restart`` the run continues an earlier one.
    """

    run_log: RunLog
    spark: StartSpark
    listener: Listener = field(default_factory=Listener)
    trigger: str = "sync"
    slot: dt.datetime | None = None
    batch_key: str | None = None
    attempt: int = 1
    retried_by_scheduler: bool = False
    observers: Observers = field(default_factory=Observers)
    keep_runs_for: dt.timedelta | None = None
    sleep: Callable[[float], None] = time.sleep
    actions: Callable[[], ActionStore] | None = None
    restart: RestartedRun | None = None
