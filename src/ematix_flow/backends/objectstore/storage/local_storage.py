"""Storage of tables of files in a folder of a disk."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry, Load, Staging
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout
from ematix_flow.backends.objectstore.layout.table_paths import (
    HIDDEN,
    DataFile,
    TablePaths,
    data_files,
    locate_table,
    make_state_folder,
    other_folders,
    safe_file_name,
)
from ematix_flow.backends.objectstore.storage import local_versions
from ematix_flow.backends.objectstore.table.disk_errors import explain_disk_errors
from ematix_flow.backends.objectstore.table.staging import LocalFilesStaging, new_attempt
from ematix_flow.backends.objectstore.table.table_state import (
    TableState,
    ledger_entries,
    ledger_has_batch,
    sealed_reader,
)
from ematix_flow.backends.objectstore.table.table_storage import StorageRoot, TableStorage, TableVersion
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.file_locks import hold_file_lock

_log = logging.getLogger(__name__)


class LocalTableStorage(TableStorage):
    """A table whose folder is a link to the current version's data."""

    def __init__(self, place: TablePaths) -> None:
        self.place = place

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def display_name(self) -> str:
        return str(self.place.folder)

    def lock(self) -> AbstractContextManager[None]:
        return local_versions.table_lock(self.place)

    def current_version(self) -> TableVersion | None:
        return local_versions.current_version(self.place)

    def data_files(self, version: TableVersion) -> list[DataFile]:
        return (
            data_files(_as_local_version(version).data) if self._is_published(version) else self.user_files()
        )

    def _is_published(self, version: TableVersion) -> bool:
        return _as_local_version(version).path != self.place.folder

    def user_files(self) -> list[DataFile]:
        return data_files(self.place.folder) if self.place.folder.is_dir() else []

    def user_folders(self) -> list[str]:
        return other_folders(self.place.folder) if self.place.folder.is_dir() else []

    def preview_version(self, state: TableState) -> TableVersion:
        return local_versions.LocalVersion(self.place.folder, state, self.place.folder)

    def adopt_user_files(self, state: TableState, files: Sequence[DataFile]) -> TableVersion:
        """Publish the user's files as the first version. The user's folder is kept aside as it is."""
        if not files:
            return self.preview_version(state)
        path = local_versions.link_files(self.place, files)
        version = local_versions.seal_version(self.place, path, None, state)
        local_versions.publish(self.place, version)
        local_versions.finish_adoption(self.place)
        return version

    def publish(
        self, base: TableVersion, kept_files: Sequence[str], new: Sequence[DataFile], state: TableState
    ) -> None:
        place, there = self.place, _as_local_version(base)
        stay = [DataFile(there.data / name, name) for name in kept_files]
        is_first = not self._is_published(base)
        path = local_versions.link_files(place, [*stay, *new])
        try:
            fault_points.point("apply.rows_written")
            version = local_versions.seal_version(place, path, None if is_first else there, state)
            fault_points.point("apply.ledger_written")
            fault_points.point("apply.before_commit")
            local_versions.publish(place, version)
        except Exception:
            if not local_versions.is_current_version(place, path):
                shutil.rmtree(path, ignore_errors=True)
            raise
        fault_points.point("apply.after_commit")
        with suppress(OSError):  # the load is committed; what could not be removed now is removed later
            if is_first:  # an empty folder may have been there
                local_versions.finish_adoption(place)
            local_versions.remove_expired_versions(place)

    def recover(self) -> None:
        local_versions.finish_adoption(self.place)

    def has_batch(self, version: TableVersion, pipeline: str, target: str, batch_key: str) -> bool:
        return ledger_has_batch(
            sealed_reader(_as_local_version(version).path), version.state, pipeline, target, batch_key
        )

    def ledger_entries(self, version: TableVersion, pipeline: str, target: str) -> Iterator[LedgerEntry]:
        return ledger_entries(sealed_reader(_as_local_version(version).path), version.state, pipeline, target)


class LocalStorageRoot(StorageRoot):
    """``path`` is absolute. The driver and every worker must see it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def explain_errors(self, state: str) -> AbstractContextManager[None]:
        return explain_disk_errors(self.path, state)

    def table_storage(self, table: TableSpec) -> TableStorage:
        place = locate_table(self.path, table)
        place.require_separate()
        place.require_own_root()
        return LocalTableStorage(place)

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        folder = self.path / HIDDEN / "locks"
        with explain_disk_errors(folder, "this run has not begun; the target is untouched"):
            make_state_folder(self.path, folder.name)
        with hold_file_lock(folder, pipeline, target, str(run_id)):
            yield

    def remember_target(self, home: TableStorage, pipeline: str, target: str) -> None:
        assert isinstance(home, LocalTableStorage)
        local_versions.remember_target(home.place, pipeline, target)

    def remembered_table(self, pipeline: str, target: str) -> TableStorage | None:
        place = local_versions.remembered_target(self.path, pipeline, target)
        return LocalTableStorage(place) if place is not None else None

    def new_staging(self, load: Load, layout: FileLayout) -> LocalFilesStaging:
        attempt = new_attempt(load)
        make_state_folder(self.path, self._staging_folder.name)
        folder = self._staging_folder / f"{safe_file_name(load.pipeline, load.target)}_{attempt}"
        folder.mkdir()
        return LocalFilesStaging.for_load(load, layout, attempt, folder=str(folder))

    def drop_staging(self, staging: Staging) -> None:
        assert isinstance(staging, LocalFilesStaging)
        try:
            shutil.rmtree(staging.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning(
                "staging %s could not be removed and stays until the next run: %s", staging.folder, error
            )

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        swept = []
        if self._staging_folder.is_dir():
            for folder in sorted(self._staging_folder.glob(f"{safe_file_name(pipeline, target)}_*")):
                shutil.rmtree(folder)
                swept.append(f"staging {folder.name}")
        return swept

    def sweep_table(self, home: TableStorage, pipeline: str, target: str) -> list[str]:
        assert isinstance(home, LocalTableStorage)
        place = home.place
        if not place.versions_folder.is_dir():
            return []
        with local_versions.table_lock(place):
            local_versions.finish_adoption(place)
            left = local_versions.remove_unpublished(place)
            local_versions.remove_expired_versions(place)
        return [f"unpublished version {name} of {place.name}" for name in left]

    @property
    def _staging_folder(self) -> Path:
        return self.path / HIDDEN / "staging"


def _as_local_version(version: TableVersion) -> local_versions.LocalVersion:
    assert isinstance(version, local_versions.LocalVersion)
    return version
