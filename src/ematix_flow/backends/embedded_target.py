"""A database in a file as a target: what SQLite and DuckDB share beyond SQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from ematix_flow.backends.base import LiveTable, TablePlan
from ematix_flow.backends.embedded import DatabaseFile, sweep_folders
from ematix_flow.backends.relational import RelationalTarget
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import TableSpec
from ematix_flow.state.locks import hold_file_lock
from ematix_flow.strategies.matching import Matching


class EmbeddedTarget(RelationalTarget):
    """A subclass brings dialect, sessions and the form of staging."""

    def __init__(self, file: DatabaseFile) -> None:
        file.require_shared("target")
        self.file = file

    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        _require_distinct(table.with_load_columns(), self.file.product)
        return super().plan_table(table, live, matching)

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


def _require_distinct(table: TableSpec, product: str) -> None:
    """These databases take ``ID`` and ``id`` for one column, quoted or not."""
    seen: dict[str, str] = {}
    for name in table.column_names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise SchemaMismatch(
                f"columns {other!r} and {name!r} of {table.label} differ only in case, "
                f"which {product} takes for one name",
                where=table.where,
                next_step="rename one of them",
            )
