"""The rows of a join that wait for partners: one table for the left and one for the right source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import CURRENT, LIFETIME, StateFile
from ematix_flow.engine.streams.state.stateful_operator import OpenRows
from ematix_flow.errors import LoadError
from ematix_flow.spec.joins import Join

if TYPE_CHECKING:
    import duckdb

EVENT = "event"  # the column with the event time in microseconds
_UNUSED_ROWS_STAY = 10_000_000  # microseconds of the clock in which rows without a result may stay


@dataclass(frozen=True)
class Side:
    """One side of the join: its table, its columns ``{letter}0``…, and which of them are the keys.

    A row waits until the watermark has passed its event time by ``waits`` microseconds. A row of a ``kept``
    side is loaded even if no partner came.
    """

    letter: str
    types: tuple[str, ...]  # of the state's columns
    keys: tuple[int, ...]
    waits: int
    kept: bool

    @property
    def table(self) -> str:
        return {"l": "left_rows", "r": "right_rows"}[self.letter]

    @property
    def columns(self) -> list[str]:
        return [f"{self.letter}{n}" for n in range(len(self.types))]

    @property
    def row(self) -> str:
        """The column of the joined rows with the number of this side's row."""
        return f"{self.letter}_row"

    @property
    def has_key(self) -> str:
        """SQL: whether no key is null, so that the row can have a partner."""
        return " AND ".join(f"{self.letter}{n} IS NOT NULL" for n in self.keys)

    def has_ended(self, border: int | None) -> str:
        """SQL: whether no partner of a row can come, because it would be behind the border."""
        return "false" if border is None else f"{EVENT} + {self.waits} < {border}"


@dataclass(frozen=True)
class JoinedRows:
    """The rows of a version for the targets, and the late rows of each side that become dead letters.

    They are in Parquet files. A file is None if it would be empty.
    """

    file: Path | None = None
    late: int = 0
    late_files: tuple[Path | None, Path | None] = (None, None)
    waiting: OpenRows = field(default_factory=OpenRows)


class JoinState:
    """``types`` are those of each side's columns in the state, and ``keys`` the numbers of its keys."""

    def __init__(
        self,
        file: StateFile,
        join: Join,
        types: tuple[Sequence[str], Sequence[str]],
        keys: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        self.file, self.join = file, join
        self.left = Side("l", tuple(types[0]), tuple(keys[0]), join.max_delta * 1000, join.keeps_left)
        self.right = Side("r", tuple(types[1]), tuple(keys[1]), -join.min_delta * 1000, join.keeps_right)
        for side in self.sides:
            columns = [f"{EVENT} BIGINT NOT NULL"]
            columns += [f"{name} {kind}" for name, kind in zip(side.columns, side.types, strict=True)]
            columns += ["matched BOOLEAN NOT NULL", LIFETIME]
            file.database.execute(f"CREATE TABLE IF NOT EXISTS {side.table} ({', '.join(columns)})")

    @property
    def sides(self) -> tuple[Side, Side]:
        return (self.left, self.right)

    def advance(
        self,
        version: int,
        progress: Progress,
        *,
        batch: tuple[Sequence[str], Sequence[str]] = ((), ()),
        output: Path,
    ) -> JoinedRows:
        """Add the rows of a batch (Parquet files of each side) and return their pairs.

        Rows leave the state when ``progress`` has passed the time of their last possible partner. A row that
        came after that time and found no partner is late.
        """
        before = self.file.progress_before(version)
        with self.file.transaction(version, (self.left.table, self.right.table)) as database:
            for side, files in zip(self.sides, batch, strict=True):
                if files:
                    self._add_rows(database, side, files, version)
            pairs = self._join(database, version if any(batch) else None)
            late = [
                self._take_late_rows(database, side, version, before.border, output) for side in self.sides
            ]
            for side in self.sides:
                if side.kept and pairs:
                    self._mark_matched(database, side, version)
                self._remove_ended(database, side, version, progress.border)
            waiting = self.waiting_rows()
            self._require_limit(waiting.rows)
            self.file.store_progress(version, progress)
            names = ", ".join([*self.left.columns, *self.right.columns])
            rows = self._write(f"SELECT {names} FROM joined", output)
            database.execute("DROP TABLE joined")
        (left, left_file), (right, right_file) = late
        return JoinedRows(output if rows else None, left + right, (left_file, right_file), waiting)

    def waiting_rows(self) -> OpenRows:
        """How many rows wait, and the watermark at which the next of them has waited long enough."""
        waits = []
        for side in self.sides:
            unmatched = "NOT matched" if side.kept else "false"
            waits.append(
                f"""SELECT count(*) AS n, min({EVENT}) FILTER (WHERE {unmatched}) + {side.waits} AS loaded,
                    min({EVENT}) + {side.waits + _UNUSED_ROWS_STAY} AS removed
                FROM {side.table} WHERE {CURRENT}"""
            )
        rows, loaded, removed = self.file.first_row(
            f"SELECT sum(n)::BIGINT, min(loaded), min(removed) FROM ({' UNION ALL '.join(waits)})"
        ) or (0, None, None)
        due = [end + self.join.reopens_for * 1000 + 1 for end in (loaded, removed) if end is not None]
        return OpenRows(rows, min(due, default=None))

    # -------------------------------------------------------------- the steps of a version

    def _add_rows(
        self, database: duckdb.DuckDBPyConnection, side: Side, files: Sequence[str], version: int
    ) -> None:
        names = ", ".join(side.columns)
        database.execute(
            f"INSERT INTO {side.table} SELECT {EVENT}, {names}, false, {version}, NULL FROM read_parquet(?)",
            [list(files)],
        )

    def _join(self, database: duckdb.DuckDBPyConnection, version: int | None) -> int:
        """Make the table ``joined`` with the pairs that the rows of this version complete, and count them."""
        left, right = self.sides
        equal = " AND ".join(
            f"l.l{one} = r.r{other}" for one, other in zip(left.keys, right.keys, strict=True)
        )
        near = (
            f"r.{EVENT} BETWEEN l.{EVENT} + {self.join.min_delta * 1000} "
            f"AND l.{EVENT} + {self.join.max_delta * 1000}"
        )
        columns = ", ".join([f"l.rowid AS {left.row}, r.rowid AS {right.row}", *left.columns, *right.columns])
        pairs = (
            f"SELECT {columns} FROM {left.table} l JOIN {right.table} r ON {equal} AND {near} "
            f"WHERE l.{CURRENT} AND r.{CURRENT}"
        )
        # new rows first: the other way round, all pairs of the state would be joined again
        new = "false" if version is None else f"l.since = {version}"
        old = "false" if version is None else f"l.since < {version} AND r.since = {version}"
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE joined AS {pairs} AND {new} UNION ALL {pairs} AND {old}"
        )
        found = self.file.first_row("SELECT count(*) FROM joined") if version is not None else None
        return int(found[0]) if found else 0

    def _take_late_rows(
        self,
        database: duckdb.DuckDBPyConnection,
        side: Side,
        version: int,
        border: int | None,
        output: Path,
    ) -> tuple[int, Path | None]:
        """Count the rows that came after their end and found no partner.

        If they become dead letters, they are written to a file and leave the state.
        """
        if border is None:
            return 0, None
        is_late = (
            f"{CURRENT} AND since = {version} AND {EVENT} < {border} AND {side.has_ended(border)} "
            f"AND {side.has_key} "
            f"AND rowid NOT IN (SELECT {side.row} FROM joined)"
        )
        if self.join.late_data != "dlq":
            found = self.file.first_row(f"SELECT count(*) FROM {side.table} WHERE {is_late}")
            return (found[0] if found else 0), None
        file = output.with_name(f"late-{side.letter}-{output.name}")
        late = self._write(f"SELECT {', '.join(side.columns)} FROM {side.table} WHERE {is_late}", file)
        if late:
            database.execute(f"UPDATE {side.table} SET until = {version} WHERE {is_late}")
        return late, file if late else None

    def _mark_matched(self, database: duckdb.DuckDBPyConnection, side: Side, version: int) -> None:
        """Mark the rows that found their first partner, so that they are not loaded without one.

        Rows of earlier versions are replaced. A statement that changes them together with rows of this
        transaction can miss some of them in DuckDB 2.0.
        """
        names = ", ".join([EVENT, *side.columns])
        found = f"{CURRENT} AND NOT matched AND rowid IN (SELECT {side.row} FROM joined)"
        database.execute(f"UPDATE {side.table} SET matched = true WHERE since = {version} AND {found}")
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE changed AS SELECT {names}, rowid AS replaced FROM {side.table}
            WHERE since < {version} AND {found}"""
        )
        database.execute(
            f"""UPDATE {side.table} SET until = {version}
            WHERE since < {version} AND rowid IN (SELECT replaced FROM changed)"""
        )
        database.execute(f"INSERT INTO {side.table} SELECT {names}, true, {version}, NULL FROM changed")
        database.execute("DROP TABLE changed")

    def _remove_ended(
        self, database: duckdb.DuckDBPyConnection, side: Side, version: int, border: int | None
    ) -> None:
        """Remove the rows that cannot find a partner any more, and add those without one to the result."""
        ended = f"({side.has_ended(border)} OR NOT ({side.has_key}))"
        if side.kept:
            filled = ", ".join(["rowid", *side.columns])
            database.execute(
                f"""INSERT INTO joined ({", ".join([side.row, *side.columns])})
                SELECT {filled} FROM {side.table} WHERE {CURRENT} AND {ended} AND NOT matched"""
            )
        self.file.end_rows(side.table, version, ended)

    def _require_limit(self, rows: int) -> None:
        most = self.join.max_state_rows
        if rows > most:
            raise LoadError(
                f"{rows:,} rows wait for a partner, and max_state_rows is {most:,}",
                state="the batch is not loaded; it comes again with the next start",
                next_step="join within a shorter time, set Watermark(source_idleness_ms=…) if one source is "
                "quiet, or set a higher max_state_rows=",
            )

    def _write(self, sql: str, file: Path) -> int:
        """Write the rows of a query into a Parquet file, if there are any, and return their number."""
        found = self.file.first_row(f"SELECT count(*) FROM ({sql})")
        rows = int(found[0]) if found else 0
        if rows:
            quoted = str(file).replace("'", "''")
            self.file.database.execute(f"COPY ({sql}) TO '{quoted}' (FORMAT parquet)")
        return rows
