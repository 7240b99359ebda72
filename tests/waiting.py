"""Waiting for an event: tests poll until it has happened, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], seconds: float = 60) -> T:
    """The first true result of the condition; fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"the expected event did not happen within {seconds:g} s"
        time.sleep(0.05)
    return result
