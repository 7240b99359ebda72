"""Counts the rows in a target of the demo, independently of the pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import TargetSpec


def count_rows(target: TargetSpec) -> int:
    """The number of rows, from a query on DuckDB or from the footers of Parquet files."""
    from ematix_flow.run.connect import connect

    if target.table is None:
        return _count_rows_in_files(Path("lake") / (target.prefix or ""))
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in target.table.label.split("."))
    return connect(target.connection).fetch_scalar_int(f"SELECT count(*) FROM {quoted}")


def _count_rows_in_files(folder: Path) -> int:
    import duckdb

    with duckdb.connect() as connection:
        query = "SELECT count(*) FROM read_parquet(?)"
        found = connection.execute(query, [f"{folder}/**/*.parquet"]).fetchone()
    return int(found[0]) if found else 0
