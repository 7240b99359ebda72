"""The quarantine table of a lake target: a second lake table that changes with the target's commit.

A lake commits one table at a time. So each row records the commit of the target that set it aside, and the
commit that took it out again, by their tokens in the journal. A load writes here first; if it then dies, the
journal does not have its token, and nothing of what it wrote counts. What does not count is removed after
the next commit, when the load that died can no longer commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import QuarantinedRows
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.journal import FOLDER, Journal, LakeCommit
from ematix_flow.backends.lake.quarantine_notes import QuarantineNote, list_notes, table_digest
from ematix_flow.backends.lake.row_changes import new_view_name
from ematix_flow.backends.lake.table_format import LakeFormat
from ematix_flow.backends.lake.target_notes import remembered_tables
from ematix_flow.backends.sql.quarantine import delete_quarantined
from ematix_flow.errors import SchemaMismatch, TargetFailed
from ematix_flow.spec.expectations import QUARANTINE_COLUMNS, QUARANTINED_BY
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINCE, UNTIL = COMMIT_COLUMNS = "_since_commit", "_until_commit"


def is_quarantine(table: TableSpec) -> bool:
    return set(QUARANTINE_COLUMNS) <= set(table.column_names)


def with_commit_columns(spec: TableSpec) -> TableSpec:
    """The quarantine table as it is stored."""
    text = DataType("text")
    added = ColumnSpec(SINCE, text, nullable=True), ColumnSpec(UNTIL, text, nullable=True)
    return TableSpec(spec.schema, spec.name, (*spec.columns, *added), where=spec.where, stamped=False)


def refuse_commit_names(table: TableSpec) -> None:
    """Refuse a declared column with the name of a column that a lake adds to the quarantine table."""
    for name in table.column_names if is_quarantine(table) else ():
        if name.lower() in (SINCE, UNTIL):
            raise SchemaMismatch(
                f"{table.label} would have {name!r} twice: a lake adds it to a quarantine table",
                where=table.where,
                state="nothing was touched",
                next_step="give the column another name, with column_map= or AS in the source SQL",
            )


class LakeQuarantine:
    """One quarantine table, as the journal of a target sees it."""

    def __init__(self, spark: SparkSession, format: LakeFormat, spec: TableSpec, journal: Journal) -> None:
        self._spark, self._format, self.spec, self._journal = spark, format, spec, journal
        self._dialect = LakeDialect()

    @property
    def _name(self) -> str:
        return self._dialect.render(self._format.table_expression(self.spec))

    def exists(self) -> bool:
        return self._format.snapshot(self._spark, self.spec) is not None

    def create(self) -> None:
        self._format.create(self._spark, with_commit_columns(self.spec), ())

    def current_rows(self) -> DataFrame | None:
        """The rows that count; None if there is no table."""
        snapshot = self._format.snapshot(self._spark, self.spec)
        if snapshot is None:
            return None
        rows = self._format.read_snapshot(self._spark, self.spec, snapshot)
        return rows.where(self._dialect.render(self._counts()))

    def _counts(self) -> exp.Expr:
        """Whether a row counts: its load has committed, and no load that took it out has."""
        gone: list[str] = []
        never: list[str] = []
        for note in self._journal.notes:
            (gone if self._journal.has_commit(note) else never).append(note.token)
        return exp.and_(exp.not_(_is_one_of(SINCE, never)), exp.not_(_is_one_of(UNTIL, gone)))

    # ------------------------------------------------------------------ writing, before the target's commit

    def take_out(self, chosen: exp.Expr, commit: LakeCommit) -> bool:
        """Let the chosen rows no longer count once the commit is there. Returns whether there are some."""
        condition = self._dialect.render(exp.and_(chosen, self._counts()))
        return _run_if_any(
            self._spark, self._name, f"UPDATE {self._name} SET {UNTIL} = '{commit.token}'", condition
        )

    def superseded(self, view: str, keys: Sequence[str], pipeline: str) -> DataFrame | None:
        """The keys of the pipeline's rows that are also in the view; None if there are none."""
        current = self.current_rows()
        if current is None:
            return None
        rows = current.where(self._dialect.render(_set_aside_by(pipeline))).select(*keys)
        if rows.isEmpty():
            return None
        found = rows.distinct().join(self._spark.table(view).select(*keys), list(keys), "left_semi")
        return None if found.isEmpty() else found

    def take_out_keys(self, found: DataFrame, keys: Sequence[str], pipeline: str, commit: LakeCommit) -> None:
        """Let the pipeline's rows of these keys no longer count once the commit is there."""
        dialect, view = self._dialect, new_view_name("superseded")
        found.createOrReplaceTempView(view)
        same = [f"q.{dialect.quote(key)} = n.{dialect.quote(key)}" for key in keys]
        chosen = dialect.render(exp.and_(_set_aside_by(pipeline), self._counts()))
        try:
            self._spark.sql(
                f"MERGE INTO {self._name} AS q USING {view} AS n ON {' AND '.join([*same, chosen])} "
                f"WHEN MATCHED THEN UPDATE SET {UNTIL} = '{commit.token}'"
            )
        finally:
            self._spark.catalog.dropTempView(view)

    def count_taken_out(self, commit: LakeCommit) -> int:
        rows = self._format.snapshot(self._spark, self.spec)
        assert rows is not None
        frame = self._format.read_snapshot(self._spark, self.spec, rows)
        return frame.where(f"{UNTIL} = '{commit.token}'").count()

    def add(self, rows: DataFrame, commit: LakeCommit) -> None:
        """Add rows that count once the commit is there."""
        from pyspark.sql import functions as f

        view = new_view_name("quarantined")
        rows.withColumn(SINCE, f.lit(commit.token)).createOrReplaceTempView(view)
        names = ", ".join(map(self._dialect.quote, [*self.spec.column_names, SINCE]))
        try:
            self._spark.sql(f"INSERT INTO {self._name} ({names}) SELECT {names} FROM {view}")
        finally:
            self._spark.catalog.dropTempView(view)


@dataclass(frozen=True)
class QuarantineChange:
    """What a load has done to one quarantine table."""

    note: QuarantineNote
    took_out: bool = False  # else it only added rows


def settle_quarantine(
    spark: SparkSession, format: LakeFormat, journal: Journal, committed: Iterable[QuarantineChange]
) -> None:
    """Remove the rows that do not count. ``committed`` are the changes of the load that has just committed.

    Only after a commit: from then on, a load that died cannot commit any more.
    """
    for change in (*(QuarantineChange(note, True) for note in journal.notes), *committed):
        note, table = change.note, journal.noted_table(change.note)
        if change.took_out and format.snapshot(spark, table) is not None:
            name = LakeDialect().render(format.table_expression(table))
            if note not in journal.notes or journal.has_commit(note):
                _run_if_any(spark, name, f"DELETE FROM {name}", f"{UNTIL} = '{note.token}'")
            else:
                _run_if_any(spark, name, f"DELETE FROM {name}", f"{SINCE} = '{note.token}'")
                _run_if_any(spark, name, f"UPDATE {name} SET {UNTIL} = NULL", f"{UNTIL} = '{note.token}'")
        fault_points.point("quarantine.settled")
        journal.remove_note(note)


def purge_rows(spark: SparkSession, format: LakeFormat, rows: QuarantinedRows, dialect: LakeDialect) -> int:
    """Delete rows of a quarantine table. Returns how many there were.

    Refused while the table has rows of a load that has not committed: they would be deleted with the others.
    """
    if format.snapshot(spark, rows.table) is None:
        return 0
    if _is_changing(format, rows.table):
        raise TargetFailed(
            f"{rows.table.label} has rows of a load that is not done, or has died",
            state="nothing was purged",
            next_step="run the pipeline, and purge them then",
        )
    delete = delete_quarantined(rows, dialect)
    counted = exp.select(exp.Count(this=exp.Star())).from_(delete.this.copy())
    count = spark.sql(dialect.render(counted.where(delete.args["where"].this.copy()))).collect()[0][0]
    if count:
        spark.sql(dialect.render(delete))
    return int(count)


def _is_changing(format: LakeFormat, quarantine: TableSpec) -> bool:
    """Whether the journal of a target has a note of this quarantine table."""
    store, _ = format.table_folder(quarantine)
    digest = table_digest(quarantine)
    folders = {format.table_folder(table)[1] for table in remembered_tables(store)}
    found = (list_notes(store.names(f"{folder}/{FOLDER}")) for folder in folders)
    return any(note.table_digest == digest for notes in found for note in notes)


def _run_if_any(spark: SparkSession, name: str, statement: str, condition: str) -> bool:
    """Run the statement if it changes a row: it takes longer than to look. Returns whether it does."""
    if not spark.sql(f"SELECT 1 FROM {name} WHERE {condition} LIMIT 1").collect():
        return False
    spark.sql(f"{statement} WHERE {condition}")
    return True


def _set_aside_by(pipeline: str) -> exp.Expr:
    return exp.EQ(this=column(QUARANTINED_BY), expression=exp.Literal.string(pipeline))


def _is_one_of(name: str, tokens: Sequence[str]) -> exp.Expr:
    if not tokens:
        return exp.false()
    found = exp.In(this=column(name), expressions=[exp.Literal.string(token) for token in tokens])
    return exp.Coalesce(this=found, expressions=[exp.false()])
