"""Reads Iceberg tables back with pyiceberg, independently of the product and of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table


def static_table(warehouse: Path, *path: str) -> Table | None:
    """A table of a plain folder, as its newest metadata file has it; None when there is none."""
    from pyiceberg.table import StaticTable

    metadata = warehouse.joinpath(*path) / "metadata"
    if not (metadata / "version-hint.text").exists():
        return None
    version = (metadata / "version-hint.text").read_text().strip()
    return StaticTable.from_metadata(str(metadata / f"v{version}.metadata.json"))


def rows_of(found: pa.Table, table: TableSpec) -> list[dict[str, Any]]:
    """The declared columns as canonical Python values. JSON is normalized."""
    out: list[dict[str, Any]] = []
    for batch in found.select(list(table.column_names)).to_batches():
        out += cast_batch(batch, table).to_pylist()
    names = [c.name for c in table.columns if c.type.kind in ("json", "jsonb")]
    return [
        {k: json.dumps(json.loads(v)) if k in names and v is not None else v for k, v in row.items()}
        for row in out
    ]
