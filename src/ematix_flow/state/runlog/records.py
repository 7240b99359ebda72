"""The record of one run in the run log: a frozen value, and the values of its status.

Does not know where records are stored.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from ematix_flow.spec.row_counts import UNKNOWN_ROWS, RowCounts
from ematix_flow.state.times import aware_utc, utc_now
from ematix_probe.redaction import mask

RunStatus = Literal["running", "succeeded", "skipped", "locked", "failed", "interrupted", "cancelled"]

LONGEST_TEXT = 10_000
LONGEST_OUTPUT = 200_000
MOMENTS = ("slot", "started_at", "finished_at")
_COUNT_COLUMNS = {
    "rows_read": "read",
    "rows_inserted": "inserted",
    "rows_updated": "updated",
    "rows_deleted": "deleted",
    "rows_unchanged": "unchanged",
}


def new_run_id() -> str:
    """Return a random run id, so that a few characters are enough to name one run."""
    return uuid.uuid4().hex


def check_status(status: str) -> None:
    if status not in get_args(RunStatus):
        raise ValueError(f"status {status!r} is not one of {', '.join(get_args(RunStatus))}")


def check_finished(status: str) -> None:
    check_status(status)
    if status == "running":
        raise ValueError("a run cannot end with the status 'running'")


def bounded_text(text: str) -> str:
    """Return a text as it may be stored and shown: without secrets, and of a bounded length."""
    # no database stores half a surrogate pair, as in an undecodable file name
    masked = mask(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return masked if len(masked) <= LONGEST_TEXT else masked[: LONGEST_TEXT - 1] + "…"


def bounded_output(text: str) -> str:
    """Return the end of a run's output as it may be stored: without secrets, and of a bounded length."""
    masked = mask(text).encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\0")
    return masked if len(masked) <= LONGEST_OUTPUT else "…" + masked[1 - LONGEST_OUTPUT :]


def mask_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics as JSON values, with secrets masked in every text."""
    return {mask(str(key)): _mask_value(value) for key, value in metrics.items()}


def _mask_value(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return mask_metrics(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_mask_value(item) for item in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return mask(str(value))  # JSON has no Decimal, datetime or NaN


def count_columns(rows: RowCounts) -> dict[str, int | None]:
    """Return the columns of a run log for these counts. A run log does not keep outranked rows."""
    return {column: getattr(rows, name) for column, name in _COUNT_COLUMNS.items()}


def _counts_of(columns: Mapping[str, Any]) -> RowCounts:
    counts = {name: columns.get(column) for column, name in _COUNT_COLUMNS.items()}
    return replace(UNKNOWN_ROWS, **counts)


@dataclass(frozen=True)
class RunRecord:
    """One attempt at a pipeline, as the run log stores it.

    All times are aware and in UTC; ``slot`` is the fire time of a scheduled run. ``batch`` is the batch key,
    None before it is chosen; ``overdue`` are targets that earlier runs had left out too. Only a finished run
    has ``finished_at``. ``error_where`` is the line of the declaration, ``engine`` what computed the run
    (``none`` if only the databases worked), ``code_version`` the version of this package and of the project.
    """

    run_id: str
    pipeline: str
    target: str
    mode: str
    path: str | None = None
    trigger: str = "cli"
    slot: dt.datetime | None = None
    attempt: int = 1
    batch: str | None = None
    overdue: tuple[str, ...] = ()
    status: RunStatus = "running"
    started_at: dt.datetime = field(default_factory=utc_now)
    finished_at: dt.datetime | None = None
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    rows: RowCounts = UNKNOWN_ROWS
    source_from: str | None = None
    source_to: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_where: str | None = None
    engine: str | None = None
    code_version: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("run_id", "pipeline"):
            if not getattr(self, name):
                raise ValueError(f"a run record needs a {name}")
        check_status(self.status)
        if (self.status == "running") is not (self.finished_at is None):
            raise ValueError(f"status {self.status!r} contradicts finished_at={self.finished_at}")
        for name in MOMENTS:
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, aware_utc(name, moment))
        for name in ("source_from", "source_to", "error_message", "error_where", "engine", "code_version"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, bounded_text(text))
        object.__setattr__(self, "overdue", tuple(self.overdue or ()))  # JSON and older logs: a list, None
        object.__setattr__(self, "metrics", mask_metrics(self.metrics))

    @property
    def duration(self) -> dt.timedelta | None:
        """The duration of the run; None while it runs."""
        return None if self.finished_at is None else self.finished_at - self.started_at

    @property
    def ended_well(self) -> bool:
        """Whether the run loaded, or found nothing new.

        A run that was skipped or found a lock did not end well.
        """
        return self.status == "succeeded" or (self.status == "skipped" and self.error_message is None)

    def to_columns(self) -> dict[str, Any]:
        """Return the values of the record by the columns of a run log."""
        columns: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            columns |= count_columns(value) if each.name == "rows" else {each.name: value}
        return columns

    def to_json(self) -> dict[str, Any]:
        """Return the record for ``--output json``: times as ISO 8601, and the duration in seconds."""
        values = {
            name: value.isoformat() if isinstance(value, dt.datetime) else value
            for name, value in self.to_columns().items()
        }
        values["duration_seconds"] = None if self.duration is None else self.duration.total_seconds()
        return values

    @classmethod
    def from_store(cls, values: Mapping[str, Any]) -> RunRecord:
        """Return the record of stored values, which were checked and masked when written: this saves time."""
        record = object.__new__(cls)
        for name, value in values.items():
            if name not in _COUNT_COLUMNS:
                object.__setattr__(record, name, value)
        object.__setattr__(record, "rows", _counts_of(values))
        object.__setattr__(record, "overdue", tuple(values["overdue"] or ()))
        return record

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunRecord:
        """Return the record for the output of `to_json`; unknown names are ignored."""
        moments = {
            name: dt.datetime.fromisoformat(document[name])
            for name in MOMENTS
            if document.get(name) is not None
        }
        return cls.from_columns({**document, **moments})

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> RunRecord:
        """Return the record for the output of `to_columns`; unknown names are ignored."""
        known = {each.name: columns[each.name] for each in fields(cls) if each.name in columns}
        return cls(**{**known, "rows": _counts_of(columns)})
