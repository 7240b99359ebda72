"""Versions of a table of a ``hadoop`` catalog: finds the newest one, and publishes the next.

A version is the file ``v<number>.metadata.json``. Iceberg's own writers check that the next one does not
exist, and rename theirs to it. Here it appears by a link, which fails if it exists.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from pathlib import Path

from ematix_flow.backends.durable_files import flush_to_disk
from ematix_flow.backends.iceberg.hadoop_tables import METADATA
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.local_store import LocalStore

_log = logging.getLogger(__name__)
_HINT = "version-hint.text"
_VERSION = re.compile(r"v(\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_SUFFIXES = (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")


def newest_version(store: Store, folder: str) -> int | None:
    """The newest version, as Iceberg finds it: from the hint on, which may be an older one."""
    version = _hinted_version(store, folder)
    if version is None:
        found = (_VERSION.fullmatch(name) for name in store.names(f"{folder}/{METADATA}"))
        version = max((int(match[1]) for match in found if match), default=None)
    while version is not None and _has_version(store, folder, version + 1):
        version += 1
    return version


def version_path(folder: str, version: int) -> str:
    return f"{folder}/{METADATA}/v{version}.metadata.json"


def publish_version(store: LocalStore, folder: str, version: int, text: str) -> None:
    """Commit the metadata as this version; FileExistsError if another writer was first."""
    if _has_version(store, folder, version):
        raise FileExistsError(version_path(folder, version))
    path = Path(store.uri(version_path(folder, version)))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _write_aside(path, text)  # `Store.create` would make a file that only this user may read
    try:
        os.link(aside, path)
    finally:
        aside.unlink()
    flush_to_disk(path.parent)


def write_hint(store: LocalStore, folder: str, version: int) -> None:
    """Write the hint, with which readers begin. Without it they list the folder."""
    try:
        _replace_local(Path(store.uri(f"{folder}/{METADATA}/{_HINT}")), str(version))
    except OSError as error:
        _log.warning("the version hint of %s is not updated: %s", store.uri(folder), error)


def _hinted_version(store: Store, folder: str) -> int | None:
    try:
        hint = store.read(f"{folder}/{METADATA}/{_HINT}").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return int(hint) if hint.isdecimal() and _has_version(store, folder, int(hint)) else None


def _has_version(store: Store, folder: str, version: int) -> bool:
    return any(store.has_file(f"{folder}/{METADATA}/v{version}{suffix}") for suffix in _SUFFIXES)


def _replace_local(path: Path, text: str) -> None:
    aside = _write_aside(path, text)
    # Hadoop's checksum of the hint before: a reader would compare it with the new one
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    try:
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _write_aside(path: Path, text: str) -> Path:
    aside = path.with_name(f".{uuid.uuid4().hex}.tmp")
    with open(aside, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return aside
