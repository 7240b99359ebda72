"""Reads the rows of a Delta table that have one watermark, from the few files that may have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.stores.base import Store
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_MOST_FILES, _MOST_BYTES = 100, 256 * 1024 * 1024  # more are read by Spark's tasks
_PLAIN_FILE = re.compile(r"[\w.-]+")  # in the table's folder, by a name that is not encoded
_CUT_MICROSECONDS = 1_000  # statistics have milliseconds: the highest time of a file may be as much later


def read_rows_at(
    table: DeltaTable, store: Store, folder: str, mark: Watermark, columns: Sequence[ColumnSpec]
) -> pa.Table | None:
    """The rows of a table without partitions; None if they are in too many files."""
    import pyarrow as pa

    found = _files_with(pa.table(table.get_add_actions(flatten=True)), mark)
    if found.num_rows > _MOST_FILES or sum(found.column("size_bytes").to_pylist()) > _MOST_BYTES:
        return None
    names = found.column("path").to_pylist()
    if not all(_PLAIN_FILE.fullmatch(name) for name in names):
        return None
    schema = pa.schema([pa.field(c.name, c.type.arrow()) for c in columns])
    wanted = pa.array([mark.value], mark.type.arrow())
    read = [_read_file(store, f"{folder}/{name}", mark.column, wanted, schema) for name in names]
    return pa.concat_tables([schema.empty_table(), *read])


def _files_with(files: pa.Table, mark: Watermark) -> pa.Table:
    """The files that may have such a row, by their statistics."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lowest, highest = f"min.{mark.column}", f"max.{mark.column}"
    if not {lowest, highest} <= set(files.column_names):
        return files
    value = pa.scalar(mark.value, mark.type.arrow())
    first, last = (files.column(name).cast(value.type) for name in (lowest, highest))
    if pa.types.is_timestamp(value.type):
        cut = pa.scalar(_CUT_MICROSECONDS, pa.duration("us"))
        last = pc.add_checked(last, cut)
    may_have = pc.and_kleene(
        pc.or_kleene(pc.less_equal(first, value), pc.is_null(first)),
        pc.or_kleene(pc.greater_equal(last, value), pc.is_null(last)),
    )
    return files.filter(may_have)


def _read_file(store: Store, path: str, column: str, wanted: pa.Array, schema: pa.Schema) -> pa.Table:
    """The rows of one file, with nulls in columns that it does not have."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found = [schema.empty_table()]
    with store.open(path) as source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        there = set(file.schema_arrow.names)
        for group in range(file.num_row_groups if column in there else 0):
            marks = file.read_row_group(group, [column]).column(column).cast(wanted.type)
            chosen = pc.equal(marks, wanted[0])
            if not pc.any(chosen).as_py():
                continue
            rows = file.read_row_group(group, [name for name in schema.names if name in there]).filter(chosen)
            arrays = [
                rows.column(field.name).cast(field.type)
                if field.name in there
                else pa.nulls(rows.num_rows, field.type)
                for field in schema
            ]
            found.append(pa.Table.from_arrays(arrays, schema=schema))
    return pa.concat_tables(found)
