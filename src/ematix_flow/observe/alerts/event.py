"""The content of an alert: a frozen value, and its text for a person."""

from __future__ import annotations

import datetime as dt
import re
import socket
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ematix_flow.state.runlog.records import bounded_text
from ematix_flow.state.times import aware_utc, utc_now

AlertKind = Literal["failed", "gave_up", "recovered", "quality_failed", "sla_breached", "test"]
FRESHNESS = "freshness:"  # before a pipeline's name, of the records that it is stale
KINDS: tuple[str, ...] = get_args(AlertKind)

_HEADINGS = {
    "failed": "failed",
    "gave_up": "failed, and is not tried again",
    "recovered": "recovered",
    "quality_failed": "loaded data that fails its checks",
    "sla_breached": "is stale",
    "test": "is a test: nothing failed",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_LONGEST_MESSAGE = 2_000


@dataclass(frozen=True)
class AlertEvent:
    """One alert, such as a failed or a stale pipeline. Its texts contain no secrets and no line breaks."""

    kind: AlertKind
    pipeline: str
    timestamp: dt.datetime = field(default_factory=utc_now)
    error_message: str = ""
    error_type: str = ""
    attempt_count: int = 0
    max_attempts: int = 0
    gave_up: bool = False
    run_id: str = ""
    slot: dt.datetime | None = None
    where: str = ""
    state: str = ""
    next_step: str = ""
    host: str = field(default_factory=socket.gethostname)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)  # the same when it is sent twice

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"an alert is one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("timestamp", "slot"):
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, aware_utc(name, moment))
        for name in ("pipeline", "error_message", "error_type", "run_id", "where", "state", "next_step"):
            object.__setattr__(self, name, _one_line(getattr(self, name)))

    @property
    def summary(self) -> str:
        """One line: which pipeline, what happened, why."""
        heading = f"{self.pipeline} {_HEADINGS[self.kind]}"
        if self.kind == "gave_up" and self.attempt_count > 1:
            heading = f"{self.pipeline} failed {self.attempt_count} times, and is not tried again"
        why = ": ".join(text for text in (self.error_type, self.error_message) if text)
        return f"{heading}: {why}" if why else heading

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """What a person needs next, as label and value; only what is known."""
        attempt = f"{self.attempt_count} of {self.max_attempts}" if self.max_attempts > 1 else ""
        listed = (
            ("where", self.where),
            ("state", self.state),
            ("next", self.next_step),
            ("attempt", attempt if self.kind != "recovered" else ""),
            ("slot", self.slot.isoformat() if self.slot else ""),
            ("log", f"flow runs show {self.run_id[:8]}" if self.run_id else ""),
            ("host", self.host),
            ("at", self.timestamp.isoformat(timespec="seconds")),
        )
        return tuple((label, value) for label, value in listed if value)

    @property
    def text(self) -> str:
        """The summary and the details, a line each."""
        return "\n".join([self.summary, *(f"{label}: {value}" for label, value in self.details)])

    def to_json(self) -> dict[str, Any]:
        """The event as JSON: times as ISO 8601, and the summary for receivers that only show text."""
        shown = asdict(self)
        shown["timestamp"] = self.timestamp.isoformat()
        shown["slot"] = self.slot.isoformat() if self.slot else None
        return {**shown, "summary": self.summary}


def _one_line(text: str) -> str:
    shown = _CONTROL.sub(" ", bounded_text(text)).strip()
    return shown if len(shown) <= _LONGEST_MESSAGE else shown[: _LONGEST_MESSAGE - 1] + "…"
