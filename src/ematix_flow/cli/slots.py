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
    from ematix_flow.observe.settings import Observability
    from ematix_flow.schedule.run_due import Runner


def slots_url(run_log: str | None) -> str:
    """Where slots and run log lie, for a process that is to use the same; it may hold a password."""
    from ematix_flow.backends.run_logs import is_server
    from ematix_flow.state.runlog import URL_VARIABLE, project_run_log, run_log_location

    given = run_log or project_run_log(os.environ)
    named = given or os.environ.get(URL_VARIABLE)
    return named if named and is_server(named) else str(run_log_location(given, os.environ))


@contextmanager
def slot_runner(
    registry: Registry,
    run_log: str | None,
    engine: str | None,
    listener: Listener | None,
    lease_seconds: float,
    trigger: str,
    observability: Observability | None = None,
) -> Iterator[Runner]:
    """Runs slots of these pipelines, and records each run."""
    from ematix_flow.backends.run_logs import open_slots
    from ematix_flow.schedule.context import run_context
    from ematix_flow.schedule.run_due import Runner, new_holder

    store = open_slots(slots_url(run_log), env=os.environ)
    with run_context(
        run_log=run_log, engine=engine, listener=listener, trigger=trigger, observability=observability
    ) as context:
        yield Runner(
            registry,
            store,
            context.run_log,
            lambda slot: replace(context, slot=slot.at),
            lease_seconds,
            new_holder(),
            observers=context.observers,
        )
