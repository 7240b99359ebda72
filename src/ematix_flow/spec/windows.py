"""Windows over event time as a user declares them, with the stream's watermark and the store of its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.connections.references import has_reference
from ematix_flow.spec.connections.urls import is_conninfo, mask_url
from ematix_flow.spec.declared_fields import check_location
from ematix_flow.spec.location import SourceLocation

Aggregator = Literal["count", "count_col", "sum", "min", "max", "avg", "first", "last", "count_distinct"]
WindowKind = Literal["tumbling", "hopping", "session"]
LateData = Literal["drop", "reopen", "dlq"]
StateKind = Literal["checkpoint", "in_memory", "postgres"]
AGGREGATORS: tuple[Aggregator, ...] = get_args(Aggregator)
WINDOW_KINDS: tuple[WindowKind, ...] = get_args(WindowKind)
LATE_DATA: tuple[LateData, ...] = get_args(LateData)
STATE_KINDS: tuple[StateKind, ...] = get_args(StateKind)
EVENT_TIME = "_event_ts"  # the time that the broker stores with each message
REVISION, SESSION_ID, MERGED_INTO = "revision", "session_id", "merged_into"


@dataclass(frozen=True)
class Aggregation:
    """One aggregate of a window. ``as_`` names its column; every ``agg`` but ``count`` reads ``column``."""

    agg: Aggregator
    as_: str
    column: str | None = None

    def __post_init__(self) -> None:
        _check_choice("agg", self.agg, AGGREGATORS)
        _check_name("as_", self.as_)
        if self.agg == "count":
            if self.column is not None:
                raise DeclarationError(
                    f"count counts rows, and column={self.column!r} has no effect",
                    next_step='use  agg="count_col"  to count the rows where the column is not null',
                )
            return
        if self.column is None:
            raise DeclarationError(f"agg={self.agg!r} needs column=", next_step='write  column="…"')
        _check_name("column", self.column)


@dataclass(frozen=True)
class Window:
    """Groups rows by event time and ``group_by``, and computes aggregates for each window and group.

    A window is loaded when the watermark has passed its end. ``late_data`` decides about rows that come
    later: ``drop`` counts them, ``dlq`` stores them as dead letters, and ``reopen`` loads the window once
    more, for ``allowed_lateness_ms`` after its end.

    A ``session`` holds the rows of a group that follow each other within less than ``gap_ms``, and is at most
    ``max_session_duration_ms`` long.
    """

    kind: WindowKind
    aggregations: Sequence[Aggregation]
    duration_ms: int = 0
    hop_ms: int | None = None
    gap_ms: int | None = None
    max_session_duration_ms: int | None = None
    event_time_column: str = EVENT_TIME
    group_by: Sequence[str] = ()
    late_data: LateData = "drop"
    allowed_lateness_ms: int | None = None
    max_groups_per_window: int = 1_000_000
    window_start_column: str = "window_start"
    window_end_column: str = "window_end"
    session_id_column: str = SESSION_ID
    where: SourceLocation | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_location(self.where)
        _check_choice("kind", self.kind, WINDOW_KINDS)
        _check_choice("late_data", self.late_data, LATE_DATA)
        object.__setattr__(self, "aggregations", _sequence("aggregations", self.aggregations, Aggregation))
        object.__setattr__(self, "group_by", _sequence("group_by", self.group_by, str))
        if not self.aggregations:
            raise DeclarationError(
                "a window needs aggregations=", next_step='write  [Aggregation(agg="count", as_="n")]'
            )
        self._check_times()
        _check_whole_number("max_groups_per_window", self.max_groups_per_window, 1)
        for option in ("event_time_column", "window_start_column", "window_end_column", "session_id_column"):
            _check_name(option, getattr(self, option))
        for name in self.group_by:
            _check_name("group_by", name)
        _refuse_twice(self.output_names)

    def _check_times(self) -> None:
        if self.is_session:
            self._check_session()
        else:
            self._check_duration()
        if self.late_data == "reopen":
            if self.allowed_lateness_ms is None:
                raise DeclarationError(
                    "late_data='reopen' needs allowed_lateness_ms=: how long a window can be opened again"
                )
            _check_whole_number("allowed_lateness_ms", self.allowed_lateness_ms, 1)
        elif self.allowed_lateness_ms is not None:
            raise DeclarationError(f"allowed_lateness_ms= is for late_data='reopen', not {self.late_data!r}")

    def _check_session(self) -> None:
        for option, default in (("duration_ms", 0), ("hop_ms", None)):
            if getattr(self, option) != default:
                raise DeclarationError(f"{option}= is for tumbling and hopping windows, not for 'session'")
        if self.gap_ms is None:
            raise DeclarationError("kind='session' needs gap_ms=: how long a pause ends a session")
        _check_whole_number("gap_ms", self.gap_ms, 1)
        if self.max_session_duration_ms is None:
            raise DeclarationError(
                "kind='session' needs max_session_duration_ms=: without it, a group that never pauses is "
                "never loaded"
            )
        _check_whole_number("max_session_duration_ms", self.max_session_duration_ms, 1)
        if self.max_session_duration_ms <= self.gap_ms:
            raise DeclarationError(
                f"max_session_duration_ms={self.max_session_duration_ms} must be longer than "
                f"gap_ms={self.gap_ms}"
            )

    def _check_duration(self) -> None:
        for option, default in (
            ("gap_ms", None),
            ("max_session_duration_ms", None),
            ("session_id_column", SESSION_ID),
        ):
            if getattr(self, option) != default:
                raise DeclarationError(f"{option}= is for kind='session', not for {self.kind!r}")
        _check_whole_number("duration_ms", self.duration_ms, 1)
        if self.kind == "hopping":
            if self.hop_ms is None:
                raise DeclarationError("kind='hopping' needs hop_ms=, the distance between two windows")
            _check_whole_number("hop_ms", self.hop_ms, 1)
            if self.hop_ms > self.duration_ms:
                raise DeclarationError(
                    f"hop_ms={self.hop_ms} is longer than duration_ms={self.duration_ms}: rows between two "
                    "windows would be in none"
                )
        elif self.hop_ms is not None:
            raise DeclarationError("hop_ms= is for kind='hopping', not for 'tumbling'")

    @property
    def is_session(self) -> bool:
        return self.kind == "session"

    @property
    def hop(self) -> int:
        """The milliseconds between the starts of two windows."""
        return self.hop_ms if self.hop_ms is not None else self.duration_ms

    @property
    def reopens_for(self) -> int:
        """The milliseconds after its end in which a window can be opened again."""
        return self.allowed_lateness_ms or 0

    @property
    def output_names(self) -> tuple[str, ...]:
        """The columns of the result, in their order."""
        aggregates = (each.as_ for each in self.aggregations)
        times = (self.window_start_column, self.window_end_column)
        if self.is_session:
            return (*times, self.session_id_column, *self.group_by, *aggregates, REVISION, MERGED_INTO)
        return (*times, *self.group_by, *aggregates, REVISION)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row of the result. Start and end of a session can still change."""
        if self.is_session:
            return (self.session_id_column,)
        return (self.window_start_column, *self.group_by)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that the window reads."""
        read = (each.column for each in self.aggregations if each.column is not None)
        return tuple(dict.fromkeys((self.event_time_column, *self.group_by, *read)))

    def __str__(self) -> str:
        """As in ``hopping 60000 ms every 5000 ms by user_id``."""
        groups = f" by {', '.join(self.group_by)}" if self.group_by else ""
        if self.is_session:
            most = f"at most {self.max_session_duration_ms} ms"
            return f"session{groups}, ends after {self.gap_ms} ms without rows, {most}"
        every = f" every {self.hop_ms} ms" if self.hop_ms is not None else ""
        return f"{self.kind} {self.duration_ms} ms{every}{groups}"

    def to_json(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "where"}
        listed = [asdict(each) for each in self.aggregations]
        return {**found, "aggregations": listed, "group_by": list(self.group_by)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Window:
        return cls(**{**value, "aggregations": [Aggregation(**each) for each in value["aggregations"]]})


@dataclass(frozen=True)
class Watermark:
    """How far event time has come: the highest event time of the slowest source, less ``lateness_ms``.

    If no messages come for ``source_idleness_ms``, the watermark goes on with the clock. Without it, the
    watermark waits for the next message.
    """

    lateness_ms: int | None = None
    source_idleness_ms: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) is not None:
                _check_whole_number(each.name, getattr(self, each.name), 0)


@dataclass(frozen=True)
class StateStore:
    """Where the state of a stream is kept: next to its checkpoint, in memory only, or in Postgres as well.

    With ``postgres``, each batch copies its changes to the state and the checkpoint into tables of
    ``schema`` in one transaction, so that a machine without the stream's folder continues it. A full copy
    replaces the changes at most every ``checkpoint_interval_ms``. ``url`` may hold ``${VAR}`` references.
    """

    kind: StateKind = "checkpoint"
    url: str | None = field(default=None, repr=False)
    schema: str = "public"
    checkpoint_interval_ms: int = 60_000

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, STATE_KINDS)
        if self.kind == "postgres":
            self._check_postgres()
            return
        for each in fields(self)[1:]:
            if getattr(self, each.name) != each.default:
                raise DeclarationError(f"{each.name}= has no effect with kind={self.kind!r}: leave it out")

    def _check_postgres(self) -> None:
        step = 'write  url="postgres://user@host/database"  or  url="${STATE_URL}"'
        if not isinstance(self.url, str) or not self.url.strip():
            raise DeclarationError("StateStore(kind='postgres') needs url=", next_step=step)
        scheme, separator, _ = self.url.partition("://")
        is_url = bool(separator) and scheme.lower() in ("postgres", "postgresql")
        if not is_url and not has_reference(self.url) and not is_conninfo(self.url):
            raise DeclarationError("url= of a state store is not a URL of Postgres", next_step=step)
        if not isinstance(self.schema, str) or not self.schema.strip() or not self.schema.isprintable():
            raise DeclarationError(f"schema= takes the name of a schema, not {self.schema!r}")
        _check_whole_number("checkpoint_interval_ms", self.checkpoint_interval_ms, 1)

    def to_json(self) -> dict[str, Any]:
        """The fields; a password in ``url`` is masked, references stay."""
        return {**asdict(self), "url": None if self.url is None else mask_url(self.url)}


def _sequence(option: str, value: object, kind: type) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise DeclarationError(f"{option}= takes a list, not {value!r}", next_step=f"write {option}=[…]")
    for each in value:
        if not isinstance(each, kind):
            wanted = "names of columns" if kind is str else f"{kind.__name__}(…)"
            raise DeclarationError(f"{option}= takes {wanted}, not {each!r}")
    return tuple(value)


def _check_choice(option: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        hint = did_you_mean(str(value), allowed) or f" Known: {', '.join(allowed)}"
        raise DeclarationError(f"{option}={value!r} is unknown.{hint}")


def _check_name(option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(f"{option}= takes the name of a column, not {value!r}")


def _check_whole_number(option: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**13:
        raise DeclarationError(f"{option}= takes a whole number from {least} up, not {value!r}")


def _refuse_twice(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise DeclarationError(
                f"two columns of the window's result are called {name!r}",
                next_step="rename one of them with as_= or with the window's options that name columns",
            )
        seen.add(name.lower())
