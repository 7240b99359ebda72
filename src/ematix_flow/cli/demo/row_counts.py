"""Rows that lie in a target of the demo, counted by other means than the pipelines'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.spec.pipelines import TargetSpec


def count_rows(target: TargetSpec) -> int:
    """DuckDB is asked; for files their own footers are read."""
    from ematix_flow.api.connect import connect

    if target.table is None:
        return _count_rows_in_files(Path("lake") / (target.prefix or ""))
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in target.table.label.split("."))
    return connect(target.connection).fetch_scalar_int(f"SELECT count(*) FROM {quoted}")


def _count_rows_in_files(folder: Path) -> int:
    import duckdb

    found = duckdb.execute("SELECT count(*) FROM read_parquet(?)", [f"{folder}/**/*.parquet"]).fetchone()
    return int(found[0]) if found else 0
