"""The rivals' JDBC drivers: pinned in ``rivals.lock``, fetched and checked as the product does its jars."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

LOCK_FILE = Path(__file__).with_name("rivals.lock")


def rival_jars(kinds: Iterable[str]) -> list[Path]:
    """The drivers of these systems; what is missing is fetched."""
    from ematix_flow.engine.jars import jar_lock, jars_for

    lock = jar_lock(LOCK_FILE)
    return jars_for([kind for kind in dict.fromkeys(kinds) if kind in lock.groups], lock=lock)


def rival_versions(kinds: Iterable[str]) -> dict[str, str]:
    from ematix_flow.engine.jars import jar_lock

    lock = jar_lock(LOCK_FILE)
    return {
        f"{artifact.name} (JDBC)": artifact.version for artifact in lock.of(set(kinds) & set(lock.groups))
    }
