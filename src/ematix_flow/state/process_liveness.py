"""Who holds a claim or runs a load, told so that others on the same machine can see that it is dead."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid

from ematix_flow.state.file_locks import machine_id, process_is_alive
from ematix_flow.state.run_records import RunRecord


def new_holder() -> str:
    """A name for who claims: its machine and process, and never given twice."""
    return f"{socket.gethostname()}/{os.getpid()}/{_machine_mark()}-{uuid.uuid4().hex[:8]}"


def format_holder(holder: str) -> str:
    """What tells a person where to look: ``vm/366``."""
    return holder.rpartition("/")[0] or holder


def holder_is_dead(holder: str) -> bool:
    """Whether it ran where this process runs, and runs no more. Of others nobody here can say.

    The number of a dead process may be another's by now; then nothing is said, and its claim expires.
    """
    rest, _, mark = holder.rpartition("/")
    here, number = _machine_mark(), rest.rpartition("/")[2]
    same = bool(here) and mark.partition("-")[0] == here
    return same and number.isdecimal() and not process_is_alive(int(number))


def run_is_dead(record: RunRecord) -> bool:
    """Whether it has not said how it ended, and its process was of this machine and is no more."""
    here = record.status == "running" and record.host == socket.gethostname()
    return here and not process_is_alive(record.pid)


def _machine_mark() -> str:
    """Of this machine, since it was started, and its processes; empty if unknown."""
    machine = machine_id()
    return hashlib.sha256(machine.encode()).hexdigest()[:8] if machine else ""
