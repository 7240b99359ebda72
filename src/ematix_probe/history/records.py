"""A recorded run as a frozen value, and its JSON form. Knows no store."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_probe.redaction import mask
from ematix_probe.report import RunReport, as_json

LONGEST_NAME = 500
_LONGEST_TEXT = 10_000
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d{1,9})?\s*(Z|UTC|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True)
class RecordedAssertion:
    """The result of one assertion. ``measures`` are the figures that its verdict rests on."""

    index: int
    name: str
    verdict: str
    message: str
    kind: str = ""
    failing: int | None = None
    checked: int | None = None
    measures: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class RecordedRun:
    """A run of a probe. Listings leave ``assertions`` empty and fill ``counts``, their number by verdict."""

    id: int
    probe_name: str
    table: str
    schema: str | None
    verdict: str
    started_at: dt.datetime
    finished_at: dt.datetime
    metadata: Mapping[str, Any] = field(default_factory=dict)
    assertions: tuple[RecordedAssertion, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def duration_seconds(self) -> float:
        return (self.finished_at - self.started_at).total_seconds()

    def to_dict(self, *, assertions: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = {
            "id": self.id,
            "probe_name": self.probe_name,
            "table": self.table,
            "schema": self.schema,
            "verdict": self.verdict,
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at.isoformat(),
            "duration_seconds": self.duration_seconds,
            "counts": dict(self.counts),
            "metadata": dict(self.metadata),
        }
        if assertions:
            found["assertions"] = [dataclasses.asdict(each) for each in self.assertions]
        return found


def recorded_run(report: RunReport, *, with_samples: bool) -> RecordedRun:
    """The run as a store keeps it: masked, bounded, and without samples unless they are wanted."""
    return RecordedRun(
        0,
        bounded_name(report.probe_name),
        bounded_text(report.table),
        None if report.schema is None else bounded_text(report.schema),
        report.verdict,
        aware_utc(report.started_at),
        aware_utc(report.finished_at),
        _masked(_small(as_json(dict(report.metadata)))),
        tuple(
            RecordedAssertion(
                each.assertion_index,
                bounded_name(each.name),
                each.verdict,
                bounded_text(each.message),
                each.kind,
                each.failing,
                each.checked,
                _masked(as_json(dict(each.measures))),
                [_masked(as_json(dict(row))) for row in each.samples] if with_samples else (),
            )
            for each in report.assertions
        ),
        Counter(each.verdict for each in report.assertions),
    )


def run_from_dict(value: Mapping[str, Any]) -> RecordedRun:
    """The run that `RecordedRun.to_dict` wrote."""
    fields = {
        **value,
        "started_at": parse_time(value["started_at"]),
        "finished_at": parse_time(value["finished_at"]),
    }
    fields.pop("duration_seconds", None)
    fields["assertions"] = tuple(RecordedAssertion(**each) for each in value.get("assertions", ()))
    known = {each.name for each in dataclasses.fields(RecordedRun)}
    return RecordedRun(**{name: each for name, each in fields.items() if name in known})


def bounded_name(name: str) -> str:
    """A name that every store can compare: one that is too long keeps its start and a hash of it all."""
    text = mask(_storable(name))
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[: LONGEST_NAME - 20]}…{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def bounded_text(text: str) -> str:
    masked = mask(_storable(text))
    return masked if len(masked) <= _LONGEST_TEXT else masked[: _LONGEST_TEXT - 1] + "…"


def _storable(text: str) -> str:
    """Without what databases refuse: NUL and lone surrogates."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _small(metadata: dict[str, Any]) -> dict[str, Any]:
    """Without the large parts, such as the histogram of a load: its figures are measures too."""
    return {
        name: value
        for name, value in metadata.items()
        if len(json.dumps(value, default=str)) <= _LONGEST_TEXT
    }


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return bounded_text(value)
    if isinstance(value, dict):
        return {bounded_text(name): _masked(each) for name, each in value.items()}
    return [_masked(each) for each in value] if isinstance(value, list) else value


def aware_utc(time: dt.datetime) -> dt.datetime:
    """The time in UTC; one without a zone is taken as UTC."""
    return time.replace(tzinfo=dt.timezone.utc) if time.tzinfo is None else time.astimezone(dt.timezone.utc)


def format_time(time: dt.datetime) -> str:
    """Always of one length, so that texts sort as times do."""
    return aware_utc(time).isoformat(timespec="microseconds")


def parse_time(text: str | float | dt.datetime) -> dt.datetime:
    """The time of a text of any ISO form, or of seconds or milliseconds since 1970."""
    if isinstance(text, dt.datetime):
        return aware_utc(text)
    if isinstance(text, (int, float)):
        return dt.datetime.fromtimestamp(text / 1000 if text > 1e11 else text, dt.timezone.utc)
    found = _ISO.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a time")
    day, clock, fraction, zone = found.groups()
    if zone in (None, "Z", "UTC"):
        zone = "+00:00"
    elif ":" not in zone:
        zone = f"{zone[:3]}:{zone[3:]}"
    return aware_utc(dt.datetime.fromisoformat(f"{day}T{clock}{(fraction or '.0')[:7]:0<7}{zone}"))
