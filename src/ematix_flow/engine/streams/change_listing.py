"""Lists the changes of each key in a batch in the order of the source, for a target that keeps every version.

A value that a change leaves out is that of the change before it. If no change of the batch tells it, the
load takes it from the stored version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ematix_flow.engine.streams.change_folding import ChangeFolder, in_source_order
from ematix_flow.spec.tables import (
    ABSENT,
    CHANGE_AT,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_OPEN,
    CHANGE_POSITION,
    DELETE_ROW,
    GIVEN,
    TRUNCATE_ROWS,
)

if TYPE_CHECKING:
    import pyarrow as pa


class ChangeLister(ChangeFolder):
    """A staged row for each change. Takes the place of a `ChangeFolder`, which has one for each key."""

    def fold_groups(self, batch: pa.RecordBatch, groups: Iterable[Sequence[int]]) -> pa.RecordBatch:
        import pyarrow as pa

        ops = batch.column(CHANGE_OP).to_pylist()
        positions = batch.column(CHANGE_POSITION).to_pylist()
        kept = batch.column(CHANGE_KEPT).to_pylist()
        rows: list[int] = []
        sources: list[list[int | None]] = []
        marks: list[str | None] = []
        opens: list[str | None] = []
        for group in groups:
            if ops[group[0]] == TRUNCATE_ROWS:
                ordered, open_from = group, None
                told: Iterable[tuple[list[int | None], str | None]] = (
                    ([None] * len(self.columns), None) for _ in group
                )
            else:
                ordered, open_from = in_source_order(group, positions)
                told = self._told_values(ordered, ops, kept)
            for row, (own_sources, own_marks) in zip(ordered, told, strict=True):
                rows.append(row)
                sources.append(own_sources)
                marks.append(own_marks)
                opens.append(open_from)
        taken = pa.array(rows, pa.int64())
        arrays: dict[str, pa.Array] = {
            CHANGE_OP: batch.column(CHANGE_OP).take(taken),
            CHANGE_POSITION: pa.array([positions[row] for row in rows], pa.string()),
            CHANGE_AT: batch.column(CHANGE_AT).take(taken),
            CHANGE_KEPT: pa.array(marks, pa.string()),
            CHANGE_OPEN: pa.array(opens, pa.string()),
        }
        for number, name in enumerate(self.columns):
            source = taken if name in self.keys else pa.array([each[number] for each in sources], pa.int64())
            arrays[name] = batch.column(name).take(source)
        return self.staged_batch(arrays)

    def _told_values(
        self, rows: Sequence[int], ops: Sequence[str], kept: Sequence[str | None]
    ) -> Iterator[tuple[list[int | None], str | None]]:
        """For each change of a key the row with the value of each column, and the marks of unknown ones."""
        width = len(self.columns)
        sources: list[int | None] = [None] * width
        marks = ""  # of the row before; empty if this batch has none
        after_delete = False
        for row in rows:
            if ops[row] == DELETE_ROW:
                sources, marks, after_delete = [None] * width, "", True
                yield [None] * width, None
                continue
            own = kept[row] or GIVEN * width
            if marks:
                own_sources = [row if new == GIVEN else old for new, old in zip(own, sources, strict=True)]
                own = "".join(GIVEN if GIVEN in pair else pair[0] for pair in zip(own, marks, strict=True))
            else:
                own_sources = [row if new == GIVEN else None for new in own]
                if after_delete:  # the new row has no such value
                    own = own.replace(ABSENT, GIVEN)
            sources, marks = own_sources, own
            yield list(sources), self.table_marks(own)
