"""Reading a target back with canonical Python values, for tests that compare rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import Backend, BatchSource, SourceQuery
from ematix_flow.spec.tables import TableSpec


def read_table(backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
    """All rows; empty when there is no table. JSON is normalized."""
    rows = (
        _read_files(backend, table) if backend.kind.startswith("object_store") else _read_sql(backend, table)
    )
    names = [c.name for c in table.columns if c.type.kind in ("json", "jsonb")]
    return [
        {k: json.dumps(json.loads(v)) if k in names and v is not None else v for k, v in row.items()}
        for row in rows
    ]


def _read_sql(backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
    """Through the database's own source, so that both directions are held to it."""
    source, target = backend.source(), backend.target()
    assert isinstance(source, BatchSource)
    assert target is not None
    if target.inspect(table) is None:
        return []
    dialect = target.dialect  # type: ignore[attr-defined]
    columns = ", ".join(dialect.quote(c) for c in table.column_names)
    sql = f"SELECT {columns} FROM {dialect.render(dialect.table(table.schema, table.name))}"
    out: list[dict[str, Any]] = []
    with source.split(SourceQuery(sql), {c.name: c.type for c in table.columns}, 1) as splits:
        for split in splits:
            for batch in split.read():
                out += cast_batch(batch, table).to_pylist()
    return out


def _read_files(backend: Backend, table: TableSpec) -> list[dict[str, Any]]:
    """Through pyarrow, a reader other than the product."""
    import pyarrow.dataset as ds

    folder = Path(backend.connection.path) / (table.schema or "") / table.name  # type: ignore[attr-defined]
    if not folder.exists() or not any(folder.iterdir()):
        return []
    out: list[dict[str, Any]] = []
    for batch in ds.dataset(folder, format="parquet").to_table(columns=list(table.column_names)).to_batches():
        out += cast_batch(batch, table).to_pylist()
    return out
