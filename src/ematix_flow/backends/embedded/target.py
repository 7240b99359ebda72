"""An embedded database as a target: what SQLite and DuckDB share, apart from SQL."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from ematix_flow.backends.base import Load, Staging, TablePlan
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.embedded.staging_folders import (
    FolderStaging,
    create_staging_folder,
    drop_staging_folder,
    sweep_staging_folders,
)
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.file_locks import hold_file_lock

if TYPE_CHECKING:
    import pyarrow as pa


class EmbeddedTarget(RelationalTarget):
    """A subclass provides dialect, sessions and the format of staging."""

    staging_type: type[FolderStaging]

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("target")
        self.file = file

    @abstractmethod
    def read_session(self) -> AbstractContextManager[SqlSession]: ...

    def apply_session(self, load: Load) -> AbstractContextManager[SqlSession]:
        # a dry run creates no database
        return self.read_session() if load.dry_run and not self.file.exists else self.session()

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        self.file.require_writable()
        super().change_table(table, plan)

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        self.file.require_writable()
        folder, database = self.file.state_folder / "locks", self.file.path.name
        with hold_file_lock(folder, pipeline, target, str(run_id), database=database):
            yield

    def create_staging(self, load: Load, schema: pa.Schema) -> Staging:
        columns = tuple((c.name, c.type) for c in load.plan.staged.columns)
        return self.staging_type(create_staging_folder(self.file, load), columns)

    def drop_staging(self, staging: Staging) -> None:
        assert isinstance(staging, FolderStaging)
        drop_staging_folder(staging.folder)

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        return sweep_staging_folders(self.file, pipeline, target)
