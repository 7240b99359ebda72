"""A SQL database as a target: plans tables, reads the ledger, and applies a load in one transaction.

A subclass provides dialect, sessions, staging and lock.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from ematix_flow import fault_points
from ematix_flow.backends.base import (
    STREAM_BATCHES,
    LedgerEntry,
    LiveTable,
    Load,
    LoadResult,
    LoadRows,
    QuarantinedRows,
    TablePlan,
)
from ematix_flow.backends.gated_target import GatedTarget, QuarantineCount
from ematix_flow.backends.sql.control_tables import (
    LEDGER,
    TIMESTAMP,
    WATERMARKS,
    create_control_tables,
    delete_old_batches_sql,
    refuse_control_table,
    select_control_sql,
)
from ematix_flow.backends.sql.database import SqlDatabase
from ematix_flow.backends.sql.load_transaction import apply_load, is_committed
from ematix_flow.backends.sql.quarantine_reads import (
    count_quarantined,
    purge_quarantined,
    read_quarantined,
)
from ematix_flow.backends.sql.session import SqlSession, transaction
from ematix_flow.backends.stores.ledger_records import entry_from_columns
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.matching import Matching


class RelationalTarget(SqlDatabase, GatedTarget):
    """A SQL database as a target."""

    forgets_batches = True

    # -------------------------------------------------------------- tables

    def inspect(self, table: TableSpec) -> LiveTable | None:
        with self.read_session() as session:
            return self.read_live_table(session, table)

    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        refuse_control_table(self.dialect, table)
        with self.read_session() as session:
            return self.plan_in_session(session, table, live, matching)

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """Make the changes and create the control tables, in one transaction."""
        with self.session() as session, transaction(session):
            create_control_tables(self.dialect, session, self.schema_changes)
            for change in plan.changes:
                session.execute(change.sql)

    # -------------------------------------------------------------- ledger and watermark

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        with self.read_session() as session:
            if not self.control_table_exists(session, WATERMARKS):
                return None
            return self.read_watermark(session, pipeline, target, column)

    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        names = list(LEDGER.column_names)
        filters = ["pipeline", "target"] + (["run_id"] if run_id else [])
        params = {"pipeline": pipeline, "target": target} | ({"run_id": run_id} if run_id else {})
        with self.read_session() as session:
            if not self.control_table_exists(session, LEDGER):
                return []
            sql = select_control_sql(self.dialect, LEDGER, names, filters, order="committed_at", limit=limit)
            rows = session.fetch(sql, params)
        return [self._ledger_entry(dict(zip(names, row, strict=True))) for row in rows]

    def forget_batches(self, pipeline: str, target: str, before: dt.datetime) -> None:
        old = self.bind(before, TIMESTAMP)
        params = {
            "pipeline": pipeline,
            "target": target,
            "committed_at": old,
            "batches": f"{STREAM_BATCHES}%",
        }
        with self.session() as session, transaction(session):
            session.execute(delete_old_batches_sql(self.dialect, LEDGER), params)

    def _ledger_entry(self, row: dict[str, Any]) -> LedgerEntry:
        committed_at = self.dialect.to_python(row["committed_at"], TIMESTAMP)
        return entry_from_columns({**row, "committed_at": committed_at})

    # -------------------------------------------------------------- gate and quarantine

    def gate_dialect(self) -> str:
        return self.dialect.name

    def count_quarantined(self, table: TableSpec, pipeline: str) -> list[QuarantineCount]:
        return count_quarantined(self, table, pipeline)

    def read_quarantined(self, rows: QuarantinedRows, limit: int, offset: int) -> list[Mapping[str, Any]]:
        return read_quarantined(self, rows, limit, offset)

    def purge_quarantined(self, rows: QuarantinedRows) -> int:
        return purge_quarantined(self, rows)

    # -------------------------------------------------------------- the one transaction

    def apply_session(self, load: Load) -> AbstractContextManager[SqlSession]:
        """The session of the load's transaction; a server uses the one that holds the pipeline's lock."""
        return self.session()

    def apply(self, load: Load, rows: LoadRows) -> LoadResult:
        with self.apply_session(load) as session:
            result = apply_load(self, session, load, rows)
        if is_committed(load, result):
            fault_points.point("apply.after_commit")
        return result

    def run_sql(self, sql: str) -> int:
        with self.session() as session, transaction(session):
            return session.execute(sql)
