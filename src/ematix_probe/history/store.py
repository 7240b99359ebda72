"""`RunHistory`: records runs of probes and reads them back, wherever they are kept.

A path is an SQLite file. A URL is that of a database or of a bucket, as for the run log of pipelines.
"""

from __future__ import annotations

import datetime as dt
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_probe.errors import HistoryError
from ematix_probe.history.locations import open_store
from ematix_probe.history.records import RecordedRun, bounded_name, recorded_run
from ematix_probe.redaction import mask

if TYPE_CHECKING:
    from types import TracebackType

    from ematix_probe.report import RunReport

MOST_RUNS = 10_000  # of one answer
_LARGEST_ID = 2**63 - 1


@dataclass(frozen=True)
class AssertionTrend:
    """One assertion over time, oldest first: an entry per run, None where the run did not have it."""

    name: str
    verdicts: Sequence[str | None]
    measures: Mapping[str, Sequence[Any]]
    message: str = ""  # the newest


@dataclass(frozen=True)
class Trend:
    """The newest runs of a probe, oldest first, and its assertions over these runs."""

    probe: str
    runs: Sequence[RecordedRun]
    assertions: Sequence[AssertionTrend]


class RunHistory:
    """The history at a path or URL. Nothing is opened before it is used, and several processes may use it.

    Rows of the data are not recorded, because they may be personal data, unless ``samples`` is true: then
    the samples of failing assertions are.
    """

    def __init__(self, path_or_url: str | os.PathLike[str], *, samples: bool = False) -> None:
        self._given = os.fspath(path_or_url)
        self._store = open_store(self._given)
        self._samples = samples

    @property
    def location(self) -> str:
        """Where it is, without secrets."""
        return self._store.location

    @property
    def option(self) -> str:
        """The option that names it on the command line; without its place where that has secrets."""
        return f"--history {shlex.quote(self._given)}" if mask(self._given) == self._given else "--history …"

    def record(self, report: RunReport) -> int:
        """Record a run in one transaction; returns its id."""
        return self._store.add(recorded_run(report, with_samples=self._samples))

    def runs(
        self, probe: str | None = None, *, limit: int = 20, before: int | None = None
    ) -> Sequence[RecordedRun]:
        """The newest runs. ``before``, an id, continues after the last run of an earlier answer."""
        return self._store.newest(_name(probe), _bounded(limit), _before(before))

    def run(self, id: int) -> RecordedRun:
        """One run with its assertions. HistoryError if there is none."""
        found = self._store.get(id) if 0 < id <= _LARGEST_ID else None
        if found is None:
            raise HistoryError(
                f"the history {self.location} has no run {id}",
                next_step=f"ematix-probe runs list {self.option}  shows the runs that there are",
            )
        return found

    def past(self, probe_name: str, assertion_name: str, limit: int = 30) -> list[Mapping[str, Any]]:
        """The measures of an assertion in the last runs, newest first; without runs that measured nothing."""
        return list(self._store.past(bounded_name(probe_name), bounded_name(assertion_name), _bounded(limit)))

    def trend(self, probe: str, assertion: str | None = None, *, limit: int = 30) -> Trend:
        """The last runs of a probe, assertion by assertion. HistoryError if it has none."""
        runs = list(reversed(self._store.details(bounded_name(probe), _bounded(limit))))
        if not runs:
            raise _unknown_probe(self, probe)
        names = list(dict.fromkeys(each.name for run in reversed(runs) for each in run.assertions))
        if assertion is not None:
            from ematix_probe.suggestions import did_you_mean

            if bounded_name(assertion) not in names:
                raise HistoryError(
                    f"the last {len(runs)} runs of {probe!r} have no assertion {assertion!r}"
                    f"{did_you_mean(assertion, names)}",
                    next_step=f"its assertions are {', '.join(names)}",
                )
            names = [bounded_name(assertion)]
        return Trend(probe, runs, [_trend(name, runs) for name in names])

    def probes(self) -> Sequence[str]:
        return self._store.probes()

    def prune(
        self, *, keep: int = 1, older_than: dt.timedelta | None = None, probe: str | None = None
    ) -> int:
        """Delete runs of each probe, but its newest ``keep``; with ``older_than``, only those that are older.

        Returns how many were deleted.
        """
        before = None if older_than is None else dt.datetime.now(dt.timezone.utc) - older_than
        names = self.probes() if probe is None else [bounded_name(probe)]
        return sum(self._store.prune(name, max(keep, 0), before) for name in names)

    def prepare(self) -> None:
        """Open the store for writing, and make its tables if there are none. HistoryError if that fails."""
        self._store.prepare()

    def check(self) -> str:
        """Ask the store, without changing it; returns what it holds, in words."""
        return self._store.check()

    def close(self) -> None:
        """There is nothing to close between two calls; for ``with``."""

    def __enter__(self) -> RunHistory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunHistory({self.location!r})"


def _trend(name: str, runs: Sequence[RecordedRun]) -> AssertionTrend:
    found = [next((each for each in run.assertions if each.name == name), None) for run in runs]
    measures = list(dict.fromkeys(key for each in found if each for key in each.measures))
    return AssertionTrend(
        name,
        [each.verdict if each else None for each in found],
        {key: [each.measures.get(key) if each else None for each in found] for key in measures},
        next((each.message for each in reversed(found) if each), ""),
    )


def _unknown_probe(history: RunHistory, probe: str) -> HistoryError:
    from ematix_probe.suggestions import did_you_mean

    names = history.probes()
    step = f"it has runs of {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else None
    return HistoryError(
        f"the history {history.location} has no run of {probe!r}{did_you_mean(probe, names)}",
        next_step=step or f"record one:  ematix-probe run PATH {history.option}",
    )


def _name(probe: str | None) -> str | None:
    return None if probe is None else bounded_name(probe)


def _before(id: int | None) -> int | None:
    return None if id is None else max(0, min(id, _LARGEST_ID))


def _bounded(limit: int) -> int:
    return max(0, min(limit, MOST_RUNS))


def default_history(given: str | Path | None, env: Mapping[str, str]) -> str | None:
    """The history that is asked for: the given one, else that of EMATIX_PROBE_HISTORY, else none."""
    return str(given) if given else env.get("EMATIX_PROBE_HISTORY") or None
