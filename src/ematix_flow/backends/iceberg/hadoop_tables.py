"""Tables of a ``hadoop`` catalog in a store: a table is the folder of its name."""

from __future__ import annotations

import json
import re

from ematix_flow.backends.stores.base import Store

METADATA = "metadata"
_VERSION = re.compile(r"v(\d+)(\..*)?\.metadata\.json")


def is_table(store: Store, folder: str) -> bool:
    try:
        store.read(f"{folder}/{METADATA}/version-hint.text")  # to list all of it grows with every commit
    except (FileNotFoundError, NotADirectoryError):
        return _has_metadata(store, folder)
    return True


def _has_metadata(store: Store, folder: str) -> bool:
    return any(name.endswith(".metadata.json") for name in store.names(f"{folder}/{METADATA}"))


def snapshot_summaries(store: Store, folder: str) -> list[dict[str, str]] | None:
    """The summaries of all snapshots of the newest version; empty if there is no table.

    None if the file alone cannot tell: it is compressed, or a newer version has replaced it.
    """
    found = (_VERSION.fullmatch(name) for name in store.names(f"{folder}/{METADATA}"))
    versions = {int(match[1]): match for match in found if match}
    if not versions:
        return []
    newest = versions[max(versions)]
    if newest[2]:
        return None
    try:
        metadata = json.loads(store.read(f"{folder}/{METADATA}/{newest[0]}"))
    except FileNotFoundError:
        return None
    return [snapshot.get("summary", {}) for snapshot in metadata.get("snapshots", ())]
