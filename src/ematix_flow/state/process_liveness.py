"""Names of processes that hold claims or run loads, and whether such a process of this machine is dead."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid

from ematix_flow.state.file_locks import machine_id, process_is_alive
from ematix_flow.state.runlog.records import RunRecord


def new_holder() -> str:
    """Return a unique name for a claim holder, with its machine and process."""
    return f"{socket.gethostname()}/{os.getpid()}/{_machine_mark()}-{uuid.uuid4().hex[:8]}"


def format_holder(holder: str) -> str:
    """Return machine and process of a holder for a person: ``vm/366``."""
    return holder.rpartition("/")[0] or holder


def holder_is_dead(holder: str) -> bool:
    """Whether the holder was a process of this machine that no longer exists. False for other machines.

    If another process has its process id now, it counts as alive, and its claim expires.
    """
    rest, _, mark = holder.rpartition("/")
    own_mark, number = _machine_mark(), rest.rpartition("/")[2]
    same = bool(own_mark) and mark.partition("-")[0] == own_mark
    return same and number.isdecimal() and not process_is_alive(int(number))


def run_is_dead(record: RunRecord) -> bool:
    """Whether a run is recorded as running, but its process of this machine no longer exists."""
    runs_here = record.status == "running" and record.host == socket.gethostname()
    return runs_here and not process_is_alive(record.pid)


def _machine_mark() -> str:
    """Return a mark of this machine since its boot and of its process namespace; empty if unknown."""
    machine = machine_id()
    return hashlib.sha256(machine.encode()).hexdigest()[:8] if machine else ""
