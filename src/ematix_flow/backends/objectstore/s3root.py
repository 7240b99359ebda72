"""A prefix of a bucket as the place for tables of files."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ematix_flow.backends.base import Load, Staging
from ematix_flow.backends.objectstore.filelayout import FileLayout
from ematix_flow.backends.objectstore.homes import FilesRoot, TableHome
from ematix_flow.backends.objectstore.places import HIDDEN, stem
from ematix_flow.backends.objectstore.s3home import S3Home
from ematix_flow.backends.objectstore.s3staging import S3Staging
from ematix_flow.backends.objectstore.staging import new_attempt
from ematix_flow.backends.stores.folders import table_folder
from ematix_flow.backends.stores.s3 import S3Store
from ematix_flow.errors import CannotConnect, FlowError, LoadError, PlanError
from ematix_flow.spec.tables import TableSpec

_STAGING = f"{HIDDEN}/staging"
_REMARK = (
    "a bucket has no rename: readers of this product see a load whole or not at all, "
    "others that list the prefix see its files come and go one by one"
)

_log = logging.getLogger(__name__)


class S3Root(FilesRoot):
    """Tables under a store's root."""

    def __init__(self, store: S3Store) -> None:
        self.store = store
        self._separate: set[tuple[str, ...]] = set()

    @contextmanager
    def told(self, state: str) -> Iterator[None]:
        try:
            yield
        except (LoadError, CannotConnect) as error:
            if error.state is None:
                error.state = state
            raise

    def home(self, table: TableSpec) -> TableHome:
        parts = table_folder(table)
        self._require_separate(parts)
        return S3Home(self.store, parts)

    def _require_separate(self, parts: tuple[str, ...]) -> None:
        """Refuse a table inside another table: readers that list that one would take its rows too.

        Refuse a table of another root as well.
        """
        if parts in self._separate:
            return
        for depth in range(1, len(parts)):
            above = S3Home(self.store, parts[:depth])
            if above.newest() is not None or above.elsewhere() is not None:
                raise PlanError(
                    f"{'/'.join(parts)!r} would lie inside {above.name!r}, which is a table of its own",
                    next_step="choose another schema, name or prefix",
                )
        S3Home(self.store, parts).require_own()
        self._separate.add(parts)

    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        return self.store.lock(pipeline, target, run_id)

    # -------------------------------------------------------------- which table a target is

    def remember(self, home: TableHome, pipeline: str, target: str) -> None:
        notes = self._notes(pipeline, target)
        names = self.store.names(notes)
        text = json.dumps({"pipeline": pipeline, "target": target, "table": home.name})
        newest = names[-1] if names else "000000.json"
        if names and self.store.read(f"{notes}/{newest}") == text:
            return
        self.store.put(f"{notes}/{int(newest.removesuffix('.json')) + 1:06d}.json", text)

    def remembered(self, pipeline: str, target: str) -> TableHome | None:
        notes = self._notes(pipeline, target)
        names = self.store.names(notes)
        if not names:
            return None
        found = json.loads(self.store.read(f"{notes}/{names[-1]}"))
        return S3Home(self.store, tuple(found["table"].split("/")))

    def _notes(self, pipeline: str, target: str) -> str:
        return f"{HIDDEN}/targets/{stem(pipeline, target)}"

    # -------------------------------------------------------------- staging

    def new_staging(self, load: Load, layout: FileLayout) -> S3Staging:
        attempt = new_attempt(load)
        folder = f"{_STAGING}/{stem(load.pipeline, load.target)}_{attempt}"
        self.store.put(f"{folder}/attempt.json", json.dumps({"run_id": str(load.run_id)}))
        return S3Staging.of(load, layout, attempt, store=self.store, folder=folder)

    def drop_staging(self, staging: Staging) -> None:
        assert isinstance(staging, S3Staging)
        try:
            self.store.remove_tree(staging.folder)
        except FlowError as error:
            _log.warning(
                "staging %s could not be removed and is left to the next run: %s", staging.folder, error.what
            )

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        mine = f"{stem(pipeline, target)}_"
        folders = [name for name in self.store.folders(_STAGING) if name.startswith(mine)]
        return [f"staging {name}" for name in folders if self.store.remove_tree(f"{_STAGING}/{name}")]

    def sweep_home(self, home: TableHome, pipeline: str, target: str) -> list[str]:
        assert isinstance(home, S3Home)
        if not (home.has_intents() or home.has_replaced()):
            return []
        with home.locked():
            left = home.clear()
            home.remove_replaced()
        return [f"{len(left):,} unpublished files of {home.name}"] if left else []

    def remarks(self) -> tuple[str, ...]:
        return (_REMARK,)
