"""What the commands about slots share: the store beside the run log, and the runner on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.observe.listener import Listener
    from ematix_flow.schedule.run_due import Runner
    from ematix_flow.state.runlog import RunLogLocation


def slots_location(run_log: str | None) -> RunLogLocation:
    from ematix_flow.state.runlog import project_run_log, run_log_location

    return run_log_location(run_log or project_run_log(os.environ), os.environ)


@contextmanager
def slot_runner(
    registry: Registry,
    run_log: str | None,
    engine: str | None,
    listener: Listener | None,
    lease_seconds: float,
    trigger: str,
) -> Iterator[Runner]:
    """Runs slots of these pipelines, and records each run."""
    from ematix_flow.schedule.context import run_context
    from ematix_flow.schedule.run_due import Runner, new_holder
    from ematix_flow.state.runlog_sql import open_slots

    store = open_slots(slots_location(run_log))
    with run_context(run_log=run_log, engine=engine, listener=listener, trigger=trigger) as context:
        yield Runner(
            registry,
            store,
            context.run_log,
            lambda slot: replace(context, slot=slot.at),
            lease_seconds,
            new_holder(),
        )
