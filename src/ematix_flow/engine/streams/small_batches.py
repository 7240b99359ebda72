"""Small batches: the driver takes the messages as Arrow and loads them without a task or a worker.

The cost of a small batch is Spark's way to its Python workers, not the rows. The size is bounded before
anything is collected: the number of rows by the positions, the bytes by leaving out large messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.spec.generated_names import internal_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MAX_ROWS = 10_000
MAX_BYTES = 64 << 20
_PAYLOAD_COLUMNS = ("value", "key", "headers")
_LARGE = internal_name("large")

Messages = Sequence["pa.RecordBatch"]


def take_small_batch(frame: DataFrame, expected: int | None) -> Messages | None:
    """Collect a batch of at most ``expected`` messages; None if they are too many or too large."""
    import pyarrow.compute as pc

    if expected is None or expected > MAX_ROWS:
        return None
    size = " + ".join(f"coalesce(octet_length({name}), 0)" for name in _PAYLOAD_COLUMNS)
    steps = 10 ** len(str(max(expected, 1) - 1))  # few different SQL texts: Java compiles each one once
    fits = f"{size} <= {MAX_BYTES // steps}"
    columns = [
        f"CASE WHEN {fits} THEN {name} END AS {name}" if name in _PAYLOAD_COLUMNS else name
        for name in frame.columns
    ]
    table = frame.selectExpr(*columns, f"NOT ({fits}) AS {_LARGE}").toArrow()
    if pc.any(table.column(_LARGE)).as_py():
        return None
    batches: list[pa.RecordBatch] = table.drop_columns([_LARGE]).to_batches()
    return batches
