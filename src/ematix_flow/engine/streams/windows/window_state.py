"""The open windows of a stream: one row for each window and group, with its kept aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import CURRENT, LIFETIME, StateFile
from ematix_flow.engine.streams.state.stateful_operator import OpenRows
from ematix_flow.engine.streams.windows.accumulators import Accumulator, add_sketch_functions
from ematix_flow.errors import LoadError
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.windows import Window

if TYPE_CHECKING:
    import duckdb

_TABLE = "windows"
START = internal_name("start")


@dataclass(frozen=True)
class ClosedWindows:
    """The rows of a version for the targets, in a Parquet file; None if there are none."""

    file: Path | None
    rows: int


class WindowState:
    """Columns: `START` in microseconds, ``g0``… for the groups, and those of the accumulators.

    ``revision`` counts how often a row was loaded. ``pending`` rows have changed since.
    """

    def __init__(
        self,
        file: StateFile,
        window: Window,
        group_types: Sequence[str],
        accumulators: Sequence[Accumulator],
    ) -> None:
        self.file, self.window, self.accumulators = file, window, accumulators
        self._groups = [f"g{n}" for n in range(len(group_types))]
        self._fields = [field for each in accumulators for field in each.fields]
        add_sketch_functions(file.database)
        columns = [f"{START} BIGINT NOT NULL"]
        columns += [f"{name} {kind}" for name, kind in zip(self._groups, group_types, strict=True)]
        columns += [f"{field.name} {field.type}" for field in self._fields]
        columns += ["revision INTEGER NOT NULL", "pending BOOLEAN NOT NULL", LIFETIME]
        file.database.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({', '.join(columns)})")

    @property
    def _keys(self) -> list[str]:
        return [START, *self._groups]

    @property
    def _kept(self) -> list[str]:
        return [field.name for field in self._fields]

    def advance(
        self,
        version: int,
        progress: Progress,
        *,
        batch: Sequence[str],
        output: Path,
        flush: bool = False,
    ) -> ClosedWindows:
        """Add the aggregates of a batch (Parquet files), and take out the windows that the watermark closes.

        Windows that were already closed before the batch take no more rows.
        ``flush`` also returns the open windows that have changed since they were last loaded. They stay open.
        """
        before = self.file.progress_before(version)
        with self.file.transaction(version, (_TABLE,)) as database:
            if batch:
                self._add_batch(database, version, batch, before.border)
            closed = self._close_windows(database, version, progress, output, flush)
            self.file.store_progress(version, progress)
        return closed

    def open_windows(self) -> OpenRows:
        rows, first = self.file.first_row(
            f"SELECT count(*), min({START}) FILTER (WHERE pending) FROM {_TABLE} WHERE {CURRENT}"
        ) or (0, None)
        return OpenRows(rows, None if first is None else first + self.window.duration_ms * 1000)

    def _add_batch(
        self,
        database: duckdb.DuckDBPyConnection,
        version: int,
        files: Sequence[str],
        border: int | None,
    ) -> None:
        keys, kept = ", ".join(self._keys), ", ".join(self._kept)
        matches = " AND ".join(f"o.{key} IS NOT DISTINCT FROM p.{key}" for key in self._keys)
        united = ", ".join(f"{field.united} AS {field.name}" for field in self._fields)
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE arrived AS SELECT {keys}, {kept} FROM read_parquet(?)
            WHERE NOT ({expired_sql(self.window, START, border)})""",
            [list(files)],
        )
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE touched AS
            SELECT {keys}, {united}, max(revision) AS revision, max(replaced) AS replaced FROM (
                SELECT {keys}, {kept}, 0 AS revision, NULL::BIGINT AS replaced FROM arrived
                UNION ALL
                SELECT {keys}, {kept}, revision, rowid FROM {_TABLE} o
                WHERE {CURRENT} AND EXISTS (FROM arrived p WHERE {matches}))
            GROUP BY {keys}"""
        )
        self.file.end_rows(_TABLE, version, "rowid IN (SELECT replaced FROM touched)")
        names = ", ".join([*self._keys, *self._kept])
        database.execute(f"INSERT INTO {_TABLE} SELECT {names}, revision, true, {version}, NULL FROM touched")
        self._require_group_limit()

    def _require_group_limit(self) -> None:
        most = self.window.max_groups_per_window
        found = self.file.first_row(
            f"""SELECT {START}, count(*) FROM {_TABLE}
            WHERE {CURRENT} AND {START} IN (SELECT {START} FROM touched)
            GROUP BY 1 HAVING count(*) > {most} ORDER BY 1 LIMIT 1"""
        )
        if found is not None:
            raise LoadError(
                f"a window has {found[1]:,} groups, and max_groups_per_window is {most:,}",
                state="the batch is not loaded; it comes again with the next start",
                next_step="group by fewer values, or set a higher max_groups_per_window=",
            )

    def _close_windows(
        self,
        database: duckdb.DuckDBPyConnection,
        version: int,
        progress: Progress,
        output: Path,
        flush: bool,
    ) -> ClosedWindows:
        duration, watermark = self.window.duration_ms * 1000, progress.watermark
        expired = expired_sql(self.window, START, progress.border)
        # a window's end is exclusive: rows at the watermark belong to the next one
        passed = "false" if watermark is None else f"{START} + {duration} <= {watermark}"
        loaded = f"pending AND ({'true' if flush else passed})"
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE closed AS
            SELECT *, rowid AS replaced, {loaded} AS is_loaded, {expired} AS is_expired
            FROM {_TABLE} WHERE {CURRENT} AND ({loaded} OR {expired})"""
        )
        found, rows, kept = self.file.first_row(
            """SELECT count(*), count(*) FILTER (WHERE is_loaded),
                      count(*) FILTER (WHERE is_loaded AND NOT is_expired) FROM closed"""
        ) or (0, 0, 0)
        if found:
            self.file.end_rows(_TABLE, version, "rowid IN (SELECT replaced FROM closed)")
        if kept:
            names = ", ".join([*self._keys, *self._kept])
            database.execute(
                f"""INSERT INTO {_TABLE} SELECT {names}, revision + 1, false, {version}, NULL
                FROM closed WHERE is_loaded AND NOT is_expired"""
            )
        if not rows:
            return ClosedWindows(None, 0)
        results = [f"{each.result} AS r{n}" for n, each in enumerate(self.accumulators)]
        selected = ", ".join(
            [START, f"{START} + {duration} AS window_end", *self._groups, *results, "revision"]
        )
        order = ", ".join(self._keys)
        database.execute(
            f"COPY (SELECT {selected} FROM closed WHERE is_loaded ORDER BY {order}) "
            f"TO '{path_literal(output)}' (FORMAT parquet)"
        )
        return ClosedWindows(output, int(rows))


def expired_sql(window: Window, start: str, border: int | None) -> str:
    """SQL of Spark and of the state: whether a window takes no more rows, because it ends before a border."""
    return "false" if border is None else f"{start} + {window.duration_ms * 1000} <= {border}"


def path_literal(path: Path) -> str:
    return str(path).replace("'", "''")
