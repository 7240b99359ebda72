"""Locks in a bucket: each is an object that names its holder, which renews it while it runs.

A lease is acquired by a conditional create, and taken over by a conditional replace of the version last read,
so that only one of several processes succeeds. Only the server's clock decides whether a lease has expired:
the time of its response is compared with the time of the last write. A holder counts from before its request,
on a monotonic clock, so it gives up earlier than anyone may take over. Only a holder that died on this
machine is known to be dead at once.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from ematix_flow.aws.errors import http_status
from ematix_flow.backends.stores.s3_client import s3_client
from ematix_flow.backends.stores.s3_failures import (
    is_failed_condition,
    is_missing_object,
    translate_errors,
)
from ematix_flow.errors import FlowError, TargetFailed
from ematix_flow.spec.connections.lakes import S3Connection
from ematix_flow.state.file_locks import machine_id, process_is_alive
from ematix_flow.state.times import utc_now

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 15.0
_LONGEST_PAUSE = 5.0
_NO_CONDITIONS = (400, 501)  # the status for conditions that a server does not support
_ROUNDING = 1.0  # servers report whole seconds

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class S3LeaseHolder:
    """The holder of a lease, as recorded in the object."""

    token: str
    what: str
    run_id: str
    pid: int
    host: str
    machine: str
    since: dt.datetime
    seconds: float

    @property
    def is_dead(self) -> bool:
        """Whether the holder ran on this machine and has ended. Unknown, so false, for other machines."""
        return bool(self.machine) and self.machine == machine_id() and not process_is_alive(self.pid)

    def to_json(self, beat: int) -> str:
        value = {**self.__dict__, "since": self.since.isoformat(), "beat": beat}
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> S3LeaseHolder:
        value = json.loads(text)
        value.pop("beat")
        return cls(**{**value, "since": dt.datetime.fromisoformat(value["since"])})

    def __str__(self) -> str:
        since = self.since.astimezone(dt.timezone.utc)
        run = f"run {self.run_id} " if self.run_id else ""
        return f"{run}(pid {self.pid} on {self.host}), since {since:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class S3LeaseStatus:
    """A lease as it was read. ``holder`` is None if the object cannot be parsed."""

    etag: str
    holder: S3LeaseHolder | None
    age: float

    @property
    def is_expired(self) -> bool:
        if self.holder is not None and self.holder.is_dead:
            return True
        seconds = self.holder.seconds if self.holder is not None else LEASE_SECONDS
        return self.age > seconds + _ROUNDING


class S3Lease:
    """A lease on one object of a bucket. Not thread-safe, apart from its own heartbeat thread."""

    def __init__(
        self,
        connection: S3Connection,
        key: str,
        what: str,
        run_id: str = "",
        *,
        seconds: float | None = None,
        beat: float | None = None,
    ) -> None:
        self.key, self.what = key, what
        self._connection = connection
        self._seconds, self._pause = seconds or LEASE_SECONDS, beat or HEARTBEAT_SECONDS
        self._holder = S3LeaseHolder(
            token=uuid.uuid4().hex,
            what=what,
            run_id=run_id,
            pid=os.getpid(),
            host=socket.gethostname(),
            machine=machine_id(),
            since=utc_now(),
            seconds=self._seconds,
        )
        self._etag = ""
        self._beats = 0
        self._good_until = 0.0
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    # -------------------------------------------------------------- acquiring and releasing

    def try_acquire(self) -> S3LeaseStatus | None:
        """Acquire the lease, or take it over from a holder without heartbeats; return the current holder if
        that fails."""
        for _ in range(3):
            if self._write_holder(IfNoneMatch="*"):
                break
            seen = self.read_status()
            if seen is None:  # released in between
                continue
            if not seen.is_expired:
                return seen
            if self._write_holder(IfMatch=seen.etag):
                _log.warning("took over the lock of %s from %s", self.what, seen.holder or "an unknown run")
                break
        else:
            return self.read_status() or S3LeaseStatus("", None, 0.0)
        self._thread = threading.Thread(target=self._send_heartbeats, name=f"lease {self.what}", daemon=True)
        self._thread.start()
        return None

    def release(self) -> None:
        """Release the lease. A lost lease belongs to another process and is left alone."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._lost is not None:
                return
            try:
                with translate_errors(self._connection, "to release a lock"):
                    self._delete_own()
            except FlowError as error:  # the run has ended anyway, and the lease expires by itself
                _log.warning("the lock of %s stays until it expires: %s", self.what, error.what)

    def renew_or_fail(self) -> None:
        """Renew the lease now; TargetFailed if it is lost. Called just before a commit.

        A released lease cannot be lost.
        """
        with self._lock:
            if self._ended.is_set():
                return
            if self._lost is None:
                self._renew()
            if self._lost is not None:
                raise TargetFailed(
                    f"this run lost its lock on {self.what}: {self._lost}",
                    state="nothing was committed",
                    next_step="run it again; if this machine was asleep or offline, nothing else is needed",
                )

    def read_status(self) -> S3LeaseStatus | None:
        """Read the lease; None if no process holds it."""
        from botocore.exceptions import ClientError

        client, bucket = s3_client(self._connection), self._connection.bucket
        with translate_errors(self._connection, "to read a lock"):
            try:
                found = client.get_object(Bucket=bucket, Key=self.key)
                text = found["Body"].read().decode("utf-8", "replace")
            except ClientError as error:
                if is_missing_object(error):
                    return None
                raise
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        age = (now - found["LastModified"]).total_seconds()
        try:
            return S3LeaseStatus(found["ETag"], S3LeaseHolder.from_json(text), age)
        except (ValueError, KeyError, TypeError):
            return S3LeaseStatus(found["ETag"], None, age)

    # -------------------------------------------------------------- the object

    def _write_holder(self, **condition: str) -> bool:
        """Write this process as the holder; False if the condition fails."""
        from botocore.exceptions import ClientError

        began = time.monotonic()
        self._beats += 1
        text = self._holder.to_json(self._beats)
        client, bucket = s3_client(self._connection), self._connection.bucket
        with translate_errors(self._connection, "to write a lock"):
            try:
                answer = client.put_object(Bucket=bucket, Key=self.key, Body=text.encode(), **condition)
                etag = answer["ETag"]
            except ClientError as error:
                if not is_failed_condition(error):
                    raise
                etag = self._etag_of_own_write()
        if etag is None:
            return False
        self._etag, self._good_until = etag, began + self._seconds
        return True

    def _etag_of_own_write(self) -> str | None:
        """The ETag of a write whose response was lost: the client repeats such a write, and S3 refuses
        the repetition. None if another holder wrote."""
        seen = self.read_status()
        ours = seen is not None and seen.holder is not None and seen.holder.token == self._holder.token
        return seen.etag if ours and seen is not None else None

    def _delete_own(self) -> None:
        """Delete the object if we still hold it. If the server has no conditional deletes, check first."""
        from botocore.exceptions import ClientError

        client, at = s3_client(self._connection), {"Bucket": self._connection.bucket, "Key": self.key}
        for _ in range(3):  # this process's own late heartbeat may interfere
            seen = self.read_status()
            if seen is None or seen.holder is None or seen.holder.token != self._holder.token:
                return
            try:
                client.delete_object(**at, IfMatch=seen.etag)
                return
            except ClientError as error:
                if is_missing_object(error):
                    return
                if http_status(error) in _NO_CONDITIONS:
                    client.delete_object(**at)
                    return
                if not is_failed_condition(error):
                    raise

    # -------------------------------------------------------------- heartbeats

    def _renew(self) -> None:
        try:
            if not self._write_holder(IfMatch=self._etag):
                seen = self.read_status()
                by = f"{seen.holder} took it over" if seen and seen.holder else "it is gone"
                self._lost = f"it had not been renewed for {self._seconds:.0f} seconds, and {by}"
        except FlowError as error:
            if time.monotonic() >= self._good_until:
                self._lost = f"it could not be renewed for {self._seconds:.0f} seconds: {error.what}"

    def _send_heartbeats(self) -> None:
        while not self._ended.wait(self._pause):
            with self._lock:
                if self._ended.is_set() or self._lost is not None:
                    return
                self._renew()
                if self._lost is not None:
                    _log.warning("the lock of %s was lost: %s", self.what, self._lost)


def acquire_lease(
    lease: S3Lease, lease_error: Callable[[S3LeaseStatus], FlowError | None], pause: float = 0.5
) -> None:
    """Acquire a lease. ``taken`` returns the error to raise when another process holds it, or None to keep
    waiting.

    The pauses between attempts grow.
    """
    while (seen := lease.try_acquire()) is not None:
        refusal = lease_error(seen)
        if refusal is not None:
            raise refusal
        time.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_PAUSE)
