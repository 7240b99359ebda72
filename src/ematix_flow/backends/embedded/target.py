"""An embedded database as a target: what SQLite and DuckDB share besides SQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ematix_flow.backends.base import TablePlan
from ematix_flow.backends.embedded.database_file import DatabaseFile, sweep_staging_folders
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.file_locks import hold_file_lock


class EmbeddedTarget(RelationalTarget):
    """A subclass provides dialect, sessions and the format of staging."""

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("target")
        self.file = file

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        self.file.require_writable()
        super().change_table(table, plan)

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        self.file.require_writable()
        folder, database = self.file.state_folder / "locks", self.file.path.name
        with hold_file_lock(folder, pipeline, target, str(run_id), database=database):
            yield

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        return sweep_staging_folders(self.file, pipeline, target)
