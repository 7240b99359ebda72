"""File locks: keep one pipeline from loading one target twice at the same time on one machine.

The lock is a kernel lock on a file, so it is free as soon as its process dies. A second file next to it
names the holder; it is for people, and nothing relies on it.
"""

from __future__ import annotations

import datetime as dt
import errno
import functools
import json
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ematix_flow.errors import ConfigError, FlowError, PipelineLocked, TargetFailed
from ematix_flow.spec.generated_names import distinct_file_name
from ematix_flow.state.private_files import write_private
from ematix_flow.state.state_root import next_step_for, private_directory
from ematix_flow.state.times import utc_now


@dataclass(frozen=True)
class PipelineLock:
    """A held lock: its holder and since when."""

    pipeline: str
    target: str
    run_id: str
    pid: int
    host: str
    since: dt.datetime

    def to_json(self) -> dict[str, object]:
        return {
            "pipeline": self.pipeline,
            "target": self.target,
            "run_id": self.run_id,
            "pid": self.pid,
            "host": self.host,
            "since": self.since.isoformat(),
        }

    @classmethod
    def from_json(cls, value: dict[str, object]) -> PipelineLock:
        return cls(
            pipeline=str(value["pipeline"]),
            target=str(value["target"]),
            run_id=str(value["run_id"]),
            pid=int(str(value["pid"])),
            host=str(value["host"]),
            since=dt.datetime.fromisoformat(str(value["since"])),
        )


@contextmanager
def hold_file_lock(
    directory: Path, pipeline: str, target: str, run_id: str, *, database: str = ""
) -> Iterator[PipelineLock]:
    """Hold the lock of this pipeline and target while the block runs; raises PipelineLocked if it is taken.

    ``database`` identifies the database, if several share the directory. It never waits, and it is not
    re-entrant: a second holder is refused even in the same thread.
    """
    path = private_directory(directory, tighten=True) / f"{_file_stem(pipeline, target, database)}.lock"
    holder_path = path.with_suffix(".holder.json")
    # a new instance each time, not tied to a thread: only the kernel decides who holds the lock
    kernel_lock = FileLock(path, timeout=0, mode=0o600, thread_local=False, is_singleton=False)
    try:
        kernel_lock.acquire()
    except Timeout as error:
        raise _locked_error(pipeline, target, _read_holder(holder_path)) from error
    except OSError as error:
        raise _unusable_lock_file(path, error) from error
    try:
        lock = PipelineLock(pipeline, target, run_id, os.getpid(), socket.gethostname(), utc_now())
        try:
            _write_holder(holder_path, lock)
        except OSError as error:
            raise _unusable_lock_file(holder_path, error) from error
        try:
            yield lock
        finally:
            with suppress(OSError):  # a leftover holder file is harmless, and the run has ended well
                holder_path.unlink()
    finally:
        kernel_lock.release()


def _file_stem(pipeline: str, target: str, database: str) -> str:
    """Return a readable file name that is valid on every file system and different for different names."""
    names = (pipeline, target, database) if database else (pipeline, target)
    return distinct_file_name(*names, default="pipeline", digits=20)


def _write_holder(path: Path, lock: PipelineLock) -> None:
    aside = path.with_name(f"{path.name}.{lock.pid}")
    write_private(aside, json.dumps(lock.to_json()))
    os.replace(aside, path)


def _read_holder(path: Path) -> PipelineLock | None:
    """Return the holder of the lock; None if unknown, or if a dead holder left the file."""
    try:
        lock = PipelineLock.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if lock.host == socket.gethostname() and not process_is_alive(lock.pid) else lock


def process_is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # on Windows, os.kill with 0 sends an event to the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is alive, as another user
        return True
    return True


@functools.cache
def machine_id() -> str:
    """Return an id of this machine since its boot and of its process namespace; empty if unknown.

    Containers of one machine share its boot, and may share its host name, but not the process ids.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _locked_error(pipeline: str, target: str, holder: PipelineLock | None) -> PipelineLocked:
    if holder is None:
        by = "another process, which has only just begun"
    else:
        since = holder.since.astimezone(dt.timezone.utc)
        by = f"run {holder.run_id} (pid {holder.pid} on {holder.host}), since {since:%Y-%m-%d %H:%M:%S} UTC"
    return PipelineLocked(
        f"pipeline {pipeline!r} is already running into {target!r}: {by}",
        state="this run has not begun; the target is untouched",
        next_step=f"wait for it to end, or look at it: flow runs list --pipeline {shlex.quote(pipeline)}",
    )


def _unusable_lock_file(path: Path, error: OSError) -> FlowError:
    """Return the error for a lock file.

    A full or broken disk is not a wrong setting: once it is fixed, the run succeeds.
    """
    kind = TargetFailed if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else ConfigError
    return kind(
        f"cannot lock {path}: {error.strerror or error}",
        state="this run has not begun; the target is untouched",
        next_step=next_step_for(error, f"make {path.parent} writable, and run it again"),
    )
