"""Lists the changes of each key in a batch in the order of the source, for a target that keeps every version.

A value that a change leaves out is that of the change before it. Which changes count is known only in the
target's transaction: those after the last applied change of the key. If the change that tells a value does
not count, the value is that of the stored version. So a change is staged once for each range of that last
position in which its values come from the same places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.engine.streams.change_folding import ChangeFolder, after_delete, in_source_order
from ematix_flow.spec.tables import (
    CHANGE_AT,
    CHANGE_FROM,
    CHANGE_KEPT,
    CHANGE_OP,
    CHANGE_OPEN,
    CHANGE_POSITION,
    CHANGE_UNTIL,
    DELETE_ROW,
    GIVEN,
    TRUNCATE_ROWS,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class _Value:
    """Where the value of a column comes from: a row of the batch, or none; ``mark`` says what is known of it.

    It holds if the last applied change of the key is before ``place``. Otherwise, and without a place, the
    stored version has the value.
    """

    row: int | None
    mark: str
    place: str


@dataclass(frozen=True)
class _Listed:
    """A change for a range of last positions."""

    row: int
    sources: Sequence[int | None]
    marks: str | None
    low: str
    high: str


@dataclass(frozen=True)
class ChangeLister(ChangeFolder):
    """Stages every change. Takes the place of a `ChangeFolder`, which stages the results for each key.

    ``truncates`` are the positions of the batch's truncates, in order.
    """

    truncates: tuple[str, ...] = ()

    def fold_groups(self, batch: pa.RecordBatch, groups: Iterable[Sequence[int]]) -> pa.RecordBatch:
        import pyarrow as pa

        ops = batch.column(CHANGE_OP).to_pylist()
        positions = batch.column(CHANGE_POSITION).to_pylist()
        kept = batch.column(CHANGE_KEPT).to_pylist()
        listed: list[_Listed] = []
        opens: list[str | None] = []
        for group in groups:
            if ops[group[0]] == TRUNCATE_ROWS:
                listed += [_Listed(row, [None] * len(self.columns), None, "", "") for row in group]
                opens += [None] * len(group)
                continue
            ordered, open_from = in_source_order(group, positions)
            before = len(listed)
            listed += self._changes(ordered, ops, positions, kept)
            opens += [open_from] * (len(listed) - before)
        taken = pa.array([each.row for each in listed], pa.int64())
        arrays: dict[str, pa.Array] = {
            CHANGE_OP: batch.column(CHANGE_OP).take(taken),
            CHANGE_POSITION: pa.array([positions[each.row] for each in listed], pa.string()),
            CHANGE_AT: batch.column(CHANGE_AT).take(taken),
            CHANGE_KEPT: pa.array([each.marks for each in listed], pa.string()),
            CHANGE_FROM: pa.array([each.low for each in listed], pa.string()),
            CHANGE_UNTIL: pa.array([each.high for each in listed], pa.string()),
            CHANGE_OPEN: pa.array(opens, pa.string()),
        }
        for number, name in enumerate(self.columns):
            of_column = [each.sources[number] for each in listed]
            source = taken if name in self.keys else pa.array(of_column, pa.int64())
            arrays[name] = batch.column(name).take(source)
        return self.staged_batch(arrays)

    def _changes(
        self, rows: Sequence[int], ops: Sequence[str], positions: Sequence[str], kept: Sequence[str | None]
    ) -> Iterator[_Listed]:
        """The changes of a key, in the order of the source."""
        width = len(self.columns)
        known: list[_Value] = []  # of the row before; empty if this batch has none, or it was deleted
        deleted = previous = ""  # the positions of the last delete or truncate, and of the change before
        for row in rows:
            here = positions[row]
            cuts = [cut for cut in self.truncates if previous < cut < here]
            if cuts:
                known, deleted = [], cuts[-1]
            previous = here
            if ops[row] == DELETE_ROW:
                known, deleted = [], here
                yield _Listed(row, [None] * width, None, "", here)
                continue
            own = kept[row] or GIVEN * width
            marks = after_delete(own) if deleted else own
            known = [
                _Value(row, GIVEN, here)
                if own[number] == GIVEN
                else known[number]
                if known
                else _Value(None, marks[number], deleted)
                for number in range(width)
            ]
            yield from self._ranges(row, here, own, known)

    def _ranges(self, row: int, here: str, own: str, values: Sequence[_Value]) -> Iterator[_Listed]:
        """The change for each range of last positions in which its values come from the same places."""
        places = {value.place for value in values if value.place and value.place < here}
        low = ""
        for high in [*sorted(places), here]:
            found = [
                value if not value.place or high <= value.place else _Value(None, mark, "")
                for value, mark in zip(values, own, strict=True)
            ]
            marks = self.table_marks([value.mark for value in found])
            yield _Listed(row, [value.row for value in found], marks, low, high)
            low = high
