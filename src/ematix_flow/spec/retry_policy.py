"""How often a failed run is retried, and the delay before each retry."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ematix_flow.errors import DeclarationError, did_you_mean
from ematix_flow.spec.location import SourceLocation

MAX_JITTER_FACTOR = 1.1  # a delay is at most this many times that of its policy
_LONGEST_DELAY_SECONDS = 30 * 86_400.0  # the longest wait before a retry


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed run is retried, and how long to wait before each retry."""

    max_attempts: int = 1
    backoff: Literal["fixed", "linear", "exponential"] = "fixed"
    base_seconds: float = 0.0
    factor: float = 2.0
    max_seconds: float | None = None

    _KEYS: ClassVar[dict[str, str]] = {
        "max_attempts": "max_attempts",
        "backoff": "backoff",
        "base_secs": "base_seconds",
        "max_backoff_secs": "max_seconds",
        "backoff_seconds": "base_seconds",
        "backoff_factor": "factor",
    }

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any], where: SourceLocation | None = None) -> RetryPolicy:
        """Read both spellings: ``backoff_seconds``/``backoff_factor`` and ``backoff``/``base_secs``."""
        if not isinstance(value, Mapping):
            raise DeclarationError(
                f"retry= takes options, not {value!r}", where=where, next_step='retry={"max_attempts": 3}'
            )
        fields: dict[str, Any] = {}
        for key, given in value.items():
            if key not in cls._KEYS:
                raise DeclarationError(
                    f"retry= has no option {key!r}.{did_you_mean(key, cls._KEYS)}", where=where
                )
            if cls._KEYS[key] in fields:
                raise DeclarationError(
                    "retry= base_secs and backoff_seconds mean the same: give one of them", where=where
                )
            fields[cls._KEYS[key]] = given
        if "backoff_factor" in value and "backoff" not in value:
            fields["backoff"] = "exponential"
        for key in ("base_seconds", "factor", "max_seconds"):
            _require_number(key, fields.get(key), value, cls._KEYS, where)
        policy = cls(**fields)
        if isinstance(policy.max_attempts, bool) or not isinstance(policy.max_attempts, int):
            raise DeclarationError(
                f"retry= max_attempts takes a whole number, not {policy.max_attempts!r}", where=where
            )
        if policy.max_attempts < 1:
            raise DeclarationError(
                f"retry= max_attempts must be 1 or more, not {policy.max_attempts!r}", where=where
            )
        if policy.backoff not in ("fixed", "linear", "exponential"):
            raise DeclarationError(
                f"retry= backoff must be fixed, linear or exponential, not {policy.backoff!r}", where=where
            )
        if (
            policy.base_seconds < 0
            or policy.factor < 1
            or (policy.max_seconds is not None and policy.max_seconds < 0)
        ):
            raise DeclarationError(
                "retry= times must not be negative, and backoff_factor must be at least 1", where=where
            )
        if policy.max_attempts == 1 and set(value) - {"max_attempts"}:
            raise DeclarationError(
                "retry= sets a wait, and max_attempts is 1: there is no retry to wait for",
                where=where,
                next_step='retry={"max_attempts": 3, …}',
            )
        if "backoff_factor" in value and policy.backoff != "exponential":
            raise DeclarationError(
                f"retry= backoff_factor works with backoff='exponential', not {policy.backoff!r}",
                where=where,
            )
        if policy.base_seconds > _LONGEST_DELAY_SECONDS or (policy.max_seconds or 0) > _LONGEST_DELAY_SECONDS:
            raise DeclarationError(
                f"retry= waits longer than 30 days: {max(policy.base_seconds, policy.max_seconds or 0):g} s",
                where=where,
                next_step="give the times of retry= in seconds",
            )
        return policy

    def delay_seconds(self, failed_attempts: int) -> float:
        """Seconds to wait after this many attempts have failed."""
        if self.backoff == "fixed":
            seconds = self.base_seconds
        elif self.backoff == "linear":
            seconds = self.base_seconds * failed_attempts
        else:
            try:
                seconds = self.base_seconds * self.factor ** (failed_attempts - 1)
            except OverflowError:
                seconds = _LONGEST_DELAY_SECONDS
        return min(seconds, _LONGEST_DELAY_SECONDS if self.max_seconds is None else self.max_seconds)


def _require_number(
    field: str,
    given: Any,
    value: Mapping[str, Any],
    keys: Mapping[str, str],
    where: SourceLocation | None,
) -> None:
    """Require that a time or factor of ``retry=`` is a number. The error names it as the user wrote it."""
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and given == given):
        return
    name = next(key for key in value if keys[key] == field)
    raise DeclarationError(f"retry= {name} takes a number, not {given!r}", where=where)


def retry_delay(policy: RetryPolicy, failures: int, rng: random.Random) -> float:
    """Return the seconds before the next attempt, spread by a tenth so that many do not start at once."""
    return policy.delay_seconds(failures) * rng.uniform(1.0, MAX_JITTER_FACTOR)


def longest_retry_delay(policy: RetryPolicy, failures: int) -> float:
    """Return the most seconds that `retry_delay` returns."""
    return policy.delay_seconds(failures) * MAX_JITTER_FACTOR
