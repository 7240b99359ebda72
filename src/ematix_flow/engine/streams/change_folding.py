"""Folds the changes of each key in a batch into the rows that the target needs.

Which changes count is known only in the target's transaction: those after the last applied change of the key.
So a fold gives a row for each range of that last position, with the result of all changes after it. Mostly
one row is enough, because the last change tells the whole row; a change that leaves out values, or a soft
delete, needs the row before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.engine.execution.spark_tasks import map_in_arrow
from ematix_flow.engine.spark.column_types import schema_ddl
from ematix_flow.engine.streams.batch_frames import quote
from ematix_flow.spec.change_positions import arrival, is_open_change, is_snapshot_row, just_before
from ematix_flow.spec.tables import (
    ABSENT,
    CHANGE_FROM,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_OPEN,
    CHANGE_POSITION,
    CHANGE_UNTIL,
    DELETE_ROW,
    GIVEN,
    LOST,
    MARK_ROW,
    TRUNCATE_ROWS,
    UNTOLD,
    UPSERT_ROW,
    TableSpec,
)
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


_OPEN = (UNTOLD, ABSENT)  # an earlier change may tell the value


@dataclass
class _Result:
    """What to do with a key; ``sources`` has for each column the number of the row with its value."""

    op: str
    sources: list[int | None]
    marks: list[str]


@dataclass(frozen=True)
class ChangeFolder:
    """Folds changes for one table. ``columns`` are those of the changes, in the order of their marks.

    ``types`` are the types of these columns, if they may differ from those of the table.
    """

    table: TableSpec
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    soft: bool
    types: tuple[DataType, ...] = ()

    def fold_frame(self, changes: DataFrame) -> DataFrame:
        """Fold with one task for each share of the keys."""
        keys = [quote(key) for key in self.keys]
        ordered = changes.repartition(*keys).sortWithinPartitions(*keys, quote(CHANGE_POSITION))
        return map_in_arrow(ordered, self._fold_sorted, schema_ddl(self.staged_table()))

    def fold_batch(self, changes: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Fold changes of this process, in any order."""
        import pyarrow as pa

        if not changes:
            return []
        whole = pa.Table.from_batches(list(changes)).combine_chunks().to_batches()
        if not whole:
            return []
        (batch,) = whole
        positions = batch.column(CHANGE_POSITION).to_pylist()
        groups: dict[Any, list[int]] = {}
        key_values = self._key_values(batch)
        for row in sorted(range(batch.num_rows), key=positions.__getitem__):
            groups.setdefault(key_values[row], []).append(row)
        return [self.fold_groups(batch, groups.values())]

    def _fold_sorted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold changes that are sorted by key and position. A key may span several batches."""
        waiting: list[pa.RecordBatch] = []  # all of one key, combined once when it ends
        waiting_key: tuple[Any, ...] | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            key_values = self._key_values(batch)
            if waiting and key_values[-1] == waiting_key:
                waiting.append(batch)
                continue
            if waiting:
                batch = _combined([*waiting, batch])
                key_values = self._key_values(batch)
            groups = list(_neighbours(key_values))
            last = groups.pop()
            waiting, waiting_key = [batch.slice(last[0])], key_values[-1]
            if groups:
                yield self.fold_groups(batch, groups)
        if waiting:
            whole = _combined(waiting)
            yield self.fold_groups(whole, [list(range(whole.num_rows))])

    def staged_table(self) -> TableSpec:
        """The staged table with the types that the changes have; staging converts them."""
        staged, types = self.table.staged(), dict(zip(self.columns, self.types, strict=False))
        return replace(
            staged, columns=tuple(replace(c, type=types.get(c.name, c.type)) for c in staged.columns)
        )

    def _key_values(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return list(zip(*(batch.column(key).to_pylist() for key in self.keys), strict=True))

    def fold_groups(self, batch: pa.RecordBatch, groups: Iterable[Sequence[int]]) -> pa.RecordBatch:
        import pyarrow as pa

        ops = batch.column(CHANGE_OP).to_pylist()
        positions = batch.column(CHANGE_POSITION).to_pylist()
        kept = batch.column(CHANGE_KEPT).to_pylist()
        ends: list[int] = []  # the last row of each result's key
        results: list[_Result] = []
        ranges: list[tuple[str, str]] = []
        opens: list[str | None] = []
        for group in groups:
            rows, open_from = in_source_order(group, positions)
            if ops[rows[0]] == TRUNCATE_ROWS:
                for row in rows:
                    ends.append(row)
                    results.append(_Result(TRUNCATE_ROWS, [None] * len(self.columns), []))
                    ranges.append(("", ""))
                    opens.append(None)
                continue
            for result, low, high in self._results(rows, ops, positions, kept):
                ends.append(rows[-1])
                results.append(result)
                ranges.append((low, high))
                opens.append(open_from)
        last = pa.array(ends, pa.int64())
        arrays: dict[str, pa.Array] = {
            CHANGE_OP: pa.array([r.op for r in results], pa.string()),
            CHANGE_POSITION: batch.column(CHANGE_POSITION).take(last),
            CHANGE_KEPT: pa.array([self.table_marks(r.marks) for r in results], pa.string()),
            CHANGE_FROM: pa.array([low for low, _ in ranges], pa.string()),
            CHANGE_UNTIL: pa.array([high for _, high in ranges], pa.string()),
            CHANGE_OPEN: pa.array(opens, pa.string()),
        }
        for number, name in enumerate(self.columns):
            source = last if name in self.keys else pa.array([r.sources[number] for r in results], pa.int64())
            arrays[name] = batch.column(name).take(source)
        return self.staged_batch(arrays)

    def staged_batch(self, arrays: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """The staged rows of these columns; the table's other columns are null."""
        import pyarrow as pa

        staged, rows = self.staged_table(), len(arrays[CHANGE_OP])
        columns = [
            arrays[c.name] if c.name in arrays else pa.nulls(rows, c.type.arrow()) for c in staged.columns
        ]
        return pa.RecordBatch.from_arrays(columns, names=[c.name for c in staged.columns])

    def _results(
        self, rows: Sequence[int], ops: Sequence[str], positions: Sequence[str], kept: Sequence[str | None]
    ) -> Iterator[tuple[_Result, str, str]]:
        """The results for a key whose last applied position is from the first text on, below the second."""
        high = positions[rows[-1]]
        width = len(self.columns)
        result = _Result(DELETE_ROW, [None] * width, [])
        has_row = False
        for number in range(len(rows) - 1, -1, -1):
            row = rows[number]
            if ops[row] == DELETE_ROW:
                if not self.soft and not has_row:
                    yield result, "", high
                    return
                marks = after_delete(result.marks, keeps_row=self.soft)
                if marks != result.marks and result.op == UPSERT_ROW:
                    if positions[row] < high:
                        yield result, positions[row], high
                        high = positions[row]
                    result = _Result(result.op, result.sources, marks)
                if not self.soft:
                    break
                continue
            known = kept[row] or GIVEN * width
            told = [m in _OPEN and new == GIVEN for m, new in zip(result.marks, known, strict=False)]
            if has_row:  # a value that an earlier change has no field for is the stored one, or null
                pairs = zip(result.marks, known, strict=True)
                marks = [ABSENT if (mark, new) == (UNTOLD, ABSENT) else mark for mark, new in pairs]
                result = _Result(result.op, result.sources, marks)
                if not any(told):
                    continue
            if number < len(rows) - 1 and positions[row] < high:
                yield result, positions[row], high
                high = positions[row]
            if not has_row:
                op = UPSERT_ROW if number == len(rows) - 1 else MARK_ROW
                result = _Result(op, [row if m == GIVEN else None for m in known], list(known))
                has_row = True
            else:
                result = _Result(
                    result.op,
                    [row if is_told else old for old, is_told in zip(result.sources, told, strict=True)],
                    [GIVEN if is_told else mark for mark, is_told in zip(result.marks, told, strict=True)],
                )
        yield result, "", high

    def table_marks(self, marks: Sequence[str]) -> str | None:
        """The marks for the columns of the table; None if all values are given."""
        if all(mark == GIVEN for mark in marks):
            return None
        by_name = dict(zip(self.columns, marks, strict=True))
        return "".join(by_name.get(name, GIVEN) for name in self.table.column_names)


def after_delete(marks: Sequence[str], *, keeps_row: bool = False) -> list[str]:
    """The marks of a row that was inserted after a delete of its key. ``keeps_row``: deleted rows are marked,
    and a field that the new row does not have stays as it is.
    """
    absent = ABSENT if keeps_row else GIVEN
    return [LOST if mark == UNTOLD else absent if mark == ABSENT else mark for mark in marks]


def in_source_order(rows: Sequence[int], positions: list[str]) -> tuple[Sequence[int], str | None]:
    """The rows of a key in the order of the source, and where a row of a snapshot belongs if the changes are
    of transactions that may have been open during it. ``positions`` of such rows are set there.
    """
    opened = [row for row in rows if is_open_change(positions[row])]
    if not opened:
        return rows, None
    for row in rows:
        if is_snapshot_row(positions[row]):
            later = [positions[o] for o in opened if arrival(positions[o]) > arrival(positions[row])]
            if later and min(later) < positions[row]:
                positions[row] = just_before(min(later), positions[row])
    return sorted(rows, key=positions.__getitem__), just_before(min(positions[o] for o in opened))


def _combined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    (whole,) = pa.Table.from_batches(list(batches)).combine_chunks().to_batches()
    return whole


def _neighbours(keys: Sequence[Any]) -> Iterator[list[int]]:
    """The numbers of equal neighbours."""
    start = 0
    for row in range(1, len(keys) + 1):
        if row == len(keys) or keys[row] != keys[start]:
            yield list(range(start, row))
            start = row
