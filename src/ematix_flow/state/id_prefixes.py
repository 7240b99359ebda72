"""Looks up runs and dead letters by their id or by its first characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ematix_flow.errors import UsageError

T = TypeVar("T")


def find_by_prefix(kind: str, id_or_prefix: str, candidates: Mapping[str, T]) -> T | None:
    """The candidate with this id, else the only one; None if there is none.

    ``candidates`` are those whose ids begin with the prefix, by id. Raises UsageError if there are several.
    """
    if id_or_prefix in candidates:
        return candidates[id_or_prefix]
    if len(candidates) > 1:
        raise UsageError(
            f"several {kind} begin with {id_or_prefix!r}: {', '.join(list(candidates)[:4])}",
            next_step="give more of the id",
        )
    return next(iter(candidates.values()), None)
