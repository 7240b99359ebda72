"""Actions and holds as frozen values, and the rules of their changes. Does not know where they are stored."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from ematix_flow.state.runlog.records import bounded_text, mask_metrics

ActionKind = Literal[
    "run",
    "restart",
    "resume_from_watermark",
    "clear",
    "stop",
    "pause",
    "resume",
    "pause_schedule",
    "resume_schedule",
    "replay_letters",
    "park_letters",
    "purge_letters",
]
ActionStatus = Literal["waiting", "claimed", "done", "failed", "refused"]
HoldKind = Literal["schedule", "run"]

# what a carrier claims and starts as a process; a run obeys a stop itself, and the others are done at once
CARRIED_KINDS: tuple[ActionKind, ...] = ("run", "restart", "resume_from_watermark", "replay_letters")
UNFINISHED: tuple[ActionStatus, ...] = ("waiting", "claimed")
ENDED: tuple[ActionStatus, ...] = ("done", "failed", "refused")
ACTION_TIMES = ("requested_at", "ended_at", "expires_at")
_RUN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LONGEST_NAME = 200  # characters of the name of a person


@dataclass(frozen=True)
class ActionRecord:
    """One action that somebody asked for.

    ``subject`` is a pipeline or a stream, for ``restart`` and ``stop`` a run id; if no run of the slot that a
    stop gives up is known, the pipeline. ``fence`` counts the claims, ``deaths`` those whose process had
    begun and stopped its heartbeat. ``outcome`` is a sentence for people.
    ``expires_at`` is the end of the claim; of an action that waits, what a busy carrier has set.
    """

    action_id: str
    kind: ActionKind
    subject: str
    arguments: dict[str, Any]
    status: ActionStatus
    requested_by: str
    via: str
    requested_at: dt.datetime
    ended_at: dt.datetime | None = None
    fence: int = 0
    holder: str | None = None
    expires_at: dt.datetime | None = None
    outcome: str | None = None
    run_ids: tuple[str, ...] = ()
    begun: bool = False  # whether a process has begun under the claim
    deaths: int = 0

    def is_claimable(self, now: dt.datetime) -> bool:
        """Whether a carrier may claim it: it waits, or its claim has expired."""
        if self.kind not in CARRIED_KINDS:
            return False
        if self.status == "waiting":
            return True
        return self.status == "claimed" and self.expires_at is not None and self.expires_at <= now

    @property
    def short_subject(self) -> str:
        """The subject for a person: of the id of a run its first characters."""
        return self.subject[:8] if _RUN_ID.fullmatch(self.subject) else self.subject

    def to_json(self) -> dict[str, Any]:
        """Return the action for ``--output json``: times as ISO 8601."""
        return {
            each.name: value.isoformat() if isinstance(value, dt.datetime) else value
            for each in fields(self)
            for value in [getattr(self, each.name)]
        } | {"run_ids": list(self.run_ids)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ActionRecord:
        """Return the action for the output of `to_json`; unknown names are ignored."""
        known = {each.name: document[each.name] for each in fields(cls) if each.name in document}
        for name in ACTION_TIMES:
            if known.get(name) is not None:
                known[name] = dt.datetime.fromisoformat(known[name])
        return cls(**{**known, "run_ids": tuple(known.get("run_ids") or ())})


@dataclass(frozen=True)
class Hold:
    """What is paused: a schedule, whose slots wait, or the runs of a pipeline or stream.

    ``held_run`` is the run that waits at the safe point ``held_at``; None until one has arrived there.
    """

    kind: HoldKind
    name: str
    by: str
    since: dt.datetime
    reason: str | None = None
    held_run: str | None = None
    held_at: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            each.name: value.isoformat() if isinstance(value, dt.datetime) else value
            for each in fields(self)
            for value in [getattr(self, each.name)]
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Hold:
        known = {each.name: document[each.name] for each in fields(cls) if each.name in document}
        return cls(**{**known, "since": dt.datetime.fromisoformat(known["since"])})


@dataclass(frozen=True)
class ActionFilter:
    """Which actions a list has: with this subject and kind, if they are given, and older than ``before``.

    ``before`` is the time and id of the last action of the page before.
    """

    before: tuple[dt.datetime, str] | None = None
    subject: str | None = None
    kind: ActionKind | None = None
    unfinished: bool = False

    def includes(self, record: ActionRecord) -> bool:
        return (
            self.subject in (None, record.subject)
            and self.kind in (None, record.kind)
            and (not self.unfinished or record.status in UNFINISHED)
            and (self.before is None or listing_order(record) < self.before)
        )


def listing_order(record: ActionRecord) -> tuple[dt.datetime, str]:
    """Return what a list sorts by, newest first."""
    return record.requested_at, record.action_id


def request_key(kind: ActionKind, subject: str, arguments: Mapping[str, Any]) -> str:
    """Return the key that two requests share if they ask for the same. A run can be stopped in one way."""
    compared = {} if kind == "stop" else arguments
    text = json.dumps([kind, subject, compared], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def stored_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON values, with secrets masked."""
    return mask_metrics(arguments)


def stored_name(text: str) -> str:
    """Return the name of a person as it may be stored: without secrets, and of a bounded length."""
    return bounded_text(text)[:LONGEST_NAME] or "somebody"


def stored_text(text: str | None) -> str | None:
    return None if text is None else bounded_text(text)
