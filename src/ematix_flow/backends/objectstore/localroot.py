"""A folder on a disk as the place for tables of files."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from ematix_flow import faults
from ematix_flow.backends.base import LedgerEntry, Load, Staging
from ematix_flow.backends.objectstore import versions
from ematix_flow.backends.objectstore.diskfailures import told_of
from ematix_flow.backends.objectstore.filelayout import FileLayout
from ematix_flow.backends.objectstore.homes import FilesRoot, TableHome, Version
from ematix_flow.backends.objectstore.places import (
    HIDDEN,
    DataFile,
    Place,
    data_files,
    other_folders,
    place_of,
    stem,
)
from ematix_flow.backends.objectstore.staging import LocalStaging, new_attempt
from ematix_flow.backends.objectstore.tablestate import TableState, ledger_entries, ledger_holds, sealed_in
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.locks import hold_file_lock

_log = logging.getLogger(__name__)


class LocalHome(TableHome):
    """A table whose folder is a link to the current version's data."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def shown(self) -> str:
        return str(self.place.folder)

    def locked(self) -> AbstractContextManager[None]:
        return versions.table_lock(self.place)

    def current(self) -> Version | None:
        return versions.current_version(self.place)

    def files(self, version: Version) -> list[DataFile]:
        return data_files(_ours(version).data) if self._is_published(version) else self.users_files()

    def _is_published(self, version: Version) -> bool:
        return _ours(version).path != self.place.folder

    def users_files(self) -> list[DataFile]:
        return data_files(self.place.folder) if self.place.folder.is_dir() else []

    def users_folders(self) -> list[str]:
        return other_folders(self.place.folder) if self.place.folder.is_dir() else []

    def as_version(self, state: TableState) -> Version:
        return versions.Version(self.place.folder, state, self.place.folder)

    def begin(self, state: TableState, files: Sequence[DataFile]) -> Version:
        """The user's folder itself is set aside whole."""
        if not files:
            return self.as_version(state)
        path = versions.link_files(self.place, files)
        version = versions.seal_version(self.place, path, None, state)
        versions.publish(self.place, version)
        versions.settle(self.place)
        return version

    def publish(self, base: Version, kept: Sequence[str], new: Sequence[DataFile], state: TableState) -> None:
        place, there = self.place, _ours(base)
        stay = [DataFile(there.data / name, name) for name in kept]
        is_first = not self._is_published(base)
        path = versions.link_files(place, [*stay, *new])
        try:
            faults.point("apply.rows_written")
            version = versions.seal_version(place, path, None if is_first else there, state)
            faults.point("apply.ledger_written")
            faults.point("apply.before_commit")
            versions.publish(place, version)
        except Exception:
            if not versions.is_current(place, path):
                shutil.rmtree(path, ignore_errors=True)
            raise
        faults.point("apply.after_commit")
        with suppress(OSError):  # the load is committed; what could not be removed now is removed later
            if is_first:  # an empty folder may have been there
                versions.settle(place)
            versions.remove_replaced(place)

    def settle(self) -> None:
        versions.settle(self.place)

    def ledger_holds(self, version: Version, pipeline: str, target: str, batch_key: str) -> bool:
        return ledger_holds(sealed_in(_ours(version).path), version.state, pipeline, target, batch_key)

    def ledger(self, version: Version, pipeline: str, target: str) -> Iterator[LedgerEntry]:
        return ledger_entries(sealed_in(_ours(version).path), version.state, pipeline, target)


class LocalRoot(FilesRoot):
    """``path`` is absolute, and seen by the driver and every worker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def told(self, state: str) -> AbstractContextManager[None]:
        return told_of(self.path, state)

    def home(self, table: TableSpec) -> TableHome:
        place = place_of(self.path, table)
        place.require_separate()
        place.require_own()
        return LocalHome(place)

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        folder = self.path / HIDDEN / "locks"
        with told_of(folder, "this run has not begun; the target is untouched"):
            folder.mkdir(parents=True, exist_ok=True)
        with hold_file_lock(folder, pipeline, target, str(run_id)):
            yield

    def remember(self, home: TableHome, pipeline: str, target: str) -> None:
        assert isinstance(home, LocalHome)
        versions.remember_target(home.place, pipeline, target)

    def remembered(self, pipeline: str, target: str) -> TableHome | None:
        place = versions.remembered_target(self.path, pipeline, target)
        return LocalHome(place) if place is not None else None

    def new_staging(self, load: Load, layout: FileLayout) -> LocalStaging:
        attempt = new_attempt(load)
        folder = self._staging / f"{stem(load.pipeline, load.target)}_{attempt}"
        folder.mkdir(parents=True)
        return LocalStaging.of(load, layout, attempt, folder=str(folder))

    def drop_staging(self, staging: Staging) -> None:
        assert isinstance(staging, LocalStaging)
        try:
            shutil.rmtree(staging.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning(
                "staging %s could not be removed and is left to the next run: %s", staging.folder, error
            )

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        swept = []
        if self._staging.is_dir():
            for folder in sorted(self._staging.glob(f"{stem(pipeline, target)}_*")):
                shutil.rmtree(folder)
                swept.append(f"staging {folder.name}")
        return swept

    def sweep_home(self, home: TableHome, pipeline: str, target: str) -> list[str]:
        assert isinstance(home, LocalHome)
        place = home.place
        if not place.home.is_dir():
            return []
        with versions.table_lock(place):
            versions.settle(place)
            left = versions.remove_unpublished(place)
            versions.remove_replaced(place)
        return [f"unpublished version {name} of {place.name}" for name in left]

    @property
    def _staging(self) -> Path:
        return self.path / HIDDEN / "staging"


def _ours(version: Version) -> versions.Version:
    assert isinstance(version, versions.Version)
    return version
