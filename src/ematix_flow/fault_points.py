"""Commit points: named points between two durable effects, where tests inject crashes and failures.

Production code calls ``point("apply.before_commit")``, which costs one dictionary lookup. A test arms a
point in its own process with `inject`, or in a child process with the environment variable
``EMATIX_FLOW_FAULT="apply.before_commit=kill"`` (``name=crash|kill|raise[:nth][@file]``, several separated
by commas; of all processes that share a ``file`` only the one that creates it fails). All points are declared
at the end of this module.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, get_args

from ematix_flow.errors import ConfigError, did_you_mean

FAULT_VARIABLE: Final = "EMATIX_FLOW_FAULT"

Action = Literal["crash", "kill", "raise"]


class InjectedCrash(BaseException):
    """Simulates the death of the process: no ``except Exception`` may handle it."""


class InjectedFailure(Exception):
    """An ordinary failure at a commit point, which the code under test is expected to handle."""


@dataclass
class Fault:
    """One armed point. ``hits`` counts how often it was reached while armed; it acts on the nth hit.

    With ``once_file`` it acts in one process only: a task that failed runs again in another process.
    """

    name: str
    action: Action | Callable[[], None]
    nth: int = 1
    hits: int = 0
    once_file: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def has_fired(self) -> bool:
        return self.hits >= self.nth

    def reach(self) -> None:
        with self._lock:
            self.hits += 1
            acts = self.hits == self.nth
        if acts and (self.once_file is None or _create_once_file(self.once_file)):
            self._act()

    def _act(self) -> None:
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "crash":
            raise InjectedCrash(f"injected crash at {self.name}")
        elif self.action == "raise":
            raise InjectedFailure(f"injected failure at {self.name}")
        else:
            self.action()


def _create_once_file(path: str) -> bool:
    """Whether this process created the file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


# name -> the armed fault; None, the usual case, makes the point a no-op
_armed: dict[str, Fault | None] = {}
_point_meanings: dict[str, str] = {}


def declare_point(name: str, meaning: str) -> None:
    """Declare a commit point, and which effects are durable when it is reached and which are not."""
    if name in _point_meanings:
        raise ValueError(f"commit point {name!r} is declared twice")
    _point_meanings[name] = meaning
    _armed[name] = None


def declared_points() -> dict[str, str]:
    """Every declared point with its meaning. A test compares them with the crash tests."""
    return dict(_point_meanings)


def point(name: str) -> None:
    """Mark that the process is at this commit point. Does nothing unless the point is armed."""
    try:
        fault = _armed[name]
    except KeyError:
        _refuse_unknown_point(name)
    if fault is not None:
        fault.reach()


@contextmanager
def inject(name: str, action: Action | Callable[[], None], nth: int = 1) -> Iterator[Fault]:
    """Fail once at this point, the nth time that any thread of this process reaches it.

    A callable instead of an action is called there, for a test that inspects the state in between.
    """
    if name not in _armed:
        _refuse_unknown_point(name)
    if nth < 1 or not (callable(action) or action in get_args(Action)):
        raise ValueError(
            f"not a fault: {action!r}, nth={nth}; known: {', '.join(get_args(Action))}; nth from 1"
        )
    before = _armed[name]
    fault = Fault(name, action, nth)
    _armed[name] = fault
    try:
        yield fault
    finally:
        _armed[name] = before


def arm_from_setting(setting: str) -> None:
    """Arm the points of an ``EMATIX_FLOW_FAULT`` value for the rest of this process."""
    for part in filter(None, (entry.strip() for entry in setting.split(","))):
        name, _, rest = part.partition("=")
        rest, _, once = rest.partition("@")
        action, _, nth = rest.partition(":")
        if action not in get_args(Action) or (nth and not (nth.isdecimal() and int(nth) >= 1)):
            raise ConfigError(
                f"{FAULT_VARIABLE} has {part!r}, which is not name={'|'.join(get_args(Action))}[:nth][@file]",
                next_step=f"unset {FAULT_VARIABLE}, unless this process should fail",
            )
        if name not in _armed:
            raise ConfigError(
                f"{FAULT_VARIABLE} names {name!r}, which is not a commit point.{did_you_mean(name, _armed)}",
                next_step=f"unset {FAULT_VARIABLE}, unless this process should fail",
            )
        _armed[name] = Fault(name, action, int(nth or 1), once_file=once or None)  # type: ignore[arg-type]  # checked


def _refuse_unknown_point(name: str) -> NoReturn:
    raise LookupError(f"commit point {name!r} is not declared.{did_you_mean(name, _armed)}")


declare_point("staging.created", "the attempt's staging exists and is empty; the target is untouched")
declare_point("task.staged", "a task's rows are in staging for good; the driver does not know it yet")
declare_point("staging.loaded", "staging holds every row; the target is untouched")
declare_point(
    "apply.began", "the transaction on the target is open and holds the lock; nothing in it is durable"
)
declare_point(
    "apply.table_changed", "one change of the table is made, durable where a change commits by itself"
)
declare_point("gate.checked", "the gate has let the rows pass; nothing in the open transaction is durable")
declare_point(
    "gate.quarantined", "failing rows are in the quarantine table, in the open transaction; none is durable"
)
declare_point(
    "gate.replay_removed", "replayed rows have left the quarantine table, within the open transaction"
)
declare_point(
    "quarantine.noted",
    "a lake's journal names the quarantine table that is about to change; nothing of it has changed",
)
declare_point(
    "quarantine.written",
    "the quarantine table of a lake or of files is changed for good; this counts from the target's commit on",
)
declare_point(
    "quarantine.settled",
    "the target has committed, and rows that do not count are gone from quarantine; that is not noted yet",
)
declare_point("apply.first_rows_written", "a file has the rows at the first watermark that the table lacks")
declare_point("apply.ledger_written", "the ledger row is in the open transaction; nothing in it is durable")
declare_point(
    "apply.rows_written", "rows and ledger row are in the open transaction; nothing in it is durable"
)
declare_point("apply.before_commit", "rows, ledger row and watermark wait for the commit; none is durable")
declare_point("apply.after_commit", "rows, ledger row and watermark are durable; staging remains")
declare_point("staging.dropped", "the load is durable and staging is gone; the run log still says running")
declare_point("post.recorded", "the run log knows that a post-load step has ended well")
declare_point("runlog.before_finish", "the load is over either way; the run log still says running")
declare_point(
    "files.version_written", "the new files exist next to the old ones; readers see the old version"
)
declare_point("files.before_publish", "the new version is complete and flushed; readers see the old version")
declare_point("files.after_publish", "readers see the new version; the old one is not yet removed")
declare_point("fold.entries_written", "old entries of a journal are in one file, which is not valid yet")
declare_point("fold.counts", "the file is valid; the files of the single entries still exist and are ignored")
declare_point("fold.files_removed", "some of the ignored files are gone")
declare_point("spool.written", "a segment's messages are in a temporary file, which the index does not list")
declare_point(
    "spool.indexed", "the segment and the positions after it are in the index; nothing reads it yet"
)
declare_point(
    "spool.renamed", "the segment has its final name and will be read; its messages are not acknowledged"
)
declare_point(
    "spool.settled", "the index says that all targets have the segment; the source does not know it yet"
)
declare_point(
    "spool.acknowledged", "the messages are acknowledged; the index still expects them to come again"
)
declare_point("stream.dead_letters_sent", "a Kafka topic has the dead letters; their store does not yet")
declare_point(
    "stream.dead_letters",
    "messages that are not loaded are in the dead-letter store; the batch is only staged",
)
declare_point(
    "stream.state_committed",
    "the state has the batch, and its closed windows are in a file; nothing is staged",
)
declare_point("stream.state_mirrored", "the state store in Postgres has the batch as well; nothing is staged")
declare_point("stream.staged", "a stream's batch is staged for every target; no target has it")
declare_point(
    "stream.target_committed",
    "one target of a stream has the batch; the next may not have it, and Spark does not know it yet",
)
declare_point(
    "replay.committed",
    "the targets have replayed dead letters; their store only says in which batch they were to be loaded",
)
declare_point("stream.sent", "a broker has confirmed the messages of a batch; this is not recorded yet")
declare_point("stream.committed", "every target has the batch; the source and Spark do not know it yet")
declare_point("stream.acknowledged", "the source knows that the batch is done; Spark does not yet")
declare_point(
    "messages.produced", "a batch's messages are in an open transaction; read_committed readers see none"
)
declare_point("messages.before_commit", "messages and their token wait for the commit; none is visible")
declare_point("messages.after_commit", "messages and token are visible; the engine does not know it yet")
declare_point("action.requested", "an action that is done at once is stored; nothing of it is done")
declare_point("action.effected", "an action that is done at once is in effect; it is still waiting")
declare_point("action.claimed", "a carrier has claimed the action; no process was started for it")
declare_point("action.begun", "a process has begun the action under its claim; nothing of it is done")
declare_point("action.carried_out", "the runs of the action have ended; the action has not")
declare_point("restart.run_ended", "a restart has succeeded; the slot of its run is as it was")
declare_point("restart.slot_ended", "a restart and its slot have succeeded; workflows do not know it yet")

POINTS: Final[frozenset[str]] = frozenset(_point_meanings)

arm_from_setting(os.environ.get(FAULT_VARIABLE, ""))
