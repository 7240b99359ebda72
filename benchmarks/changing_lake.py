"""The Delta tables of the changes benchmark, as they were before the changes."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.changing import TABLE, dated
from benchmarks.datasets import DATED_ORDERS
from benchmarks.endpoint import Endpoint
from benchmarks.sources_and_targets import folder_target


def base(folder: Path, rows: int) -> Endpoint:
    """Written by delta-rs with its defaults, in a new folder."""
    import pyarrow as pa
    from deltalake import write_deltalake

    endpoint = folder_target("delta", folder)
    reader = pa.RecordBatchReader.from_batches(DATED_ORDERS.arrow_schema(), dated(rows))
    write_deltalake(Path(endpoint.location) / TABLE, reader)
    return endpoint


def copy(template: Endpoint, folder: Path) -> Endpoint:
    """With all files next to the table, in a new folder."""
    endpoint = folder_target(template.kind, folder)
    shutil.copytree(template.location, endpoint.location)
    return endpoint
