"""Reads lake tables back with other libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import Backend
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_delta(backend: Backend, table: TableSpec, spark: SparkSession) -> list[dict[str, Any]]:
    """All rows, by delta-rs; empty when there is no table. JSON is normalized.

    What delta-rs does not read rightly (columns mapped to other names, or widened) is read by Spark.
    """
    from deltalake import DeltaTable

    folder = Path(backend.connection.path) / (table.schema or "") / table.name  # type: ignore[attr-defined]
    if not (folder / "_delta_log").is_dir():
        return []
    opened = DeltaTable(str(folder))
    if {"delta.columnMapping.mode", "delta.enableTypeWidening"} & set(opened.metadata().configuration):
        found = spark.read.format("delta").load(str(folder)).toArrow().select(table.column_names)
    else:
        found = opened.to_pyarrow_table(columns=list(table.column_names))
    out: list[dict[str, Any]] = []
    for batch in found.to_batches():
        out += cast_batch(batch, table).to_pylist()
    names = [c.name for c in table.columns if c.type.kind in ("json", "jsonb")]
    return [
        {k: json.dumps(json.loads(v)) if k in names and v is not None else v for k, v in row.items()}
        for row in out
    ]
