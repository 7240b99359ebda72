"""The contract of a store of runs. A store is opened for each call's work and holds nothing in between."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ematix_probe.history.records import RecordedRun


class HistoryStore(ABC):
    """Runs by id, newest first. Every failure is a HistoryError or a CannotConnect.

    Reading changes nothing: a store that does not exist yet is empty.
    """

    location: str  # masked

    @abstractmethod
    def add(self, run: RecordedRun) -> int:
        """Write the run with its assertions, all or nothing; returns its id. Ids grow with time."""

    def prepare(self) -> None:
        """Find out before the first `add` whether the store can be opened."""
        self.check()

    @abstractmethod
    def newest(self, probe: str | None, limit: int, before: int | None) -> Sequence[RecordedRun]:
        """The newest runs with an id below ``before``: without assertions, with their counts."""

    @abstractmethod
    def get(self, id: int) -> RecordedRun | None: ...

    @abstractmethod
    def details(self, probe: str, limit: int) -> Sequence[RecordedRun]:
        """The newest runs of a probe with their assertions, without samples."""

    @abstractmethod
    def past(self, probe: str, assertion: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """The measures of an assertion, newest first; runs that measured nothing are left out."""

    @abstractmethod
    def probes(self) -> Sequence[str]:
        """The names of all probes that have runs, in order."""

    @abstractmethod
    def prune(self, probe: str, keep: int, before: dt.datetime | None) -> int:
        """Delete the runs of a probe but the newest ``keep``; with ``before``, only those started earlier.

        Returns how many were deleted.
        """

    @abstractmethod
    def check(self) -> str:
        """Ask the store, without changing it; returns what it holds, in words."""
