"""Storage of tables of files under a prefix of a bucket."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ematix_flow.backends.base import Load, Staging
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout
from ematix_flow.backends.objectstore.layout.table_paths import HIDDEN, safe_file_name
from ematix_flow.backends.objectstore.storage.s3_staging import S3FilesStaging
from ematix_flow.backends.objectstore.storage.s3_table_storage import S3TableStorage
from ematix_flow.backends.objectstore.table.staging import new_attempt
from ematix_flow.backends.objectstore.table.table_storage import StorageRoot, TableStorage
from ematix_flow.backends.stores.s3_store import S3Store
from ematix_flow.backends.stores.table_folders import table_folder
from ematix_flow.errors import CannotConnect, FlowError, LoadError, PlanError
from ematix_flow.spec.tables import TableSpec

_STAGING = f"{HIDDEN}/staging"
_REMARK = (
    "a bucket has no rename: readers of this product see all of a load or nothing, "
    "other readers that list the prefix see its files appear and disappear one by one"
)

_log = logging.getLogger(__name__)


class S3StorageRoot(StorageRoot):
    """The storage of all tables under a store's root."""

    def __init__(self, store: S3Store) -> None:
        self.store = store
        self._separate: set[tuple[str, ...]] = set()

    @contextmanager
    def explain_errors(self, state: str) -> Iterator[None]:
        try:
            yield
        except (LoadError, CannotConnect) as error:
            if error.state is None:
                error.state = state
            raise

    def table_storage(self, table: TableSpec) -> TableStorage:
        parts = table_folder(table)
        self._require_separate(parts)
        return S3TableStorage(self.store, parts)

    def _require_separate(self, parts: tuple[str, ...]) -> None:
        """Refuse a table inside another table: readers of the outer table would read its rows too.

        Refuse a table of another root as well.
        """
        if parts in self._separate:
            return
        for depth in range(1, len(parts)):
            above = S3TableStorage(self.store, parts[:depth])
            if above.newest_version() is not None or above.storage_in_other_root() is not None:
                raise PlanError(
                    f"{'/'.join(parts)!r} would be inside {above.name!r}, which is another table",
                    next_step="choose another schema, name or prefix",
                )
        S3TableStorage(self.store, parts).require_own_root()
        self._separate.add(parts)

    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        return self.store.lock(pipeline, target, run_id)

    # -------------------------------------------------------------- which table a target is

    def remember_target(self, home: TableStorage, pipeline: str, target: str) -> None:
        notes = self._note_path(pipeline, target)
        names = self.store.names(notes)
        text = json.dumps({"pipeline": pipeline, "target": target, "table": home.name})
        newest = names[-1] if names else "000000.json"
        if names and self.store.read(f"{notes}/{newest}") == text:
            return
        self.store.put(f"{notes}/{int(newest.removesuffix('.json')) + 1:06d}.json", text)

    def remembered_table(self, pipeline: str, target: str) -> TableStorage | None:
        notes = self._note_path(pipeline, target)
        names = self.store.names(notes)
        if not names:
            return None
        found = json.loads(self.store.read(f"{notes}/{names[-1]}"))
        return S3TableStorage(self.store, tuple(found["table"].split("/")))

    def _note_path(self, pipeline: str, target: str) -> str:
        return f"{HIDDEN}/targets/{safe_file_name(pipeline, target)}"

    # -------------------------------------------------------------- staging

    def new_staging(self, load: Load, layout: FileLayout) -> S3FilesStaging:
        attempt = new_attempt(load)
        folder = f"{_STAGING}/{safe_file_name(load.pipeline, load.target)}_{attempt}"
        self.store.put(f"{folder}/attempt.json", json.dumps({"run_id": str(load.run_id)}))
        return S3FilesStaging.for_load(load, layout, attempt, store=self.store, folder=folder)

    def drop_staging(self, staging: Staging) -> None:
        assert isinstance(staging, S3FilesStaging)
        try:
            self.store.remove_tree(staging.folder)
        except FlowError as error:
            _log.warning(
                "staging %s could not be removed and stays until the next run: %s", staging.folder, error.what
            )

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        mine = f"{safe_file_name(pipeline, target)}_"
        folders = [name for name in self.store.folders(_STAGING) if name.startswith(mine)]
        return [f"staging {name}" for name in folders if self.store.remove_tree(f"{_STAGING}/{name}")]

    def sweep_table(self, home: TableStorage, pipeline: str, target: str) -> list[str]:
        assert isinstance(home, S3TableStorage)
        if not (home.has_intents() or home.has_expired_files()):
            return []
        with home.lock():
            left = home.clear_intents()
            home.remove_expired_files()
        return [f"{len(left):,} unpublished files of {home.name}"] if left else []

    def remarks(self) -> tuple[str, ...]:
        return (_REMARK,)
