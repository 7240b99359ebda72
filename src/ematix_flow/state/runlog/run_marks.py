"""The name of a run's mark in an object store, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunMark:
    """A run as the name of its mark describes it.

    The status is that of the time when the mark was written.
    """

    order: str  # newest first
    run_id: str  # as a part of a key, and so is the pipeline
    pipeline: str
    status: str

    @property
    def place(self) -> str:
        return f"{self.order}-{self.run_id}"
