"""A database in a file as a target: what SQLite and DuckDB share beyond SQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ematix_flow.backends.base import TablePlan
from ematix_flow.backends.embedded import DatabaseFile, sweep_folders
from ematix_flow.backends.relational import RelationalTarget
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.locks import hold_file_lock


class EmbeddedTarget(RelationalTarget):
    """A subclass brings dialect, sessions and the form of staging."""

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("target")
        self.file = file

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        self.file.require_writable()
        super().change_table(table, plan)

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        self.file.require_writable()
        folder, database = self.file.beside / "locks", self.file.path.name
        with hold_file_lock(folder, pipeline, target, str(run_id), database=database):
            yield

    def sweep(self, pipeline: str, target: str) -> list[str]:
        return sweep_folders(self.file, pipeline, target)
