"""Rows at the last watermark that an incremental read reads again: finds those that the table lacks.

The lower bound of an incremental read is inclusive. Tasks set the rows at the bound aside. This module
compares them with the rows at the bound in the table's files, by key, or as a multiset of whole rows when the
table has no key. Rows that are set aside by a gate are compared with those in quarantine in the same way.
DuckDB does the comparison and spills to disk when there are many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.objectstore.formats.file_readers import read_rows
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout
from ematix_flow.backends.objectstore.layout.table_paths import DataFile
from ematix_flow.backends.objectstore.table.table_state import TableState
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import duckdb
    import numpy
    import pyarrow as pa

_MEMORY = "512MB"


def files_at_bound(files: Iterable[DataFile], state: TableState, low: Watermark) -> list[DataFile]:
    """The files that may hold rows at the bound: those whose highest watermark is not below it."""
    found = []
    for file in files:
        facts = state.files.get(file.name)
        highest = facts.highest.get(low.column) if facts is not None else None
        if highest is None or not _is_below(highest, low):
            found.append(file)
    return found


def _is_below(encoded: str, low: Watermark) -> bool:
    there = Watermark.decode(low.column, low.type_json(), encoded).value
    return bool(there < low.value)  # type: ignore[operator]  # both are of the column's type


def missing_rows(
    aside: Sequence[Path],
    files: Sequence[DataFile],
    layout: FileLayout,
    table: TableSpec,
    low: Watermark,
    scratch: Path,
) -> Iterator[pa.RecordBatch]:
    """Yield the set-aside rows that the table's files do not hold, in the order they were read."""
    import numpy
    import pyarrow as pa

    matched = [table.column(n) for n in table.primary_key] or list(table.columns)
    keep = _positions_to_keep(aside, files, layout, matched, low, scratch, by_key=bool(table.primary_key))
    start = 0
    for batch in _read_set_aside(aside):
        first, last = numpy.searchsorted(keep, [start, start + batch.num_rows])
        if last > first:
            yield batch.take(pa.array(keep[first:last] - start))
        start += batch.num_rows


def are_same_rows(
    some: Iterable[pa.RecordBatch],
    others: Iterable[pa.RecordBatch],
    columns: Sequence[ColumnSpec],
    scratch: Path,
) -> bool:
    """Whether both have the same rows, each the same number of times."""
    names = ", ".join(f"c{number}" for number in range(len(columns)))
    with _open_engine(scratch) as engine:
        for table, rows in (("some_rows", some), ("other_rows", others)):
            _create_row_table(engine, table, rows, columns)
        found = engine.execute(
            f"SELECT 1 FROM (SELECT {names}, 1 AS copies FROM some_rows "
            f"UNION ALL SELECT {names}, -1 FROM other_rows) GROUP BY {names} HAVING sum(copies) <> 0 LIMIT 1"
        )
        return found.fetchone() is None


def _open_engine(scratch: Path) -> duckdb.DuckDBPyConnection:
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "temp_directory": str(scratch / "spill"),
        "memory_limit": _MEMORY,
    }
    return duckdb.connect(config=settings)


def _positions_to_keep(
    aside: Sequence[Path],
    files: Sequence[DataFile],
    layout: FileLayout,
    matched: Sequence[ColumnSpec],
    low: Watermark,
    scratch: Path,
    *,
    by_key: bool,
) -> numpy.ndarray[Any, Any]:
    names = [f"c{number}" for number in range(len(matched))]
    everything = ", ".join(names)
    same = " AND ".join(f"coming.{name} IS NOT DISTINCT FROM present.{name}" for name in names)
    # without a key, the n-th equal copy is new when the table holds fewer than n
    copy = "1" if by_key else f"row_number() OVER (PARTITION BY {everything} ORDER BY position)"
    with _open_engine(scratch) as engine:
        _create_row_table(engine, "coming", _read_set_aside(aside), matched)
        _create_row_table(engine, "present_rows", _rows_at_bound(files, layout, matched, low), matched)
        engine.execute(
            f"CREATE TABLE present AS SELECT {everything}, count(*) AS copies FROM present_rows GROUP BY ALL"
        )
        found = engine.execute(
            f"SELECT position FROM (SELECT *, {copy} AS copy FROM coming) AS coming "
            f"LEFT JOIN present ON {same} WHERE copy > coalesce(copies, 0) ORDER BY position"
        )
        positions: numpy.ndarray[Any, Any] = found.fetchnumpy()["position"]
        return positions


def _create_row_table(
    engine: duckdb.DuckDBPyConnection,
    table: str,
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[ColumnSpec],
) -> None:
    """Create a DuckDB table of these rows.

    ``position`` counts them. The columns are named c0, c1 …, so that no column name of a user becomes SQL.
    """
    import numpy
    import pyarrow as pa

    fields = [(f"c{number}", c.type.arrow()) for number, c in enumerate(columns)]
    schema = pa.schema([("position", pa.int64()), *fields])
    engine.register("piece", schema.empty_table())
    engine.execute(f"CREATE TABLE {table} AS SELECT * FROM piece")
    start = 0
    for batch in batches:
        positions = pa.array(numpy.arange(start, start + batch.num_rows, dtype="int64"))
        arrays = [positions, *(batch.column(c.name) for c in columns)]
        engine.register("piece", pa.Table.from_arrays(arrays, schema=schema))
        engine.execute(f"INSERT INTO {table} SELECT * FROM piece")
        start += batch.num_rows


def _read_set_aside(aside: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    for path in aside:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches()


def _rows_at_bound(
    files: Sequence[DataFile], layout: FileLayout, matched: Sequence[ColumnSpec], low: Watermark
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    mark = ColumnSpec(low.column, low.type)
    columns = [*matched, *([mark] if all(c.name != mark.name for c in matched) else [])]
    value = pa.scalar(low.value, low.type.arrow())
    for file in files:
        for batch in read_rows(file, layout, columns):
            yield batch.filter(pc.equal(batch.column(low.column), value))
