"""The Delta tables of the changes benchmark, as they were before the changes."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.changing import TABLE, dated
from benchmarks.datasets import DATED_ORDERS
from benchmarks.place import Place
from benchmarks.places import folder_target


def base(folder: Path, rows: int) -> Place:
    """Written by delta-rs with its defaults, in a new folder."""
    import pyarrow as pa
    from deltalake import write_deltalake

    place = folder_target("delta", folder)
    reader = pa.RecordBatchReader.from_batches(DATED_ORDERS.arrow_schema(), dated(rows))
    write_deltalake(Path(place.location) / TABLE, reader)
    return place


def copy(template: Place, folder: Path) -> Place:
    """With everything that lies beside the table, in a new folder."""
    place = folder_target(template.kind, folder)
    shutil.copytree(template.location, place.location)
    return place
