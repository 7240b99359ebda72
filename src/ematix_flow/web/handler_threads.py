"""Threads in which handlers run: few, and with a bounded queue, so that slow ones delay only each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ematix_flow.errors import FlowError
from ematix_flow.web.answers import Refused

T = TypeVar("T")


class HandlerThreads:
    """Runs at most ``threads`` calls at a time. Used from the event loop alone, but for `submit`."""

    def __init__(self, name: str, threads: int, most_waiting: int, what: str) -> None:
        """``what`` is what calls wait for, in the words of the refusal."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most, self._what = threads + most_waiting, what
        self._under_way = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the call returns. Raises the refusal 503 if too many wait already."""
        if self._under_way >= self._most:
            raise Refused(503, FlowError(f"too many requests wait for {self._what}", next_step="try again"))
        self._under_way += 1
        # the place stays taken until the thread has ended, also if nobody waits for the answer any more
        future = self._pool.submit(work)
        loop = asyncio.get_running_loop()

        def leave(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(self._leave)

        future.add_done_callback(leave)
        return await asyncio.wrap_future(future)

    def _leave(self) -> None:
        self._under_way -= 1

    def submit(self, work: Callable[[], object]) -> None:
        self._pool.submit(work)

    def shutdown(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
