"""Changes that are sorted by key and position, in many batches, as Spark's tasks get them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ematix_flow.engine.streams.change_folding import ChangeFolder
from ematix_flow.spec.tables import (
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_POSITION,
    UPSERT_ROW,
    ColumnSpec,
    TableSpec,
)
from ematix_flow.spec.types import DataType

TABLE = TableSpec(
    "shop",
    "mirror",
    (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("note", DataType("text"))),
    keeps="changes",
)
HOT, BATCHES, ROWS = 2, 50, 20


class CountingFolder(ChangeFolder):
    """Counts the rows whose keys are read."""

    rows_read = 0

    def _key_values(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        CountingFolder.rows_read += batch.num_rows
        return super()._key_values(batch)


def test_a_key_that_fills_many_batches_is_folded_in_one_pass() -> None:
    number, batches = 0, []
    for place in range(BATCHES):
        rows = []
        for within in range(ROWS):
            number += 1
            id = 1 if number <= 3 else HOT if (place, within) != (BATCHES - 1, ROWS - 1) else 3
            row = {"id": id, "note": f"n{number}", CHANGE_POSITION: f"{number:09}", CHANGE_OP: UPSERT_ROW}
            rows.append({**row, CHANGE_KEPT: None})
        types = [("id", pa.int64()), *((n, pa.string()) for n in list(rows[0])[1:])]
        batches.append(pa.RecordBatch.from_pylist(rows, schema=pa.schema(types)))
        batches.append(batches[-1].slice(0, 0))
    folder = CountingFolder(TABLE, ("id",), ("id", "note"), soft=False)
    folded = pa.Table.from_batches(folder._fold_sorted(batches)).to_pylist()
    assert [(row["id"], row["note"]) for row in folded] == [
        (1, "n3"),
        (HOT, f"n{number - 1}"),
        (3, f"n{number}"),
    ]
    assert CountingFolder.rows_read <= 3 * number
