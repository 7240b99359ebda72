"""A join of two sources of a stream, as a user declares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.declared_fields import check_location
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.windows import EVENT_TIME, LATE_DATA, LateData

JoinKind = Literal["inner", "left_outer", "right_outer", "full_outer"]
JOIN_KINDS: tuple[JoinKind, ...] = get_args(JoinKind)
_LONGEST_MS = 10**13


@dataclass(frozen=True)
class Join:
    """Joins rows of two sources with equal keys that happened at about the same time.

    A left and a right row are a pair if their keys are equal and not null, and their event times differ by at
    most ``time_window_ms``. ``min_delta_ms`` and ``max_delta_ms`` set the limits one by one: of the right
    row's event time less the left row's. Each pair is loaded once, with the batch that completes it. An outer
    join also loads rows without a partner, when none can come any more.
    """

    left_source: str
    right_source: str
    left_keys: Sequence[str]
    right_keys: Sequence[str]
    time_window_ms: int = 0
    kind: JoinKind = "inner"
    min_delta_ms: int | None = None
    max_delta_ms: int | None = None
    event_time_column: str = EVENT_TIME
    late_data: LateData = "drop"
    allowed_lateness_ms: int | None = None
    left_column_prefix: str = "left_"
    right_column_prefix: str = "right_"
    max_state_rows: int = 10_000_000
    where: SourceLocation | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_location(self.where)
        _check_choice("kind", self.kind, JOIN_KINDS)
        _check_choice("late_data", self.late_data, LATE_DATA)
        for option in ("left_source", "right_source"):
            _check_text(option, getattr(self, option), "the name of a source")
        if self.left_source == self.right_source:
            raise DeclarationError(
                f"left_source= and right_source= are both {self.left_source!r}: a join needs two sources",
                next_step="two sources with the same query are named  connection:query",
            )
        for option in ("left_keys", "right_keys"):
            object.__setattr__(self, option, _check_keys(option, getattr(self, option)))
        if len(self.left_keys) != len(self.right_keys):
            raise DeclarationError(
                f"left_keys= has {len(self.left_keys)} columns and right_keys= has {len(self.right_keys)}: "
                "they are compared in pairs"
            )
        _check_text("event_time_column", self.event_time_column, "the name of a column")
        for option in ("left_column_prefix", "right_column_prefix"):
            if not isinstance(getattr(self, option), str):
                raise DeclarationError(f"{option}= takes a text, not {getattr(self, option)!r}")
        _check_whole_number("max_state_rows", self.max_state_rows, 1)
        self._check_times()

    def _check_times(self) -> None:
        _check_whole_number("time_window_ms", self.time_window_ms, 0)
        for option in ("min_delta_ms", "max_delta_ms"):
            if getattr(self, option) is not None:
                _check_whole_number(option, getattr(self, option), -_LONGEST_MS)
        if self.min_delta > self.max_delta:
            raise DeclarationError(
                f"the least time between two rows is {self.min_delta} ms, above the longest of "
                f"{self.max_delta} ms: no pair fits",
                next_step="correct min_delta_ms= or max_delta_ms=",
            )
        if self.late_data == "reopen":
            if self.allowed_lateness_ms is None:
                raise DeclarationError(
                    "late_data='reopen' needs allowed_lateness_ms=: how much longer rows wait for a partner"
                )
            _check_whole_number("allowed_lateness_ms", self.allowed_lateness_ms, 1)
        elif self.allowed_lateness_ms is not None:
            raise DeclarationError(f"allowed_lateness_ms= is for late_data='reopen', not {self.late_data!r}")

    @property
    def min_delta(self) -> int:
        """The least milliseconds from a left row to its right partner."""
        return -self.time_window_ms if self.min_delta_ms is None else self.min_delta_ms

    @property
    def max_delta(self) -> int:
        return self.time_window_ms if self.max_delta_ms is None else self.max_delta_ms

    @property
    def reopens_for(self) -> int:
        """The milliseconds that rows wait for late partners."""
        return self.allowed_lateness_ms or 0

    @property
    def keeps_left(self) -> bool:
        """Whether left rows without a partner are loaded."""
        return self.kind in ("left_outer", "full_outer")

    @property
    def keeps_right(self) -> bool:
        return self.kind in ("right_outer", "full_outer")

    @property
    def named_sources(self) -> tuple[str, str]:
        return (self.left_source, self.right_source)

    @property
    def prefixes(self) -> tuple[str, str]:
        return (self.left_column_prefix, self.right_column_prefix)

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The key columns of the left and of the right source."""
        return (tuple(self.left_keys), tuple(self.right_keys))

    def __str__(self) -> str:
        """As in ``left_outer orders.order_id = payments.order_id, -300000 to 300000 ms``."""
        equal = " and ".join(
            f"{self.left_source}.{left} = {self.right_source}.{right}"
            for left, right in zip(self.left_keys, self.right_keys, strict=True)
        )
        return f"{self.kind} {equal}, {self.min_delta} to {self.max_delta} ms"

    def to_json(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "where"}
        return {**found, "left_keys": list(self.left_keys), "right_keys": list(self.right_keys)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Join:
        return cls(**value)


def _check_keys(option: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise DeclarationError(
            f"{option}= takes a list of columns, not {value!r}", next_step=f'write {option}=("…",)'
        )
    for name in value:
        _check_text(option, name, "names of columns")
    if len(set(value)) != len(value):
        raise DeclarationError(f"{option}= names a column twice: {list(value)!r}")
    return tuple(value)


def _check_text(option: str, value: object, wanted: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(f"{option}= takes {wanted}, not {value!r}")


def _check_choice(option: str, value: object, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(str(value), allowed) or f" Known: {', '.join(allowed)}"
        raise DeclarationError(f"{option}={value!r} is unknown.{hint}")


def _check_whole_number(option: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LONGEST_MS:
        raise DeclarationError(f"{option}= takes a whole number from {least} up, not {value!r}")
