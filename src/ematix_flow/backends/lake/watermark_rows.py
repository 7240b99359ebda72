"""The rows of an incremental load by their watermark.

The rows at the watermark that the load begins with are read again: the table may have them already. Tasks
keep them apart from the others, and the load leaves out those that the table has.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange, Watermark

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WatermarkRange:
    """What a task needs to know of an incremental load. Picklable.

    ``low`` has one value, the watermark that the load begins with. A task could not compare a Python value
    without importing pandas, which takes seconds.
    """

    column: str
    type: DataType
    low: pa.Array | None

    @classmethod
    def of(cls, wanted: SourceRange, table: TableSpec) -> WatermarkRange:
        import pyarrow as pa

        low, data_type = wanted.low, table.column(wanted.column).type
        return cls(
            wanted.column, data_type, None if low is None else pa.array([low.value], data_type.arrow())
        )

    def highest_of(self, texts: Iterable[str]) -> Watermark | None:
        """The highest of these watermarks."""
        kind = json.dumps(self.type.to_json())
        found = [Watermark.decode(self.column, kind, text) for text in texts]
        return max(found, key=_value, default=None)


@dataclass(frozen=True)
class SeenWatermarks:
    """What a task has seen: the highest watermark, rows without one, and rows below the first one."""

    highest: Watermark | None = None
    nulls: int = 0
    lower: int = 0

    def __add__(self, other: SeenWatermarks) -> SeenWatermarks:
        found = [each.highest for each in (self, other) if each.highest is not None]
        highest = max(found, key=_value, default=None)
        return SeenWatermarks(highest, self.nulls + other.nulls, self.lower + other.lower)


def _value(mark: Watermark) -> Any:
    return mark.value


def split_rows(
    rows: pa.RecordBatch, wanted: WatermarkRange
) -> tuple[pa.RecordBatch, pa.RecordBatch, SeenWatermarks]:
    """The rows after the first watermark, the others, and what was seen."""
    import pyarrow.compute as pc

    marks = rows.column(rows.schema.get_field_index(wanted.column))
    highest = pc.max(marks).as_py()
    mark = None if highest is None else Watermark(wanted.column, wanted.type, highest)
    seen = SeenWatermarks(mark, marks.null_count)
    if wanted.low is None:
        return rows, rows.slice(0, 0), seen
    later = pc.or_kleene(pc.greater(marks, wanted.low[0]), pc.is_null(marks))
    lower = pc.sum(pc.less(marks, wanted.low[0])).as_py() or 0
    return rows.filter(later), rows.filter(pc.invert(later)), seen + SeenWatermarks(lower=lower)


def rows_to_add(table: TableSpec, coming: pa.Table, present: pa.Table) -> pa.Table:
    """The coming rows that are not present, all at one watermark.

    A row is present if its key is, or if the table has no key, as often as all its values are.
    """
    import pyarrow as pa

    names = list(table.primary_key or table.column_names)
    there, here = Counter(_keys(present, names)), _keys(coming, names)
    if table.primary_key:
        wanted = [None in key or key not in there for key in here]
    else:
        wanted = []
        for key in here:
            wanted.append(there[key] == 0)
            there[key] = max(there[key] - 1, 0)
    return coming.filter(pa.array(wanted, pa.bool_()))


def _keys(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of each row, as Spark compares them: a NaN is equal to another."""
    columns = [rows.column(name).to_pylist() for name in names]
    return [tuple(map(_comparable, row)) for row in zip(*columns, strict=True)]


def _comparable(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
