"""Compares the connections of a source and a target: whether the target can run the source's query itself.

The meaning of a query depends on the connection: its default database, search path, user, rights and
settings. A target may run the query only if its connection is the same in all of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MAX_SHOWN = 3  # differences shown; enough to find the cause
# settings whose values are shown; others may hold a secret
_SAFE_TO_SHOW = ("default database", "search_path", "user", "timezone", "time_zone", "file")


@dataclass(frozen=True)
class ConnectionComparison:
    """Whether source and target are the same database, and how their connections differ."""

    same_database: bool
    differences: str = ""

    @property
    def are_equivalent(self) -> bool:
        """Whether the target returns the same rows for every query of the source."""
        return self.same_database and not self.differences

    @property
    def mismatch(self) -> str:
        if not self.same_database:
            return "source and target are not the same database"
        return (
            f"the connections of source and target differ in {self.differences}, and only the source's own "
            "is sure to read its SQL as it is meant"
        )


def describe_differences(source: Mapping[str, str], target: Mapping[str, str]) -> str:
    """The differences of the two contexts, for a person; empty if they agree."""
    names = [name for name in {**source, **target} if source.get(name) != target.get(name)]
    descriptions = [
        f"{name} ({source.get(name, 'none')!r} and {target.get(name, 'none')!r})"
        if name in _SAFE_TO_SHOW
        else name
        for name in names[:_MAX_SHOWN]
    ]
    if len(names) > _MAX_SHOWN:
        descriptions.append(f"{len(names) - _MAX_SHOWN} more")
    return (
        ", ".join(descriptions[:-1]) + " and " + descriptions[-1]
        if len(descriptions) > 1
        else "".join(descriptions)
    )
