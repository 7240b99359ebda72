"""A Delta table's log in a store: whether it exists, and its versions."""

from __future__ import annotations

import re

from ematix_flow.backends.stores.base import Store

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(?:parquet|json)")


def list_versions(store: Store, folder: str) -> list[int]:
    """The versions with a commit in the log, in order. Older versions may still be in a checkpoint."""
    found = (_COMMIT.fullmatch(name) for name in store.names(f"{folder}/{LOG}"))
    return sorted(int(match[1]) for match in found if match)


def has_version(store: Store, folder: str, version: int) -> bool:
    """Whether the log has the commit of a version. Costs the same for a log of any length."""
    return store.has_file(f"{folder}/{LOG}/{version:020d}.json")


def is_table(store: Store, folder: str) -> bool:
    return any(_COMMIT.fullmatch(n) or _CHECKPOINT.fullmatch(n) for n in store.names(f"{folder}/{LOG}"))


def first_and_last_version(store: Store, folder: str) -> tuple[int, int]:
    """The oldest and the newest version that can be read. A version needs all commits since a checkpoint."""
    names = store.names(f"{folder}/{LOG}")
    commits = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
    starts = {int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))}
    first = 0 if 0 in commits else min(starts, default=0)
    return first, max(commits | starts, default=0)
