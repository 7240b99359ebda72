"""Opens the run log, the slots and the actions of this machine: in a SQLite file or in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from ematix_flow.errors import CannotConnect, FlowError
from ematix_flow.state.actions.base import ActionStore
from ematix_flow.state.actions.memory import MemoryActionStore
from ematix_flow.state.actions.sql import SqlActionStore
from ematix_flow.state.pinned_files import PinnedFile
from ematix_flow.state.runlog.base import NullRunLog, RunLog, RunLogLocation, run_log_location, warn_once
from ematix_flow.state.runlog.sql import SqlRunLog
from ematix_flow.state.samples.base import NullSampleStore, SampleStore
from ematix_flow.state.samples.sql import SqlSampleStore
from ematix_flow.state.slots.base import SlotStore
from ematix_flow.state.slots.memory import MemorySlotStore
from ematix_flow.state.slots.sql import SqlSlotStore
from ematix_flow.state.sql.sqlite import memory_engine, sqlite_engine, sqlite_reader_engine
from ematix_flow.state.state_root import private_directory

_in_memory: dict[str, sa.Engine] = {}
_slots_in_memory: dict[str, SlotStore] = {}
_actions_in_memory: dict[str, ActionStore] = {}
_in_memory_lock = threading.Lock()


def open_local_run_log(
    url: str | None = None, *, env: Mapping[str, str], reading: bool = False, read_only: bool = False
) -> RunLog:
    """Open the run log at ``url``, else by the environment, else in the state root.

    If it cannot be opened: one warning and a `NullRunLog`, or with ``reading`` an error. With ``read_only``
    it creates and upgrades nothing.
    """
    location = run_log_location(url, env)
    try:
        return open_local_run_log_at(location, read_only=read_only)
    except FlowError as unavailable:
        if reading:
            raise
        warn_once(str(location), f"{unavailable.what}. Runs go on, but are not recorded")
        return NullRunLog(str(location), unavailable)


def open_local_run_log_at(location: RunLogLocation, *, read_only: bool = False) -> SqlRunLog:
    """Open the run log at this location. Raises ConfigError if that fails. ``read_only`` creates no file."""
    if location.path is None:
        with _in_memory_lock:
            engine = _in_memory.get(location.name)
            if engine is None:
                engine = _in_memory[location.name] = memory_engine()
            return SqlRunLog(engine, str(location))
    if read_only and not location.path.exists():
        return SqlRunLog(memory_engine(), str(location))
    engine = _file_engine(location.path, read_only)
    return SqlRunLog(engine, str(location), create_tables=location.create_tables, read_only=read_only)


def open_slots_file(location: RunLogLocation, *, read_only: bool = False) -> SlotStore:
    """Open the slots at the location of the run log. ``read_only`` creates no file."""
    if location.path is None:
        with _in_memory_lock:
            return _slots_in_memory.setdefault(location.name, MemorySlotStore())
    if read_only and not location.path.exists():
        return MemorySlotStore()
    engine = _file_engine(location.path, read_only)
    return SqlSlotStore(engine, str(location), create_tables=location.create_tables, read_only=read_only)


def open_actions_file(location: RunLogLocation, *, read_only: bool = False) -> ActionStore:
    """Open the actions at the location of the run log. ``read_only`` creates no file."""
    if location.path is None:
        with _in_memory_lock:
            return _actions_in_memory.setdefault(location.name, MemoryActionStore())
    if read_only and not location.path.exists():
        return MemoryActionStore()
    engine = _file_engine(location.path, read_only)
    return SqlActionStore(engine, str(location), create_tables=location.create_tables, read_only=read_only)


def open_samples_file(location: RunLogLocation, *, read_only: bool = False) -> SampleStore:
    """Open the samples of streams at the location of the run log. ``read_only`` creates no file."""
    if location.path is None:
        with _in_memory_lock:
            engine = _in_memory.get(location.name)
            if engine is None:
                engine = _in_memory[location.name] = memory_engine()
            return SqlSampleStore(engine, str(location))
    if read_only and not location.path.exists():
        return NullSampleStore(str(location))
    file_engine = _file_engine(location.path, read_only)
    return SqlSampleStore(
        file_engine, str(location), create_tables=location.create_tables, read_only=read_only
    )


def _file_engine(path: Path, read_only: bool) -> sa.Engine:
    """Return an engine for the file, which it makes if it is missing, but never a second time."""
    private_directory(path.parent)

    def check() -> None:
        if not pinned.is_in_place():
            raise run_log_vanished(path)

    engine = sqlite_reader_engine(path, check) if read_only else sqlite_engine(path, check)
    pinned = PinnedFile(path)  # now that the file is there
    sa.event.listen(engine, "engine_disposed", lambda _: pinned.close())  # by the end of its store
    return engine


def run_log_vanished(path: Path) -> CannotConnect:
    """Return the error of a process whose run log was deleted or replaced."""
    return CannotConnect(
        f"the run log {path} was deleted or replaced while this process used it",
        state="nothing is started: without its history and its slots, what has run could run again",
        next_step="move the same file back (mv); or start this process again, to begin with what is there "
        "now: a copy from a backup (cp), or nothing",
    )
