"""Samples of running streams: their values, the contract of their store, and how many become fewer.

A sample holds what a stream did since its sample before, and its state at that time. A store that cannot be
written costs charts, never a stream.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.state.runlog.records import mask_metrics
from ematix_flow.state.times import aware_utc

KEPT_FOR = dt.timedelta(days=7)
MOST_SAMPLES = 500  # of one stream that are read at once
COUNTS = ("rows_read", "rows_written", "batches", "dead_letters")
PHASES = ("read", "rehearse", "stage", "apply", "commit", "dead letters")  # that streams know today


@dataclass(frozen=True)
class StreamSample:
    """One sample. ``values`` are counts since the sample before, and what was so at its time."""

    stream: str
    run_id: str
    at: dt.datetime
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", aware_utc("at", self.at))
        object.__setattr__(self, "values", mask_metrics(self.values))

    @classmethod
    def from_store(cls, stream: str, run_id: str, at: dt.datetime, values: dict[str, Any]) -> StreamSample:
        """Return the sample of stored values, which were masked when written: this saves time."""
        sample = object.__new__(cls)
        for name, value in (("stream", stream), ("run_id", run_id), ("at", at), ("values", values)):
            object.__setattr__(sample, name, value)
        return sample

    def to_json(self) -> dict[str, Any]:
        return {"stream": self.stream, "run_id": self.run_id, "at": self.at.isoformat(), **self.values}


class SampleStore(ABC):
    """Stores the samples of streams."""

    location: str

    def close(self) -> None:
        """Close the store. It can be opened again."""
        return

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def add(self, sample: StreamSample) -> None:
        """Store a sample. One with the same stream, run and time is kept as it was."""

    @abstractmethod
    def read(self, stream: str, since: dt.datetime, limit: int = MOST_SAMPLES) -> tuple[StreamSample, ...]:
        """Return the samples of a stream since then, oldest first.

        If there are more than ``limit``, neighbours are merged, so that the whole time is covered.
        """

    @abstractmethod
    def newest(self, streams: Sequence[str]) -> dict[str, StreamSample]:
        """Return the newest sample of each of these streams that has one."""

    @abstractmethod
    def purge(self, before: dt.datetime, stream: str | None = None) -> int:
        """Delete the samples from before that time, and return how many."""


class NullSampleStore(SampleStore):
    """Replaces the store where there is none, as next to a run log in a bucket: it stores and has nothing."""

    def __init__(self, location: str) -> None:
        self.location = location

    def add(self, sample: StreamSample) -> None:
        return None

    def read(self, stream: str, since: dt.datetime, limit: int = MOST_SAMPLES) -> tuple[StreamSample, ...]:
        return ()

    def newest(self, streams: Sequence[str]) -> dict[str, StreamSample]:
        return {}

    def purge(self, before: dt.datetime, stream: str | None = None) -> int:
        return 0


def add_phases(phases: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of each phase, added up."""
    total: dict[str, float] = {}
    for each in phases:
        for name, seconds in each.items():
            total[name] = round(total.get(name, 0.0) + seconds, 3)
    return total
