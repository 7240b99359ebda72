"""What the run log and the slots need from an object store: small documents with conditional writes.

Independent of any vendor's client: those implement `ObjectStore`. A document is JSON. A mark is an empty
object whose name holds the information. Listings return names in byte order, so names are built so that
what is needed first comes first.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import re
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ematix_flow.errors import ConfigError
from ematix_flow.state.times import aware_utc

VERSION = 1  # of the documents of run log and slots
PARALLEL_REQUESTS = 16  # requests of one query at the same time
_LAST_MICROSECOND = 10**17  # the year 5138
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_LONGEST_NAME = 200
_CLOCK_SECONDS = 60.0
_WRITE, _VERSION_KEY = "write", "run_log_version"
T = TypeVar("T")


@dataclass(frozen=True)
class StoredDocument:
    """A document as it was read, and the tag of this version."""

    value: dict[str, Any]
    tag: str


class ObjectStore(ABC):
    """A prefix of a bucket. Keys are relative to it. Every failure is a FlowError.

    If a client repeats a write because the answer was lost, its own first write breaks the condition. Each
    document carries the id of its write, so that this case is recognised.
    """

    location: str

    def __init__(self) -> None:
        self._clock: tuple[float, dt.datetime] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()

    # ------------------------------------------------------------------ what a vendor's client does

    @abstractmethod
    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return the content and its tag; None if the key does not exist."""

    @abstractmethod
    def store(self, key: str, content: bytes, *, new: bool = False, tag: str | None = None) -> bool:
        """Write the object; False if a condition fails: that it is ``new``, or still has this ``tag``."""

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> None:
        """Delete the objects that exist; the other keys are ignored."""

    @abstractmethod
    def names(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys with this prefix that come after ``after``, in order, read page by page."""

    @abstractmethod
    def server_time(self) -> dt.datetime:
        """Return the time of the server's clock."""

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    # ------------------------------------------------------------------ documents and marks

    def read(self, key: str) -> StoredDocument | None:
        found = self.fetch(key)
        return None if found is None else StoredDocument(json.loads(found[0]), found[1])

    def read_all(
        self, keys: Iterable[str], at_once: int = PARALLEL_REQUESTS
    ) -> Iterator[StoredDocument | None]:
        """Yield the documents in the order of the keys, read ``at_once`` at a time."""
        left = iter(keys)
        while some := list(itertools.islice(left, max(1, min(at_once, PARALLEL_REQUESTS)))):
            yield from self.map_parallel(self.read, some)

    def create(self, key: str, value: Mapping[str, Any]) -> bool:
        """Write a new document; False if it exists already."""
        return self._write_document(key, value, new=True)

    def replace(self, key: str, value: Mapping[str, Any], tag: str) -> bool:
        """Replace a document; False if it is no longer the version with this tag."""
        return self._write_document(key, value, tag=tag)

    def mark(self, key: str) -> None:
        self.store(key, b"")

    def first(self, prefix: str, after: str = "") -> str | None:
        """Return the first key with this prefix."""
        return next(iter(self.names(prefix, after)), None)

    def now(self) -> dt.datetime:
        """Return the server's time: read from time to time, and advanced by the monotonic clock."""
        if self._clock is None or time.monotonic() - self._clock[0] > _CLOCK_SECONDS:
            asked = time.monotonic()
            self._clock = asked, aware_utc("the server's time", self.server_time())
        since = time.monotonic() - self._clock[0]
        return self._clock[1] + dt.timedelta(seconds=since)

    def mark_all(self, keys: Iterable[str]) -> None:
        list(self.map_parallel(self.mark, list(keys)))

    def map_parallel(self, ask: Callable[[str], T], keys: Sequence[str]) -> Iterator[T]:
        """Call ``ask`` for each key, several at a time, and return the answers in order."""
        if len(keys) == 1:
            return iter([ask(keys[0])])
        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="ematix-flow-objects")
        return self._pool.map(ask, keys)

    def _write_document(self, key: str, value: Mapping[str, Any], **condition: Any) -> bool:
        write = uuid.uuid4().hex
        content = json.dumps({**value, _WRITE: write}).encode()
        if self.store(key, content, **condition):
            return True
        found = self.read(key)
        return found is not None and found.value.get(_WRITE) == write


def require_version(store: ObjectStore, *, read_only: bool = False) -> None:
    """Raise ConfigError if a later version of this package wrote the run log."""
    found = store.read(_VERSION_KEY)
    if found is None and not read_only:
        store.create(_VERSION_KEY, {"version": VERSION})
        found = store.read(_VERSION_KEY)
    version = VERSION if found is None else found.value["version"]
    if version > VERSION:
        raise ConfigError(
            f"the run log {store.location} has version {version}, "
            f"and this ematix-flow knows only up to {VERSION}",
            state="the run log is unchanged",
            next_step="upgrade ematix-flow-spark, or name another run log",
        )


# ---------------------------------------------------------------------- names


def key_part(text: str) -> str:
    """Return a text as one part of a key: unique, and only of characters that every server accepts."""
    encoded = "".join(c if _PLAIN.match(c) else "".join(f"~{byte:02x}" for byte in c.encode()) for c in text)
    if len(encoded) <= _LONGEST_NAME:
        return encoded
    return f"{encoded[:100]}~~{hashlib.sha256(text.encode()).hexdigest()}"


def newest_first_key(moment: dt.datetime) -> str:
    """Return a key for a time; later times come first."""
    return f"{_LAST_MICROSECOND - _microseconds(moment):017d}"


def oldest_first_key(moment: dt.datetime) -> str:
    return f"{_microseconds(moment):017d}"


def newest_first_from_oldest_first(oldest: str) -> str:
    """Return the newest-first key for an oldest-first key."""
    return f"{_LAST_MICROSECOND - int(oldest):017d}"


def time_of_newest_first_key(newest: str) -> dt.datetime:
    """Return the time of a newest-first key."""
    return _EPOCH + dt.timedelta(microseconds=_LAST_MICROSECOND - int(newest))


def _microseconds(moment: dt.datetime) -> int:
    return (aware_utc("a time", moment) - _EPOCH) // dt.timedelta(microseconds=1)
