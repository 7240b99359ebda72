"""Opens the slot store next to the run log, and the runner for it, for the commands that run slots."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from ematix_flow.graph.registry import Registry
    from ematix_flow.observe.listener import Listener
    from ematix_flow.observe.settings import Observability
    from ematix_flow.run.run_context import RunContext
    from ematix_flow.schedule.run_due import SlotRunner
    from ematix_flow.state.actions.base import ActionStore
    from ematix_flow.state.slots.base import Slot, SlotStore


def slots_url(run_log: str | None) -> str:
    """The URL of slots and run log, for another process that must use the same. It may hold a password."""
    from ematix_flow.backends.state_stores.run_logs import is_server
    from ematix_flow.state.runlog.base import URL_VARIABLE, project_run_log, run_log_location

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
    *,
    keep_open: bool = False,
    stand_in: bool = False,
) -> Iterator[SlotRunner]:
    """A runner for the slots of these pipelines that records each run. ``keep_open`` is as for `open_slots`.

    With ``stand_in``, if the store cannot be written, slots and runs are kept in memory for this call, with
    a warning.
    """
    from ematix_flow.backends.state_stores.run_logs import open_actions
    from ematix_flow.run.context_setup import run_context
    from ematix_flow.schedule.actions.died_restarts import finish_died_restarts
    from ematix_flow.schedule.actions.schedule_holds import paused_schedules
    from ematix_flow.schedule.run_due import SlotRunner
    from ematix_flow.schedule.workflows import stored_names
    from ematix_flow.state.process_liveness import new_holder

    if stand_in:
        slots, run_log = _open_slots_or_memory(run_log)
    else:
        slots = _open_required_slots(run_log, keep_open=keep_open)
    with (
        slots as store,
        open_actions(slots_url(run_log), env=os.environ, keep_open=keep_open) as actions,
        run_context(
            run_log=run_log, engine=engine, listener=listener, trigger=trigger, observability=observability
        ) as context,
    ):
        finish_died_restarts(registry, actions, context.run_log, store, new_holder())
        ran: set[str] = set()

        def context_of(slot: Slot) -> RunContext:
            ran.add(slot.pipeline)
            return replace(context, slot=slot.fire_time)

        yield SlotRunner(
            registry,
            store,
            context.run_log,
            context_of,
            lease_seconds,
            observers=context.observers,
            paused=lambda: paused_schedules(actions),
        )
        if context.keep_runs_for is not None:
            ended = [spec for spec in registry.workflows.values() if ran & set(spec.jobs)]
            _purge_old_slots(store, [*ran, *stored_names(ended)], store.now() - context.keep_runs_for)
            _purge_old_actions(actions, context.keep_runs_for)


def warn_of_missing_drivers(registry: Registry, names: Iterable[str]) -> None:
    """Warn about pipelines that cannot run here. They fail when they are due; others are not affected."""
    from ematix_flow.run.driver_checks import missing_drivers

    for error in missing_drivers(registry, names):
        _log.warning("%s: %s", error.what, error.next_step)


@contextmanager
def dry_run_slot_runner(registry: Registry, run_log: str | None) -> Iterator[SlotRunner]:
    """A runner that knows which slots are due but runs none: it sends no alert and records nothing."""
    from ematix_flow.backends.state_stores.run_logs import open_actions
    from ematix_flow.cli.project import read_run_log
    from ematix_flow.schedule.actions.schedule_holds import paused_schedules
    from ematix_flow.schedule.run_due import SlotRunner

    def refused(slot: Slot) -> RunContext:
        raise AssertionError(f"{slot} must not run in a dry run")

    with (
        _open_required_slots(run_log, read_only=True) as store,
        open_actions(slots_url(run_log), env=os.environ, read_only=True) as actions,
        read_run_log(run_log) as log,
    ):
        yield SlotRunner(registry, store, log, refused, paused=lambda: paused_schedules(actions))


def _open_required_slots(
    run_log: str | None, *, keep_open: bool = False, read_only: bool = False
) -> SlotStore:
    """Open the slots. Unlike the run log they are required: without them, slots could run twice."""
    from ematix_flow.backends.state_stores.run_logs import open_slots
    from ematix_flow.errors import FlowError

    try:
        return open_slots(slots_url(run_log), env=os.environ, keep_open=keep_open, read_only=read_only)
    except FlowError as error:
        error.state = "; ".join(filter(None, ("nothing was run", error.state)))
        raise


def _open_slots_or_memory(run_log: str | None) -> tuple[SlotStore, str | None]:
    """The slots and the run log; if they cannot be written, empty ones in memory."""
    from ematix_flow.errors import FlowError
    from ematix_flow.state.slots.memory import MemorySlotStore

    slots_url(run_log)  # an invalid URL is an error in any case
    store: SlotStore | None = None
    try:
        store = _open_required_slots(run_log)
        store.require_writable()
        return store, run_log
    except FlowError as error:
        if store is not None:
            store.close()
        _log.warning(
            "the run log cannot be used: %s. Slots within --interval run nevertheless; the ledger of a "
            "target prevents that a slot is loaded twice. Missed slots, retries and earlier runs are "
            "unknown. Use --require-run-log to stop instead",
            error.what,
        )
        return MemorySlotStore(), "memory://"


def _purge_old_slots(store: SlotStore, names: Iterable[str], before: dt.datetime) -> None:
    """Delete old slots of the pipelines that just ran. A failure is only a warning."""
    from ematix_flow.errors import FlowError
    from ematix_flow.state.runlog.base import warn_once

    try:
        for name in names:
            store.purge(before, name)
    except FlowError as error:
        warn_once("slots", f"old slots could not be deleted: {error.what}")


def _purge_old_actions(actions: ActionStore, keep: dt.timedelta) -> None:
    """Delete old actions that have ended. A failure is only a warning."""
    from ematix_flow.errors import FlowError
    from ematix_flow.state.runlog.base import warn_once

    try:
        actions.purge(actions.now() - keep)
    except FlowError as error:
        warn_once("actions", f"old actions could not be deleted: {error.what}")
