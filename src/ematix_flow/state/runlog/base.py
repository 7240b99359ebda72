"""The run log: which runs there were, and how each ended.

Owns the contract, the location of the log, and what happens if it cannot be written: a run warns once and
goes on, a command that reads the log fails. `runlog.sql` and `runlog.objects` store the records;
`state.local_stores` opens a log of this machine.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import re
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ematix_flow import fault_points
from ematix_flow.config.project_file import text_setting
from ematix_flow.errors import ConfigError, FlowError, UsageError, did_you_mean
from ematix_flow.spec.connections.urls import mask_url
from ematix_flow.spec.durations import try_parse_duration
from ematix_flow.spec.location import NamedLocation, SourceLocation
from ematix_flow.spec.row_counts import UNKNOWN_ROWS, RowCounts
from ematix_flow.state.runlog.history import RunCursor, RunFilter, RunHistory, RunPage, RunSummary
from ematix_flow.state.runlog.records import (
    RunRecord,
    RunStatus,
    bounded_text,
    check_finished,
    count_columns,
    mask_metrics,
)
from ematix_flow.state.state_root import absolute_path, state_root
from ematix_flow.state.store_urls import parse_flag, split_options
from ematix_flow.state.times import aware_utc, utc_now
from ematix_probe.redaction import mask

URL_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"
PATH_VARIABLE = "EMATIX_FLOW_RUN_LOG_PATH"

_KINDS = ("sqlite", "memory", "postgres", "mysql", "duckdb", "s3", "gs", "azureblob")

_log = logging.getLogger(__name__)
_warned: set[str] = set()
_warned_lock = threading.Lock()


class RunLog(RunHistory):
    """An open run log. Writing never stops a run: a failed write is one warning.

    Several processes and threads may use one log at the same time. What `start` wrote survives the death of
    the process.
    """

    location: str

    @abstractmethod
    def start(self, record: RunRecord) -> None:
        """Record a run that begins now. Its id must be new."""

    def start_all(self, records: Sequence[RunRecord]) -> None:
        """Record all of them at once. Their ids must be new."""
        for record in records:
            self.start(record)

    @abstractmethod
    def record_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        """Record the batch key under which a run, whose locks are held now, is going to load.

        The next run does not wait for targets that are ``overdue``.
        """

    @abstractmethod
    def record_engine(self, run_id: str, engine: str) -> None:
        """Record the engine that a run has just started."""

    def finish(
        self,
        run_id: str,
        status: RunStatus,
        *,
        path: str | None = None,
        rows: RowCounts = UNKNOWN_ROWS,
        source_from: str | None = None,
        source_to: str | None = None,
        engine: str | None = None,
        error: BaseException | None = None,
        where: SourceLocation | None = None,
        metrics: Mapping[str, Any] | None = None,
        finished_at: dt.datetime | None = None,
    ) -> bool:
        """Record how a run ended, called by the run itself; what is None stays as it was.

        ``where`` is the declaration, for an ``error`` without its own location. True if it was written. A run
        that another process had settled as interrupted may still finish; a finished run stays as it is.
        """
        check_finished(status)
        optional: dict[str, Any] = {
            "path": path,
            **count_columns(rows),
            "source_from": None if source_from is None else bounded_text(source_from),
            "source_to": None if source_to is None else bounded_text(source_to),
            "engine": engine,
            "metrics": None if metrics is None else mask_metrics(metrics),
        }
        values = {name: value for name, value in optional.items() if value is not None}
        # always all of these: nothing of a process that settled this run may remain
        values["finished_at"] = aware_utc("finished_at", finished_at or utc_now())
        values |= error_values(error, where)
        fault_points.point("runlog.before_finish")
        return self._end(run_id, status, values, ("running", "interrupted"))

    def settle(
        self,
        run_id: str,
        status: RunStatus,
        reason: str,
        *,
        rows: RowCounts = UNKNOWN_ROWS,
        source_from: str | None = None,
        source_to: str | None = None,
    ) -> bool:
        """Record the end of a dead run, called by another process: true if it was still ``running``.

        Rows and bounds of its source are given as far as a ledger knows them.
        """
        check_finished(status)
        known: dict[str, Any] = {**count_columns(rows), "source_from": source_from, "source_to": source_to}
        values = {name: value for name, value in known.items() if value is not None}
        values |= {"finished_at": utc_now(), "error_message": bounded_text(reason)}
        return self._end(run_id, status, values, ("running",))

    @abstractmethod
    def _end(
        self, run_id: str, status: RunStatus, values: Mapping[str, Any], from_status: Sequence[str]
    ) -> bool:
        """End a run that has one of these statuses; true if it was changed. ``values`` are by column."""

    @abstractmethod
    def add_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        """Add metrics to a run; existing keys are replaced."""

    @abstractmethod
    def get(self, run_id: str) -> RunRecord:
        """Return the run with this id or unique prefix. Raises UsageError if none or several match."""

    @abstractmethod
    def list(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 20,
        since: dt.datetime | None = None,
    ) -> tuple[RunRecord, ...]:
        """Return runs, newest first: at most ``limit``, started at ``since`` or later."""

    @abstractmethod
    def running(self, pipeline: str, target: str | None = None) -> tuple[RunRecord, ...]:
        """Return runs without an end, newest first, at most 100: alive, or killed.

        For a run that holds the pipeline's lock, these are the runs to settle.
        """

    @abstractmethod
    def last_batch(self, pipeline: str) -> RunRecord | None:
        """Return the newest run of a pipeline that has a batch key."""

    @abstractmethod
    def newest(self, pipelines: Sequence[str], each: int = 1) -> dict[str, tuple[RunRecord, ...]]:
        """Return the newest runs of each pipeline, newest first: at most ``each``, down to its last success.

        Pipelines that never ran are left out. It is one query, however many pipelines are given.
        """

    @abstractmethod
    def save_output(self, run_id: str, text: str) -> None:
        """Store the end of a run's output, in place of what was stored before."""

    @abstractmethod
    def output(self, run_id: str) -> str | None:
        """Return the stored output of a run; None if there is none."""

    @abstractmethod
    def purge(
        self, before: dt.datetime, *, keep: int = 1, pipeline: str | None = None, most: int | None = None
    ) -> int:
        """Delete runs that started before ``before``, at most ``most``, and return how many.

        Runs that are still needed stay: of each pipeline the newest ``keep`` runs, the newest success, the
        newest batch, and every run that has not ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store. The log can be opened again."""

    def last(self, pipeline: str) -> RunRecord | None:
        """Return the newest run of a pipeline, with any outcome."""
        newest = self.list(pipeline, limit=1)
        return newest[0] if newest else None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NullRunLog(RunLog):
    """Replaces a log that cannot be opened: ignores writes and refuses reads.

    A starting run may ask for ``running`` runs and the last batch, and gets nothing, so that it goes on.
    """

    def __init__(self, location: str, reason: FlowError) -> None:
        self.location = location
        self.reason = reason

    def start(self, record: RunRecord) -> None:
        return None

    def record_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        return None

    def record_engine(self, run_id: str, engine: str) -> None:
        return None

    def _end(
        self, run_id: str, status: RunStatus, values: Mapping[str, Any], from_status: Sequence[str]
    ) -> bool:
        return False

    def add_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        return None

    def get(self, run_id: str) -> RunRecord:
        raise self.reason

    def list(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 20,
        since: dt.datetime | None = None,
    ) -> tuple[RunRecord, ...]:
        raise self.reason

    def running(self, pipeline: str, target: str | None = None) -> tuple[RunRecord, ...]:
        return ()

    def last_batch(self, pipeline: str) -> RunRecord | None:
        return None

    def newest(self, pipelines: Sequence[str], each: int = 1) -> dict[str, tuple[RunRecord, ...]]:
        raise self.reason

    def page(self, wanted: RunFilter, after: RunCursor | None = None, limit: int = 50) -> RunPage:
        raise self.reason

    def following(self, after: RunRecord, limit: int) -> tuple[RunRecord, ...]:
        raise self.reason

    def runs_of_slots(
        self, since: dt.datetime, until: dt.datetime, limit: int
    ) -> dict[tuple[str, dt.datetime], str]:
        raise self.reason

    def newest_summaries(self, since: dt.datetime | None, limit: int) -> tuple[RunSummary, ...]:
        raise self.reason

    def recent(self, pipelines: Sequence[str], each: int) -> dict[str, tuple[RunSummary, ...]]:
        raise self.reason

    def rows_written(
        self, since: dt.datetime, until: dt.datetime, pipelines: Sequence[str] | None = None
    ) -> dict[str, int] | None:
        raise self.reason

    def save_output(self, run_id: str, text: str) -> None:
        return None

    def output(self, run_id: str) -> str | None:
        raise self.reason

    def purge(
        self, before: dt.datetime, *, keep: int = 1, pipeline: str | None = None, most: int | None = None
    ) -> int:
        return 0

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class RunLogLocation:
    """The location of a run log. For memory ``path`` is None and ``name`` distinguishes the logs."""

    kind: Literal["sqlite", "memory"]
    path: Path | None = None
    name: str = ""
    create_tables: bool = True

    def __str__(self) -> str:
        if self.kind == "memory":
            return f"memory://{self.name}"
        return f"sqlite://{self.path}{'' if self.create_tables else '?create_tables=false'}"


def project_run_log(env: Mapping[str, str]) -> str | None:
    """Return ``[run_log] url`` of the project's file, if the environment does not set it."""
    if env.get(URL_VARIABLE) or env.get(PATH_VARIABLE):
        return None
    return text_setting("run_log", "url", env=env)


def run_retention() -> dt.timedelta | None:
    """Return ``[run_log] keep`` of the project's file, such as ``90d``; None: runs are kept for ever."""
    text = text_setting("run_log", "keep")
    found = None if text is None else try_parse_duration(text)
    if text is not None and not found:
        raise ConfigError(
            f"[run_log] keep = {text!r} is not a duration", next_step='write  keep = "90d"  or leave it out'
        )
    return found


def run_log_location(url: str | None, env: Mapping[str, str]) -> RunLogLocation:
    """Parse ``sqlite://path`` (absolute if the path begins with a slash), a bare path, or ``memory://``."""
    given = url or env.get(URL_VARIABLE)
    if not given:
        path = env.get(PATH_VARIABLE)
        return RunLogLocation("sqlite", absolute_path(path, env) if path else state_root(env) / "run_log.db")
    plain, own = split_options(given, ("create_tables",), only=True) if "?" in given else (given, {})
    create = parse_flag("create_tables", own.get("create_tables"))
    scheme, separator, rest = plain.partition("://")
    if not separator:
        return RunLogLocation("sqlite", absolute_path(plain, env), create_tables=create)
    if scheme == "memory" or (scheme == "sqlite" and rest.strip("/") == ":memory:"):
        return RunLogLocation("memory", name="" if scheme == "sqlite" else rest)
    if scheme == "sqlite" and rest.strip("/"):
        # four slashes, as SQLAlchemy writes an absolute path, mean the same as three
        return RunLogLocation("sqlite", absolute_path(re.sub("^/+", "/", rest), env), create_tables=create)
    if scheme == "sqlite":
        raise ConfigError(
            f"the run log URL {given!r} has no path",
            where=_url_place(url),
            next_step="write sqlite://path/to/run_log.db",
        )
    raise ConfigError(
        f"a run log at {mask_url(given)!r}: {scheme!r} is not a kind of run log."
        f"{did_you_mean(scheme, _KINDS)}",
        where=_url_place(url),
        next_step="use sqlite://path/to/run_log.db, postgres://…, mysql://…, duckdb://…, s3://…, gs://…, "
        "azureblob://… or memory://",
    )


def _url_place(url: str | None) -> NamedLocation:
    return NamedLocation.of("the URL of the run log" if url else f"the variable {URL_VARIABLE}")


def error_values(error: BaseException | None, where: SourceLocation | None = None) -> dict[str, str | None]:
    """Return the fields of a record for an error, without secrets; all None if there is none."""
    if error is None:
        return {"error_type": None, "error_message": None, "error_where": None}
    place = getattr(error, "where", None) or where
    return {
        "error_type": type(error).__name__,
        "error_message": bounded_text(str(error)),
        "error_where": None if place is None else bounded_text(str(place)),
    }


def take_until_success(records: Iterable[RunRecord], most: int) -> tuple[RunRecord, ...]:
    """Return the first records, at most ``most``, up to the first success."""
    found: list[RunRecord] = []
    for record in itertools.islice(records, most):
        found.append(record)
        if record.status == "succeeded":
            break
    return tuple(found)


def no_such_run(run_id: str) -> UsageError:
    return UsageError(f"the run log has no run {run_id!r}", next_step="flow runs list")


def warn_once(location: str, message: str) -> None:
    """Log one warning per location and process, however many runs it concerns."""
    with _warned_lock:
        if location in _warned:
            return
        _warned.add(location)
    _log.warning("%s", mask(message))
