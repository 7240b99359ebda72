"""Counts and shows the rows of files in quarantine. DuckDB groups and orders them while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.gated_target import QuarantineCount
from ematix_flow.backends.objectstore.formats.file_readers import read_rows
from ematix_flow.backends.objectstore.table.table_storage import TableStorage
from ematix_flow.backends.objectstore.writing.quarantine import RowChoice
from ematix_flow.spec.expectations import QUARANTINE_BATCH, QUARANTINED_AT, RULE
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = (QUARANTINED_AT, QUARANTINE_BATCH, RULE)
_AT, _BATCH, _RULE = _ORDER = tuple(f'"{name}"' for name in _COLUMNS)


def count_rows_of_files(home: TableStorage, choice: RowChoice) -> list[QuarantineCount]:
    """The chosen rows by rule and batch, oldest first."""
    found = _query(
        home,
        choice,
        f"SELECT {_RULE}, {_BATCH}, count(*), min({_AT}), max({_AT}) FROM chosen GROUP BY {_RULE}, {_BATCH}",
    )
    counts = [QuarantineCount(*row) for row in found]
    return sorted(counts, key=lambda each: (each.oldest, each.batch, each.rule))


def read_rows_of_files(
    home: TableStorage, choice: RowChoice, limit: int, offset: int
) -> list[Mapping[str, Any]]:
    """At most ``limit`` of the chosen rows with all columns, oldest first."""
    import numpy
    import pyarrow as pa

    order = ", ".join((*_ORDER, "place"))
    found = _query(
        home,
        choice,
        f"SELECT place FROM chosen ORDER BY {order} LIMIT {int(limit)} OFFSET {int(offset)}",
    )
    wanted = numpy.array([place for (place,) in found], dtype="int64")
    rows: dict[int, Mapping[str, Any]] = {}
    start = 0
    for batch in _chosen_rows(home, choice, None):
        inside = wanted[(wanted >= start) & (wanted < start + batch.num_rows)]
        rows.update(zip(inside.tolist(), batch.take(pa.array(inside - start)).to_pylist(), strict=True))
        start += batch.num_rows
        if len(rows) == len(wanted):
            break
    return [rows[place] for place in wanted.tolist()]


def _query(home: TableStorage, choice: RowChoice, sql: str) -> list[tuple[Any, ...]]:
    """The answer to a statement about ``chosen``: the time, batch, rule and place of each chosen row."""
    import duckdb
    import numpy
    import pyarrow as pa

    from ematix_probe.sources.duckdb_scan import fetch_rows, open_workspace

    if home.current_version() is None:
        return []
    schema = pa.schema([(_COLUMNS[0], pa.timestamp("us", "UTC")), *((n, pa.string()) for n in _COLUMNS[1:])])
    schema = schema.append(pa.field("place", pa.int64()))
    errors: list[Exception] = []

    def numbered() -> Iterator[pa.RecordBatch]:
        start = 0
        try:
            for batch in _chosen_rows(home, choice, _COLUMNS):
                places = pa.array(numpy.arange(start, start + batch.num_rows, dtype="int64"))
                arrays = [*(batch.column(name) for name in _COLUMNS), places]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                start += batch.num_rows
        except Exception as error:  # DuckDB would raise another one
            errors.append(error)
            raise

    with open_workspace() as workspace:
        workspace.connection.register("chosen", pa.RecordBatchReader.from_batches(schema, numbered()))
        try:
            return fetch_rows(workspace.connection, sql)
        except duckdb.Error:
            if errors:
                raise errors[0] from None
            raise


def _chosen_rows(
    home: TableStorage, choice: RowChoice, names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """These columns of the chosen rows, or all columns, always in the same order."""
    version = home.current_version()
    if version is None:
        return
    columns: tuple[ColumnSpec, ...] = version.state.layout.columns
    shown = [c.name for c in columns if names is None or c.name in names]
    needed = {*shown, *(name for name, _, _ in choice.values)}
    read = [c for c in columns if c.name in needed]
    for file in home.data_files(version):
        for batch in read_rows(file, version.state.layout, read):
            yield batch.filter(choice.mask(batch)).select(shown)
