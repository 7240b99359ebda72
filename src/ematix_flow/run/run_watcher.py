"""The thread that works for a run while the run works: it saves progress and asks for requests.

A run that ends within two seconds hears only what was asked before it began.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import copy_context

INTERVAL_SECONDS = 2.0
_JOIN_SECONDS = 1.0
_log = logging.getLogger(__name__)


class RunWatcher:
    """Calls each of the tasks every two seconds, in a thread, from the entry of the block to its end."""

    def __init__(self, *tasks: Callable[[], None]) -> None:
        self._tasks = tasks
        self._is_over = False
        self._wake = threading.Event()

    def __enter__(self) -> RunWatcher:
        # in the run's context: what is logged here belongs to the run
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._watch,), name="ematix-flow-run", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._wake.set()
        self._thread.join(_JOIN_SECONDS)  # a thread that still waits for a store does no harm

    def wake(self) -> None:
        """Call the tasks now."""
        self._wake.set()

    def _watch(self) -> None:
        while not self._is_over:
            self._wake.wait(INTERVAL_SECONDS)
            self._wake.clear()
            for task in self._tasks:
                if self._is_over:
                    return
                try:
                    task()
                except Exception as error:  # nothing that is wrong here fails the run
                    _log.warning("a run could not be watched: %s: %s", type(error).__name__, error)
