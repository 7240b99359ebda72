"""Counts and shows the rows of a quarantine table of files. Only the keys of the order are held in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.gated_target import QuarantineCount
from ematix_flow.backends.objectstore.formats.file_readers import read_rows
from ematix_flow.backends.objectstore.writing.quarantine import RowChoice
from ematix_flow.backends.objectstore.writing.table_storage import TableStorage
from ematix_flow.spec.expectations import QUARANTINE_BATCH, QUARANTINED_AT, RULE
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa

_ORDER = (QUARANTINED_AT, QUARANTINE_BATCH, RULE)
_PLACE = "place"


def count_rows_of_files(home: TableStorage, choice: RowChoice) -> list[QuarantineCount]:
    """The chosen rows by rule and batch, oldest first."""
    import pyarrow as pa

    keys = list(_chosen_rows(home, choice, _ORDER))
    if not keys:
        return []
    grouped = pa.Table.from_batches(keys).group_by([RULE, QUARANTINE_BATCH])
    found = grouped.aggregate([(QUARANTINED_AT, "min"), (QUARANTINED_AT, "max"), ([], "count_all")])
    counts = [
        QuarantineCount(
            row[RULE],
            row[QUARANTINE_BATCH],
            row["count_all"],
            row[f"{QUARANTINED_AT}_min"],
            row[f"{QUARANTINED_AT}_max"],
        )
        for row in found.to_pylist()
    ]
    return sorted(counts, key=lambda each: (each.oldest, each.batch, each.rule))


def read_rows_of_files(
    home: TableStorage, choice: RowChoice, limit: int, offset: int
) -> list[Mapping[str, Any]]:
    """At most ``limit`` of the chosen rows with all columns, oldest first."""
    import numpy
    import pyarrow as pa

    keys = list(_chosen_rows(home, choice, _ORDER))
    if not keys:
        return []
    table = pa.Table.from_batches(keys)
    table = table.append_column(_PLACE, pa.array(numpy.arange(table.num_rows)))
    order = table.sort_by([(name, "ascending") for name in (*_ORDER, _PLACE)])
    wanted = order.column(_PLACE).slice(offset, limit).to_numpy()
    found: dict[int, Mapping[str, Any]] = {}
    start = 0
    for batch in _chosen_rows(home, choice, None):
        inside = wanted[(wanted >= start) & (wanted < start + batch.num_rows)]
        rows = batch.take(pa.array(inside - start)).to_pylist()
        found.update(zip(inside.tolist(), rows, strict=True))
        start += batch.num_rows
    return [found[place] for place in wanted.tolist()]


def _chosen_rows(
    home: TableStorage, choice: RowChoice, names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """These columns of the chosen rows, or all columns, always in the same order."""
    version = home.current_version()
    if version is None:
        return
    columns: tuple[ColumnSpec, ...] = version.state.layout.columns
    shown = [c.name for c in columns if names is None or c.name in names]
    needed = {*shown, *(name for name, _, _ in choice.values)}
    read = [c for c in columns if c.name in needed]
    for file in home.data_files(version):
        for batch in read_rows(file, version.state.layout, read):
            yield batch.filter(choice.mask(batch)).select(shown)
