"""The run log: which runs there were, and how each ended.

Owns the contract, where the log lies, and what happens when it cannot be written: a run warns once and
goes on, a command that reads the log fails. How records are stored is `runlog_sql`'s subject, which is
imported only when a log is opened.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ematix_flow.config.settings import text_setting
from ematix_flow.errors import ConfigError, UsageError, did_you_mean
from ematix_flow.spec.redaction import mask
from ematix_flow.state.records import RunRecord, RunStatus
from ematix_flow.state.root import absolute, state_root

URL_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"
PATH_VARIABLE = "EMATIX_FLOW_RUN_LOG_PATH"

_KINDS = ("sqlite", "memory", "postgres", "mysql", "duckdb")
_LATER = ("s3", "azureblob", "gcs")

_log = logging.getLogger(__name__)
_warned: set[str] = set()
_warned_lock = threading.Lock()


class RunLog(ABC):
    """One run log, open. Writing never stops a run: what cannot be written is warned about, once.

    Several processes and threads may use one log at the same time. What `start` wrote survives the
    death of the process.
    """

    location: str

    @abstractmethod
    def start(self, record: RunRecord) -> None:
        """Record a run that begins now. Its id must be new."""

    @abstractmethod
    def take_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        """Record the key under which a run, whose locks are held now, is going to load.

        For the targets that are ``overdue`` the next run does not hold the others back.
        """

    @abstractmethod
    def finish(
        self,
        run_id: str,
        status: RunStatus,
        *,
        path: str | None = None,
        rows_read: int | None = None,
        rows_inserted: int | None = None,
        rows_updated: int | None = None,
        rows_deleted: int | None = None,
        rows_unchanged: int | None = None,
        source_from: str | None = None,
        source_to: str | None = None,
        error: BaseException | None = None,
        metrics: Mapping[str, Any] | None = None,
        finished_at: dt.datetime | None = None,
    ) -> bool:
        """The run's own word on how it ended; what is None stays as it was started.

        True when it was written. A run that another process had settled as interrupted may still say
        so; a run that had finished stays as it is.
        """

    @abstractmethod
    def settle(self, run_id: str, status: RunStatus, reason: str) -> bool:
        """Someone else's word on a run that died: true when it still was ``running`` and now is not."""

    @abstractmethod
    def add_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        """Add to what a run has told, in the place of what is there under the same keys."""

    @abstractmethod
    def get(self, run_id: str) -> RunRecord:
        """The run with this id, or whose id alone begins so. UsageError when none or several do."""

    @abstractmethod
    def list(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 20,
        since: dt.datetime | None = None,
    ) -> tuple[RunRecord, ...]:
        """The newest runs first, at most ``limit``, started at ``since`` or later."""

    @abstractmethod
    def running(self, pipeline: str, target: str | None = None) -> tuple[RunRecord, ...]:
        """Runs without an end, newest first, at most 100: alive, or killed before they could say.

        Asked by a run that holds the pipeline's lock, it lists the ones to settle.
        """

    @abstractmethod
    def last_batch(self, pipeline: str) -> RunRecord | None:
        """The newest run of a pipeline that got as far as having a batch."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store. The log can be opened again."""

    def newest(self, pipelines: Sequence[str], each: int = 1) -> dict[str, tuple[RunRecord, ...]]:
        """The newest runs of each pipeline, at most so many of each, newest first."""
        return {pipeline: self.list(pipeline, limit=each) for pipeline in pipelines}

    def last(self, pipeline: str) -> RunRecord | None:
        """The newest run of a pipeline, however it ended."""
        newest = self.list(pipeline, limit=1)
        return newest[0] if newest else None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NullRunLog(RunLog):
    """Stands in for a log that cannot be opened: forgets what is written, refuses to be read.

    A starting run may ask what is ``running`` and which batch was the last, and hears nothing, so that
    the run goes on.
    """

    def __init__(self, location: str, reason: ConfigError) -> None:
        self.location = location
        self.reason = reason

    def start(self, record: RunRecord) -> None:
        return None

    def take_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        return None

    def finish(self, run_id: str, status: RunStatus, **_: Any) -> bool:
        return False

    def settle(self, run_id: str, status: RunStatus, reason: str) -> bool:
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

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class RunLogLocation:
    """Where a run log lies. For memory ``path`` is None and ``name`` tells one log from another."""

    kind: Literal["sqlite", "memory"]
    path: Path | None = None
    name: str = ""

    def __str__(self) -> str:
        return f"sqlite://{self.path}" if self.kind == "sqlite" else f"memory://{self.name}"


def open_run_log(url: str | None = None, *, env: Mapping[str, str], reading: bool = False) -> RunLog:
    """The run log at ``url``, else where the environment says, else in the state root.

    A log that cannot be opened is one warning and a `NullRunLog`; with ``reading``, an error.
    """
    from ematix_flow.state.runlog_sql import open_store

    location = run_log_location(url, env)
    try:
        return open_store(location)
    except ConfigError as unavailable:
        if reading:
            raise
        warn_once(str(location), f"{unavailable.what}. Runs go on, but are not recorded")
        return NullRunLog(str(location), unavailable)


def project_run_log(env: Mapping[str, str]) -> str | None:
    """``[run_log] url`` of the project's file, for when neither an option nor the environment says."""
    return None if env.get(URL_VARIABLE) or env.get(PATH_VARIABLE) else text_setting("run_log", "url")


def run_log_location(url: str | None, env: Mapping[str, str]) -> RunLogLocation:
    """``sqlite://path`` (absolute when the path begins with a slash), a bare path, or ``memory://``."""
    given = url or env.get(URL_VARIABLE)
    if not given:
        path = env.get(PATH_VARIABLE)
        return RunLogLocation("sqlite", absolute(path, env) if path else state_root(env) / "run_log.db")
    scheme, separator, rest = given.partition("://")
    if not separator:
        return RunLogLocation("sqlite", absolute(given, env))
    if scheme == "memory" or (scheme == "sqlite" and rest.strip("/") == ":memory:"):
        return RunLogLocation("memory", name="" if scheme == "sqlite" else rest)
    if scheme == "sqlite" and rest.strip("/"):
        # four slashes, as SQLAlchemy writes an absolute path, mean the same as three
        return RunLogLocation("sqlite", absolute(re.sub("^/+", "/", rest), env))
    if scheme == "sqlite":
        raise ConfigError(
            f"the run log URL {given!r} has no path", next_step="write sqlite://path/to/run_log.db"
        )
    problem = "is not supported yet" if scheme in _LATER else "is not a kind of run log"
    raise ConfigError(
        f"a run log at {given!r}: {scheme!r} {problem}."
        + (
            ""
            if scheme in _LATER
            else did_you_mean(scheme, ("sqlite", "memory", "postgres", "mysql", "duckdb"))
        ),
        next_step="use sqlite://path/to/run_log.db, postgres://…, mysql://…, duckdb://… or memory://",
    )


def no_such_run(run_id: str) -> UsageError:
    return UsageError(f"the run log has no run {run_id!r}", next_step="flow runs list")


def warn_once(location: str, message: str) -> None:
    """One warning per place and process, however many runs it hits."""
    with _warned_lock:
        if location in _warned:
            return
        _warned.add(location)
    _log.warning("%s", mask(message))
