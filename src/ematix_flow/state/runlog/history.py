"""What a page shows of a long history: one page of runs, the newest runs of many pipelines, rows a day.

Owns the values and the contract. Each question has a bounded cost, however many runs the log has: a filter
that no index answers examines a limited number of runs, and the page says where to go on.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.errors import UsageError
from ematix_flow.state.runlog.records import RunRecord, RunStatus, check_status
from ematix_flow.state.times import aware_utc

# runs with one of these statuses may have an error message
STATUSES_WITH_ERRORS: tuple[RunStatus, ...] = ("failed", "interrupted", "cancelled", "skipped", "locked")


@dataclass(frozen=True)
class RunCursor:
    """The last run of a page; the next page begins after it."""

    started_at: dt.datetime
    run_id: str

    def __str__(self) -> str:
        plain = f"{self.started_at.isoformat()} {self.run_id}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, record: RunRecord) -> RunCursor:
        return cls(record.started_at, record.run_id)

    @classmethod
    def parse(cls, text: str) -> RunCursor:
        """Return the cursor of a text that `str` made. Raises UsageError for any other text."""
        try:
            plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            started_at, _, run_id = plain.decode().partition(" ")
            return cls(aware_utc("a cursor", dt.datetime.fromisoformat(started_at)), run_id)
        except (ValueError, binascii.Error) as error:
            raise UsageError(
                f"{text[:100]!r} is not a cursor", next_step="give the value of  next  of the page before"
            ) from error


@dataclass(frozen=True)
class RunFilter:
    """Which runs a page has. ``since`` belongs to the range, ``until`` does not.

    ``text`` is searched in the type and the message of errors; the case of ASCII letters does not matter.
    """

    pipeline: str | None = None
    status: RunStatus | None = None
    trigger: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if self.status is not None:
            check_status(self.status)
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, aware_utc(name, moment))

    @property
    def needs_records(self) -> bool:
        """Whether runs must be read to know if they match: no index and no name answers it."""
        return self.trigger is not None or self.text is not None

    def matches(self, record: RunRecord) -> bool:
        return (
            (self.pipeline is None or record.pipeline == self.pipeline)
            and (self.status is None or record.status == self.status)
            and (self.trigger is None or record.trigger == self.trigger)
            and (self.since is None or record.started_at >= self.since)
            and (self.until is None or record.started_at < self.until)
            and (self.text is None or self._matches_text(record))
        )

    def _matches_text(self, record: RunRecord) -> bool:
        wanted = (self.text or "").lower()
        return any(wanted in (text or "").lower() for text in (record.error_type, record.error_message))


@dataclass(frozen=True)
class RunPage:
    """Runs, newest first. ``next`` is None if there are no more.

    A page may have fewer runs than asked for, or none, and still a ``next``: that many runs were examined.
    """

    records: tuple[RunRecord, ...]
    next: RunCursor | None


@dataclass(frozen=True)
class RunSummary:
    """One run in a row of bars. An object store does not tell end and rows of many runs: they are None."""

    run_id: str
    pipeline: str
    status: RunStatus
    started_at: dt.datetime
    finished_at: dt.datetime | None = None
    rows_written: int | None = None

    @classmethod
    def of(cls, record: RunRecord) -> RunSummary:
        known = [each for each in (record.rows.inserted, record.rows.updated) if each is not None]
        return cls(
            record.run_id,
            record.pipeline,
            record.status,
            record.started_at,
            record.finished_at,
            sum(known) if known else None,
        )


class RunHistory(ABC):
    """The questions of a page to a run log."""

    @abstractmethod
    def page(self, wanted: RunFilter, after: RunCursor | None = None, limit: int = 50) -> RunPage:
        """Return at most ``limit`` runs, newest first, that come after the cursor.

        A SQL database leaves the plans of runs out of every list; `get` has the plan of one.
        """

    @abstractmethod
    def following(self, after: RunRecord, limit: int) -> tuple[RunRecord, ...]:
        """Return the runs of the same pipeline that started later, oldest first."""

    @abstractmethod
    def runs_of_slots(
        self, since: dt.datetime, until: dt.datetime, limit: int
    ) -> dict[tuple[str, dt.datetime], str]:
        """Return the last run of each slot that fired in this time, by pipeline and fire time.

        Of the newest ``limit`` runs of them, and of those that started within two days after the time. An
        object store does not tell it: nothing.
        """

    @abstractmethod
    def newest_summaries(self, since: dt.datetime | None, limit: int) -> tuple[RunSummary, ...]:
        """Return the newest ``limit`` runs of all pipelines that started at ``since`` or later."""

    @abstractmethod
    def recent(self, pipelines: Sequence[str], each: int) -> dict[str, tuple[RunSummary, ...]]:
        """Return the newest ``each`` runs of each pipeline, newest first, with any outcome.

        Pipelines that never ran are left out. It is a few queries, however many pipelines are given.
        """

    @abstractmethod
    def rows_written(
        self, since: dt.datetime, until: dt.datetime, pipelines: Sequence[str] | None = None
    ) -> dict[str, int] | None:
        """Return the rows inserted and updated by runs of each pipeline that started in this time.

        None if the store cannot tell without reading every run.
        """
