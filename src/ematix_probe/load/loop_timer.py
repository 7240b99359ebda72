"""Wakes an asyncio loop at a time. asyncio alone is up to a millisecond late; Linux has a better timer."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC = 1, 0o4000 | 0o2000000


class _Spec(ctypes.Structure):
    """``struct itimerspec``: an interval and the time until the first alarm."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


class LoopTimer:
    """One alarm at a time. ``wake_in`` replaces the one that is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop, self._wake = loop, wake
        self._handle: asyncio.TimerHandle | None = None
        self._spec = _Spec()
        self._file = self._open()
        if self._file is not None:
            loop.add_reader(self._file, self._rang)

    def _open(self) -> int | None:
        if not sys.platform.startswith("linux"):
            return None
        try:
            self._library = ctypes.CDLL(None, use_errno=True)
            file = int(self._library.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
        except (OSError, AttributeError):
            return None
        return file if file >= 0 else None

    def wake_in(self, nanoseconds: int) -> None:
        if self._file is None:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(nanoseconds, 0) / 1e9, self._wake)
            return
        spec = self._spec
        spec.first_s, spec.first_ns = divmod(max(nanoseconds, 1), 1_000_000_000)  # 0 would turn it off
        self._library.timerfd_settime(self._file, 0, ctypes.byref(spec), None)

    def _rang(self) -> None:
        assert self._file is not None
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set again in the meantime
            return
        self._wake()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = None


def clock() -> int:
    """Nanoseconds of a clock that all processes of the machine share and that nobody sets."""
    return time.monotonic_ns()
