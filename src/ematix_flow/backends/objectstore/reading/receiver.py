"""Receives the new files of a folder: finds which are new and complete, and in which order.

A file is identified by its path below the connection's root. It is new when its path was never received,
however its name sorts. A file that changes after it was received is read again only if `reread_changed` is
set. A bucket shows objects when they are complete. A disk shows files while they are written, so a file on a
disk must not have changed for a while first.
"""

from __future__ import annotations

import datetime as dt
import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.backends.messages.base import Message, ReadRequest, Receiver
from ematix_flow.backends.messages.source_options import (
    bool_option,
    count_option,
    known_options,
    seconds_option,
)
from ematix_flow.backends.objectstore.layout.source_files import ListedFile

_MAX_WAITING = 10_000  # files that one listing keeps for the next polls; the others are found again
_MAX_NAMED = 20  # changed files that one warning names
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_SECOND = 1_000_000_000
_STARTED = "/"  # in progress, though not a path: the files from before the start were skipped

# The extensions with which programs mark unfinished files, or companions of other files.
_UNFINISHED = (
    ".tmp",
    ".temp",
    ".crc",
    ".part",
    ".partial",
    ".filepart",
    ".inprogress",
    ".crdownload",
    ".swp",
    "._copying_",
    "~",
)

_log = logging.getLogger(__name__)


def is_unfinished(name: str) -> bool:
    """Whether the file's name marks it as unfinished."""
    return name.lower().endswith(_UNFINISHED)


@dataclass(frozen=True)
class FolderOptions:
    """Options of a stream that follows a folder.

    ``settle_seconds``: how long a file on a disk must stay unchanged before it is read. ``poll_seconds``: the
    shortest time between two listings. ``max_files``: the most files in one batch. ``recursive``: read files
    of all folders below, not only of partition and date folders.
    """

    settle_seconds: float = 1.0
    poll_seconds: float = 1.0
    max_files: int = 1_000
    recursive: bool = False
    reread_changed: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, str], poll_seconds: float) -> FolderOptions:
        """Parse the options. DeclarationError for an unknown option or an invalid value."""
        given = known_options(options, cls.__dataclass_fields__)
        return cls(
            settle_seconds=seconds_option(given, "settle_seconds", cls.settle_seconds),
            poll_seconds=seconds_option(given, "poll_seconds", poll_seconds),
            max_files=count_option(given, "max_files", cls.max_files),
            recursive=bool_option(given, "recursive"),
            reread_changed=bool_option(given, "reread_changed"),
        )


class FilesReceiver(Receiver):
    """Lists one folder repeatedly and delivers its new files.

    ``files`` lists the folder, with paths below the connection's root. ``written_in_place``: whether files
    are visible while they are written.
    """

    acknowledges = False

    def __init__(
        self,
        files: Callable[[], Iterator[ListedFile]],
        reading: ReadRequest,
        options: FolderOptions,
        progress: Mapping[str, str],
        *,
        written_in_place: bool,
    ) -> None:
        self._files, self._reading, self._options = files, reading, options
        self._written_in_place = written_in_place
        self._received = dict(progress)
        self._skips_existing = reading.starting == "latest" and not progress
        self._since = _to_nanoseconds(reading.starting) if isinstance(reading.starting, dt.datetime) else None
        self._waiting: list[ListedFile] = []  # the next one last
        self._not_kept = 0  # further files that the last listing found
        self._settling: dict[str, tuple[str, float]] = {}  # path -> version, and when it was first seen
        self._unsettled = 0  # of these, how many are from before the start
        self._warned: set[str] = set()  # files that a warning has named
        self._new_progress: dict[str, str] = {}
        self._opened = time.time_ns()
        self._next_listing = 0.0
        self._listed = False
        self._closed = threading.Event()

    # -------------------------------------------------------------- the contract

    def poll(self, max_messages: int, timeout: float) -> Sequence[Message]:
        self._new_progress = {}  # is stored by now
        until = time.monotonic() + timeout
        while not self._closed.is_set():
            if not self._waiting and time.monotonic() >= self._next_listing:
                self._list_folder()
                if self._new_progress:  # store the start before anything else happens
                    break
            if self._waiting:
                return self._take_files(min(max_messages, self._options.max_files))
            now = time.monotonic()
            if now >= until:
                break
            self._closed.wait(min(until, max(self._next_listing, now + 0.01)) - now)
        return ()

    def progress(self) -> Mapping[str, str]:
        return self._new_progress

    def acknowledge(self, receipts: Sequence[Any]) -> None:
        return

    def is_drained(self) -> bool:
        """Whether every file from before the start has been received, except files that are still written."""
        return self._listed and not self._waiting and not self._not_kept and not self._unsettled

    def lag(self) -> Mapping[str, int]:
        return {self._reading.query: len(self._waiting) + self._not_kept + len(self._settling)}

    def close(self) -> None:
        self._closed.set()

    # -------------------------------------------------------------- listing

    def _list_folder(self) -> None:
        """List the folder. If the listing fails half way, nothing changes."""
        settling: dict[str, tuple[str, float]] = {}
        changed: list[str] = []
        number = 0

        def counted() -> Iterator[tuple[int, str, ListedFile]]:
            nonlocal number
            for found in self._new_files(settling, changed):
                number += 1
                yield found.modified, found.name, found

        if self._skips_existing:
            passed = {found.name: found.version for found in self._new_files(settling, changed)}
            self._received.update(passed)
            self._new_progress, self._skips_existing = {_STARTED: "latest", **passed}, False
            first: list[tuple[int, str, ListedFile]] = []
        else:
            first = heapq.nsmallest(_MAX_WAITING, counted())
        self._waiting = [found for _, _, found in reversed(first)]
        self._not_kept = number - len(first)
        self._settling = settling
        self._next_listing = time.monotonic() + self._options.poll_seconds
        self._listed = True
        self._warn_of_changed(changed)

    def _new_files(self, settling: dict[str, tuple[str, float]], changed: list[str]) -> Iterator[ListedFile]:
        """Yield the files to receive; collect files that are still written and files that have changed."""
        self._unsettled = 0
        for found in self._files():
            name = found.name
            if is_unfinished(name) or not self._is_nameable(name):
                continue
            known = self._received.get(name)
            if known == found.version:
                continue
            if known is not None and not self._options.reread_changed:
                changed.append(name)
            elif self._since is not None and found.modified < self._since:
                continue
            elif self._written_in_place and not self._has_settled(found, settling):
                self._unsettled += found.modified <= self._opened
            else:
                yield found

    def _has_settled(self, file: ListedFile, settling: dict[str, tuple[str, float]]) -> bool:
        """Whether the file has stayed unchanged for long enough.

        Checked by its modification time or, as clocks may differ, by how long we have seen the same version.
        """
        rest = self._options.settle_seconds
        if 0 <= time.time_ns() - file.modified >= rest * _SECOND:
            return True
        version, since = self._settling.get(file.name, ("", 0.0))
        if version != file.version:
            since = time.monotonic()
        elif time.monotonic() - since >= rest:
            return True
        settling[file.name] = (file.version, since)
        return False

    def _is_nameable(self, name: str) -> bool:
        """Whether the name is valid UTF-8, as Spark and the spool need."""
        try:
            name.encode()
        except UnicodeEncodeError:
            if name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "%s: the file %r is not read: its name is not UTF-8; rename it and it is read",
                    self._reading.query,
                    name,
                )
            return False
        return True

    def _warn_of_changed(self, changed: Sequence[str]) -> None:
        new = [name for name in changed if name not in self._warned]
        self._warned.update(new)
        if new:
            named = ", ".join(new[:_MAX_NAMED]) + (
                f" and {len(new) - _MAX_NAMED:,} more" if new[_MAX_NAMED:] else ""
            )
            _log.warning(
                "%s: changed after it was received, and is not read again: %s; write new rows into new files,"
                " or set the option reread_changed",
                self._reading.query,
                named,
            )

    # -------------------------------------------------------------- messages

    def _take_files(self, most: int) -> Sequence[Message]:
        next_files = [self._waiting.pop() for _ in range(min(most, len(self._waiting)))]
        brought = {found.name: found.version for found in next_files}
        self._received.update(brought)
        self._new_progress |= brought
        return [self._message(found) for found in next_files]

    def _message(self, file: ListedFile) -> Message:
        return Message(
            value=file.name.encode(),
            topic=self._reading.query,
            position=f"{file.name}|{file.version}",
            timestamp=_to_datetime(file.modified),
        )


def _to_nanoseconds(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // dt.timedelta(microseconds=1) * 1_000


def _to_datetime(nanoseconds: int) -> dt.datetime | None:
    try:
        return _EPOCH + dt.timedelta(microseconds=nanoseconds // 1_000)
    except OverflowError:  # a clock that was very wrong
        return None
