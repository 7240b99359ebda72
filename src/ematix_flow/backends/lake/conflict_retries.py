"""Repeats a change of a lake table when another writer has committed first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def retry_on_conflict(
    change: Callable[[], Result],
    is_conflict: Callable[[Exception], bool],
    tries: int,
    failure: Callable[[], Exception],
) -> Result:
    """The result of the change. ``failure`` makes the error when every try met a conflict."""
    attempt = 1
    while True:
        try:
            return change()
        except Exception as error:
            if not is_conflict(error):
                raise
            if attempt == tries:
                raise failure() from error
        time.sleep(0.2 * 2**attempt)
        attempt += 1
