"""Retries of a transaction that conflicts with another session."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from ematix_flow.errors import FlowError

T = TypeVar("T")

_TRIES = 5


def retry_conflicts(action: Callable[[int], T], is_conflict: Callable[[FlowError], bool]) -> T:
    """Call ``action`` with the number of earlier tries, again after each conflict."""
    for attempt in range(_TRIES - 1):
        try:
            return action(attempt)
        except FlowError as error:
            if not is_conflict(error):
                raise
        time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
    return action(_TRIES - 1)
