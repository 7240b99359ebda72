"""delta-rs: reads the changes by ADBC and merges them by its own MERGE, in Python without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.contestants import Load
from benchmarks.contestants.drivers import from_postgres
from benchmarks.datasets import DATED_ORDERS
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

KEY = DATED_ORDERS.key[0]


def prepare(job: Job) -> Load:
    changes = from_postgres(job.source, DATED_ORDERS, f"updated_at > '{job.options['after']}'")

    def load(target: Endpoint) -> dict[str, Any]:
        rows = pa.Table.from_batches(changes(), DATED_ORDERS.arrow_schema())
        table = DeltaTable(Path(target.location) / job.table)
        merging = table.merge(rows, f"t.{KEY} = s.{KEY}", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        return {}

    return load
