"""The gate that a stream passes before each batch. The runner of the stream may close it."""

from __future__ import annotations

from collections.abc import Callable


class BatchGate:
    """An open gate. A subclass lets a stream wait between two batches, or ends it there."""

    def pass_through(self, is_ending: Callable[[], bool]) -> None:
        """Called before each batch; waits while the gate is closed, until ``is_ending``."""

    def is_closed(self) -> bool:
        """Whether the stream is to load nothing. Called often while it loads no batch."""
        return False
