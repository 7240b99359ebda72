"""What lies between a source and one of its targets: whether the target can compute the rows itself.

A query means what the source's own connection makes of it: its default database, its search path, its
user and that user's rights, its settings. A target may compute it only where its own connection is
proved to be the same in all of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ematix_flow.backends.base import Backend

_MAX_SHOWN = 3  # of all that differs: enough to find the cause
# a setting may hold a secret: only these values are shown
_SAFE_TO_SHOW = ("default database", "search_path", "user", "timezone", "time_zone", "file")


@dataclass(frozen=True)
class ConnectionComparison:
    """Whether source and target are one database, and how their connections differ, in words."""

    same_database: bool
    differences: str = ""

    @property
    def are_equivalent(self) -> bool:
        """The target answers every query of the source with the same rows."""
        return self.same_database and not self.differences

    @property
    def describe_mismatch(self) -> str:
        if not self.same_database:
            return "source and target are not the same database"
        return (
            f"the connections of source and target differ in {self.differences}, and only the source's own "
            "is sure to read its SQL as it is meant"
        )


def compare_connections(source: Backend, target: Backend) -> ConnectionComparison:
    """Ask both connections. Nothing is asked where one of them cannot compute by itself."""
    if not (target.capabilities.same_db and source.kind == target.kind):
        return ConnectionComparison(False)
    if source is target:
        return ConnectionComparison(True)
    if not source.is_same_database(target):
        return ConnectionComparison(False)
    return ConnectionComparison(True, describe_differences(source.query_context(), target.query_context()))


def describe_differences(source: Mapping[str, str], target: Mapping[str, str]) -> str:
    """What the two contexts disagree in, for a person; empty when they agree."""
    names = [name for name in {**source, **target} if source.get(name) != target.get(name)]
    told = [
        f"{name} ({source.get(name, 'none')!r} and {target.get(name, 'none')!r})"
        if name in _SAFE_TO_SHOW
        else name
        for name in names[:_MAX_SHOWN]
    ]
    if len(names) > _MAX_SHOWN:
        told.append(f"{len(names) - _MAX_SHOWN} more")
    return ", ".join(told[:-1]) + " and " + told[-1] if len(told) > 1 else "".join(told)
