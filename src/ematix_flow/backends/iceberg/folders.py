"""Tables of a ``hadoop`` catalog as a store lists them: there a table is the folder of its name."""

from __future__ import annotations

from ematix_flow.backends.stores.base import Store

METADATA = "metadata"


def is_table(store: Store, folder: str) -> bool:
    try:
        store.read(f"{folder}/{METADATA}/version-hint.text")  # to list all of it grows with every commit
    except (FileNotFoundError, NotADirectoryError):
        return _has_metadata(store, folder)
    return True


def _has_metadata(store: Store, folder: str) -> bool:
    return any(name.endswith(".metadata.json") for name in store.names(f"{folder}/{METADATA}"))
