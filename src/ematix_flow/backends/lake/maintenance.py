"""Maintenance of a lake table: merges small files, removes files that are no longer needed, folds the
journal.

All of it runs under the table's lock, even the removal of old files: a table's retention, or a user's, may be
shorter than a load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.backends.lake.companion_table import UNTIL, with_lifetime_columns
from ematix_flow.backends.lake.conflict_retries import retry_on_conflict
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.journal import KEPT_ENTRIES, Journal
from ematix_flow.backends.lake.table_format import CompactionResult, LakeFormat
from ematix_flow.backends.maintenance import FileTotals, MaintenanceOptions, MaintenanceReport, duration_text
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import TargetFailed, UsageError, did_you_mean
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 4


@dataclass(frozen=True)
class LakeMaintenance:
    """Maintenance of one declared table. ``journal`` opens its journal again."""

    spark: SparkSession
    format: LakeFormat
    table: TableSpec
    journal: Callable[[], Journal]
    options: MaintenanceOptions

    def run(self) -> list[MaintenanceReport]:
        if self.format.snapshot(self.spark, self.table) is None:
            return []
        self.format.require_separate(self.table)  # the files of another table would look like orphans
        self._require_columns()
        companions = self._companion_tables()
        self._require_kept_long_enough([self.table, *companions])
        store, folder = self.format.table_folder(self.table)
        if self.options.dry_run:
            journal = self.journal()
            compacted = [self._compact(self.table), *[self._compact(spec) for spec in companions]]
            events = sum(self._count_ended_events(spec, journal.last_number) for spec in companions)
            entries = max(0, len(journal.committed) - KEPT_ENTRIES)
        else:
            with store.table_lock(folder):
                journal = self.journal()
                events = sum(self._remove_ended_events(spec, journal.last_number) for spec in companions)
                compacted = [self._compact(self.table), *[self._compact(spec) for spec in companions]]
                entries = journal.fold()
        removed = self._remove_old_files([self.table, *companions], store, folder)
        return [
            MaintenanceReport(
                spec.label,
                change.before,
                change.after,
                removed_files,
                change.small,
                events if spec is not self.table else 0,
                entries if spec is self.table else 0,
            )
            for spec, change, removed_files in zip([self.table, *companions], compacted, removed, strict=True)
        ]

    def _companion_tables(self) -> list[TableSpec]:
        companion = self.table.companion()
        if companion is None:
            return []
        stored = with_lifetime_columns(companion)
        return [stored] if self.format.snapshot(self.spark, stored) is not None else []

    def _require_columns(self) -> None:
        known = self.table.with_load_columns().column_names
        for name in self.options.zorder:
            if name not in known:
                raise UsageError(
                    f"{name!r} is not a column of {self.table.label}.{did_you_mean(name, known)}",
                    state="nothing was touched",
                )
        for name in self.format.partition_columns(self.spark, self.table) if self.options.zorder else ():
            if name in self.options.zorder:
                raise UsageError(
                    f"{name!r} is a partition column of {self.table.label}: each file has one value of it",
                    state="nothing was touched",
                    next_step="leave it out of the Z-order columns",
                )

    def _require_kept_long_enough(self, specs: Sequence[TableSpec]) -> None:
        retain = self.options.retain
        if retain is None or self.options.force:
            return
        for spec in specs:
            own = self.format.retention(self.spark, spec)
            if retain < own:
                raise UsageError(
                    f"{spec.label} keeps its files for {duration_text(own)}; keeping them for "
                    f"{duration_text(retain)} only removes them from under readers and "
                    "writers that rely on them",
                    state="nothing was touched",
                    next_step="use --force (force=True) if you know that there are none",
                )

    def _compact(self, spec: TableSpec) -> CompactionResult:
        zorder = self.options.zorder if spec is self.table else ()
        return retry_on_conflict(
            lambda: self.format.compact(self.spark, spec, zorder, dry_run=self.options.dry_run),
            self.format.is_conflict,
            _TRIES,
            lambda: TargetFailed(
                f"other writers changed {spec.label} during each of {_TRIES} attempts to compact it",
                state=f"{spec.label} has every row; its files are as those writers left them",
                next_step="run it again when they are done",
            ),
        )

    def _remove_old_files(self, specs: Sequence[TableSpec], store: Store, folder: str) -> list[FileTotals]:
        options = self.options
        with nullcontext() if options.dry_run else store.table_lock(folder):
            self.journal()  # checks commits without a mark, before old versions are removed
            return [
                self.format.remove_old_files(self.spark, spec, options.retain, dry_run=options.dry_run)
                for spec in specs
            ]

    # ------------------------------------------------------------------ events of a history

    def _count_ended_events(self, spec: TableSpec, number: int) -> int:
        """The number of events that a committed load has ended."""
        name = LakeDialect().render(self.format.table_expression(spec))
        return int(self.spark.sql(f"SELECT count(*) FROM {name} WHERE {UNTIL} <= {number}").collect()[0][0])

    def _remove_ended_events(self, spec: TableSpec, number: int) -> int:
        ended = self._count_ended_events(spec, number)
        if ended:
            name = LakeDialect().render(self.format.table_expression(spec))
            self.spark.sql(f"DELETE FROM {name} WHERE {UNTIL} <= {number}")
        return ended
