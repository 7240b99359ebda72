"""The sessions of a stream: rows of a group that follow each other within less than the gap.

A session that takes no more rows stays in the state for one more gap, so that a row that belongs to it is
known to be late and does not begin a second session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.engine.streams.state.progress import Progress
from ematix_flow.engine.streams.state.state_file import CURRENT, LIFETIME, StateFile
from ematix_flow.engine.streams.state.stateful_operator import OpenRows
from ematix_flow.engine.streams.windows.accumulators import Accumulator, add_sketch_functions
from ematix_flow.engine.streams.windows.window_state import START, ClosedWindows, path_literal
from ematix_flow.errors import LoadError
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.windows import Window

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_TABLE = "sessions"
_ORDER = "first_at, last_at, id NULLS LAST"
_ROWS_AT_ONCE = 100_000
LATE_AT = internal_name("late_at")  # the event time of a late row
ROWS = "rows"  # how many rows of the batch a row of its file stands for


@dataclass(frozen=True)
class LateRows:
    """The rows of a batch whose sessions take no more rows. ``file`` has their times and groups."""

    rows: int = 0
    file: Path | None = None


class SessionState:
    """Columns: ``first_at`` and ``last_at`` in microseconds, ``g0``… for the groups, and the accumulators'.

    ``id`` never changes while a session grows. ``revision`` counts how often it was loaded; ``pending``
    sessions have changed since.
    """

    def __init__(
        self,
        file: StateFile,
        window: Window,
        group_types: Sequence[str],
        accumulators: Sequence[Accumulator],
    ) -> None:
        assert window.gap_ms is not None and window.max_session_duration_ms is not None
        self.file, self.window, self.accumulators = file, window, accumulators
        self._gap, self._longest = window.gap_ms * 1000, window.max_session_duration_ms * 1000
        self._groups = [f"g{n}" for n in range(len(group_types))]
        self._fields = [field for each in accumulators for field in each.fields]
        self.late = LateRows()
        add_sketch_functions(file.database)
        columns = ["id VARCHAR NOT NULL", "first_at BIGINT NOT NULL", "last_at BIGINT NOT NULL"]
        columns += [f"{name} {kind}" for name, kind in zip(self._groups, group_types, strict=True)]
        columns += [f"{field.name} {field.type}" for field in self._fields]
        columns += ["revision INTEGER NOT NULL", "pending BOOLEAN NOT NULL", LIFETIME]
        file.database.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({', '.join(columns)})")

    @property
    def _kept(self) -> str:
        """The columns of a group and its aggregates, for a SELECT."""
        return ", ".join([*self._groups, *(field.name for field in self._fields)])

    @property
    def _same_chain(self) -> str:
        return ", ".join([*self._groups, "chain"])

    def _same_group(self, one: str, other: str) -> str:
        matches = [f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in self._groups]
        return " AND ".join(matches) or "true"

    def advance(
        self,
        version: int,
        progress: Progress,
        *,
        batch: Sequence[str],
        output: Path,
        flush: bool = False,
    ) -> ClosedWindows:
        """Add a batch (Parquet files), and take out the sessions that the watermark closes.

        ``flush`` also returns the open sessions that have changed since their last load. They stay open.
        """
        before = self.file.progress_before(version)
        self.late = LateRows()
        with self.file.transaction(version, (_TABLE,)) as database:
            self._add_batch(database, version, batch, before.border, output)
            closed = self._close_sessions(database, version, progress, output, flush)
            self._require_session_limit(progress.border)
            self.file.store_progress(version, progress)
        return closed

    def open_windows(self) -> OpenRows:
        rows, last = self.file.first_row(
            f"SELECT count(*), min(last_at) FILTER (WHERE pending) FROM {_TABLE} WHERE {CURRENT}"
        ) or (0, None)
        return OpenRows(rows, None if last is None else last + self._gap)

    def _expired(self, border: int | None, times: int = 1) -> str:
        """SQL: whether a session takes no more rows. With ``times`` 2, whether it can be forgotten."""
        return "false" if border is None else f"last_at + {times * self._gap} <= {border}"

    # -------------------------------------------------------------- add a batch

    def _add_batch(
        self,
        database: duckdb.DuckDBPyConnection,
        version: int,
        files: Sequence[str],
        border: int | None,
        output: Path,
    ) -> None:
        groups = "".join(f"{name}, " for name in self._groups)
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE withdrawn AS
            SELECT {groups}revision, id, first_at, last_at, id AS merged_into FROM {_TABLE} WHERE false"""
        )
        if not files:
            return
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE arrived AS SELECT {START} AS event_at, {self._kept}, {ROWS} "
            "FROM read_parquet(?)",
            [list(files)],
        )
        if border is not None:
            self._take_out_late_rows(database, border, output)
        self._chain_pieces(database, border)
        self._cut_long_chains(database)
        self._merge_pieces(database, version)
        self._replace_sessions(database, version)

    def _take_out_late_rows(self, database: duckdb.DuckDBPyConnection, border: int, output: Path) -> None:
        """A row is late if its session takes no more rows: a stored one, or one that it would begin.

        It is never late if a stored session that is still open can take it.
        """
        fits = f"greatest(s.last_at, a.event_at) - least(s.first_at, a.event_at) <= {self._longest}"
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE late AS
            SELECT a.rowid AS arrival FROM arrived a LEFT JOIN {_TABLE} s
              ON s.{CURRENT} AND {self._same_group("a", "s")}
             AND s.first_at - {self._gap} < a.event_at AND a.event_at < s.last_at + {self._gap}
            WHERE a.event_at < {border}
            GROUP BY a.rowid, a.event_at
            HAVING NOT coalesce(bool_or(NOT ({self._expired(border)}) AND {fits}), false)
               AND (a.event_at + {self._gap} <= {border} OR count(s.id) > 0)"""
        )
        rows = self.file.first_row(
            f"SELECT sum({ROWS}) FROM arrived WHERE rowid IN (SELECT arrival FROM late)"
        )
        if rows is None or rows[0] is None:
            return
        file = output.with_name("late.parquet")
        groups = "".join(f", {name} AS {internal_name(name)}" for name in self._groups)
        database.execute(
            f"COPY (SELECT event_at AS {LATE_AT}{groups} FROM arrived "
            "WHERE rowid IN (SELECT arrival FROM late)) "
            f"TO '{path_literal(file)}' (FORMAT parquet)"
        )
        self.late = LateRows(int(rows[0]), file)
        database.execute("DELETE FROM arrived WHERE rowid IN (SELECT arrival FROM late)")

    def _chain_pieces(self, database: duckdb.DuckDBPyConnection, border: int | None) -> None:
        """Number the chains of each group: pieces (arrived rows and stored sessions) without a gap."""
        partition = f"PARTITION BY {', '.join(self._groups)} " if self._groups else ""
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE pieces AS
            WITH found AS (
                SELECT event_at AS first_at, event_at AS last_at, {self._kept},
                       NULL::VARCHAR AS id, 0 AS revision, NULL::BIGINT AS replaced
                FROM arrived
                UNION ALL
                SELECT first_at, last_at, {self._kept}, id, revision, rowid FROM {_TABLE} s
                WHERE {CURRENT} AND NOT ({self._expired(border)})
                  AND EXISTS (FROM arrived a WHERE {self._same_group("a", "s")})),
            spaced AS (
                SELECT *, first_at - max(last_at) OVER ({partition}ORDER BY {_ORDER}
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS pause
                FROM found)
            SELECT * EXCLUDE pause, row_number() OVER () AS piece,
                   count_if(pause IS NULL OR pause >= {self._gap}) OVER ({partition}ORDER BY {_ORDER}
                       ROWS UNBOUNDED PRECEDING) AS chain
            FROM spaced"""
        )

    def _cut_long_chains(self, database: duckdb.DuckDBPyConnection) -> None:
        """Divide chains that are longer than a session may be into parts."""
        import pyarrow as pa

        found = database.sql(
            f"""SELECT piece, row_number() OVER (PARTITION BY {self._same_chain} ORDER BY {_ORDER}) = 1,
                       first_at, last_at
            FROM pieces
            QUALIFY max(last_at) OVER (PARTITION BY {self._same_chain})
                  - min(first_at) OVER (PARTITION BY {self._same_chain}) > {self._longest}
            ORDER BY {self._same_chain}, {_ORDER}"""
        ).to_arrow_reader(_ROWS_AT_ONCE)
        parts = pa.Table.from_batches(_cut(found, self._gap, self._longest), _parts_schema())
        database.register("cut", parts)
        database.execute(
            """CREATE OR REPLACE TEMP TABLE parts AS
            SELECT p.*, coalesce(c.part, 0) AS part FROM pieces p LEFT JOIN cut c USING (piece)"""
        )
        database.unregister("cut")

    def _merge_pieces(self, database: duckdb.DuckDBPyConnection, version: int) -> None:
        """One row for each session that the batch makes or changes.

        The id of a new one has the version, because an earlier session may have begun at the same time.
        """
        united = "".join(f"{field.united} AS {field.name}, " for field in self._fields)
        groups = "".join(f"{name}, " for name in self._groups)
        named = "".join(f"CAST({name} AS VARCHAR), " for name in self._groups)
        new_id = f"md5(CAST(json_array({named}min(first_at), {version}) AS VARCHAR))"
        oldest = "min({'first_at': first_at, 'id': id, 'revision': revision}) FILTER (WHERE id IS NOT NULL)"
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE merged AS
            SELECT {groups}chain, part, min(first_at) AS first_at, max(last_at) AS last_at, {united}
                   coalesce(({oldest}).id, {new_id}) AS id,
                   coalesce(({oldest}).revision, 0) AS revision
            FROM parts GROUP BY {groups}chain, part
            HAVING count_if(id IS NULL) > 0 OR count(id) > 1"""
        )

    def _replace_sessions(self, database: duckdb.DuckDBPyConnection, version: int) -> None:
        groups = "".join(f"p.{name}, " for name in self._groups)
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE replaced AS
            SELECT p.replaced, {groups}p.revision, p.id, p.first_at, p.last_at, m.id AS merged_into
            FROM parts p JOIN merged m
              ON {self._same_group("p", "m")} AND p.chain = m.chain AND p.part = m.part
            WHERE p.replaced IS NOT NULL"""
        )
        self.file.end_rows(_TABLE, version, "rowid IN (SELECT replaced FROM replaced)")
        database.execute(
            "INSERT INTO withdrawn SELECT * EXCLUDE replaced FROM replaced "
            "WHERE id <> merged_into AND revision > 0"
        )
        database.execute(
            f"""INSERT INTO {_TABLE}
            SELECT id, first_at, last_at, {self._kept}, revision, true, {version}, NULL FROM merged"""
        )

    def _require_session_limit(self, border: int | None) -> None:
        most = self.window.max_groups_per_window
        found = self.file.first_row(
            f"SELECT count(*) FROM {_TABLE} WHERE {CURRENT} AND NOT ({self._expired(border)})"
        )
        if found is not None and found[0] > most:
            raise LoadError(
                f"the stream has {found[0]:,} open sessions, and max_groups_per_window is {most:,}",
                state="the batch is not loaded; it comes again with the next start",
                next_step="group by fewer values, or set a higher max_groups_per_window=",
            )

    # -------------------------------------------------------------- close sessions

    def _close_sessions(
        self,
        database: duckdb.DuckDBPyConnection,
        version: int,
        progress: Progress,
        output: Path,
        flush: bool,
    ) -> ClosedWindows:
        watermark, gone = progress.watermark, self._expired(progress.border, 2)
        # the end is exclusive: a row at the watermark begins the next session
        passed = "false" if watermark is None else f"last_at + {self._gap} <= {watermark}"
        # a session that took the rows of a loaded one is loaded with its withdrawal
        merged = "id IN (SELECT merged_into FROM withdrawn)"
        loaded = f"pending AND ({'true' if flush else f'{passed} OR {merged}'})"
        database.execute(
            f"""CREATE OR REPLACE TEMP TABLE closed AS
            SELECT *, rowid AS replaced, {loaded} AS is_loaded, {gone} AS is_gone
            FROM {_TABLE} WHERE {CURRENT} AND ({loaded} OR {gone})"""
        )
        self.file.end_rows(_TABLE, version, "rowid IN (SELECT replaced FROM closed)")
        database.execute(
            f"""INSERT INTO {_TABLE}
            SELECT id, first_at, last_at, {self._kept}, revision + 1, false, {version}, NULL
            FROM closed WHERE is_loaded AND NOT is_gone"""
        )
        rows = self.file.first_row(
            "SELECT (SELECT count(*) FROM closed WHERE is_loaded) + (SELECT count(*) FROM withdrawn)"
        )
        if rows is None or not rows[0]:
            return ClosedWindows(None, 0)
        groups = "".join(f"{name}, " for name in self._groups)
        results = "".join(f"{each.result} AS r{n}, " for n, each in enumerate(self.accumulators))
        nothing = "".join(f"NULL AS r{n}, " for n in range(len(self.accumulators)))
        times = f"first_at, last_at + {self._gap} AS window_end, id, {groups}"
        database.execute(
            f"""COPY (
                SELECT {times}{results}revision, NULL::VARCHAR AS merged_into FROM closed WHERE is_loaded
                UNION ALL
                SELECT {times}{nothing}revision, merged_into FROM withdrawn
                ORDER BY {groups}first_at, id)
            TO '{path_literal(output)}' (FORMAT parquet)"""
        )
        return ClosedWindows(output, int(rows[0]))


# ------------------------------------------------------------------ long chains


def _parts_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("piece", pa.int64()), ("part", pa.int64())])


def _cut(chains: Iterable[pa.RecordBatch], gap: int, longest: int) -> Iterator[pa.RecordBatch]:
    """Number the sessions of each chain: a piece begins the next one if the session would be too long.

    Batches have the columns piece, whether it is the first of its chain, first and last time.
    """
    import pyarrow as pa

    start = last = part = 0
    for batch in chains:
        parts: list[int] = []
        _, begins, firsts, lasts = (column.to_pylist() for column in batch.columns)
        for is_first, first_at, last_at in zip(begins, firsts, lasts, strict=True):
            if is_first:
                start, last, part = first_at, last_at, 0
            elif first_at - last < gap and max(last, last_at) - start <= longest:
                last = max(last, last_at)
            else:
                start, last, part = first_at, last_at, part + 1
            parts.append(part)
        columns = [batch.column(0), pa.array(parts, pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, schema=_parts_schema())
