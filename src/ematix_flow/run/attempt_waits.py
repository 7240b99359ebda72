"""Waits between two attempts at a pipeline or stream, unless somebody stops it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from ematix_flow.errors import RunStopped
from ematix_flow.run.run_control import RunControl
from ematix_flow.run.run_watcher import RunWatcher

_PART_SECONDS = 1.0  # of a wait, after which a stop takes effect


def wait_for_next_attempt(
    control: RunControl,
    seconds: float,
    sleep: Callable[[float], object] = time.sleep,
    is_over: Callable[[], bool] = lambda: False,
) -> RunStopped | None:
    """Wait, and return the error of a stop that somebody requested of the attempt that failed.

    ``control`` is of that attempt; a stop that came too late for it counts too. The wait also ends when
    ``is_over`` is true.
    """
    with RunWatcher(control.poll) as watcher:
        control.wake = watcher.wake
        control.wait_for_answer(is_over)
        while control.stop_error is None and not is_over():
            sleep(min(seconds, _PART_SECONDS))
            seconds -= _PART_SECONDS
            if seconds <= 0:
                break
    control.close("the run had failed; it is not attempted again")
    return control.stop_error
