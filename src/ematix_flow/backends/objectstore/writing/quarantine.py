"""The quarantine table of a folder of files: another folder next to it, which changes with its commit.

Two folders cannot be published at once. So a load publishes the new quarantine files first, and notes in the
quarantine table's state which files it has added and which it will remove, with its token. Then it publishes
the target, whose state has the token. Last, it settles: it removes the files to remove, and the note. After a
crash, the next load settles: if the target has the token, in the same way; if not, it removes what was added.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow import fault_points
from ematix_flow.backends.base import QuarantineFilter
from ematix_flow.backends.objectstore.formats.file_readers import read_rows
from ematix_flow.backends.objectstore.formats.file_writers import RollingFileWriter
from ematix_flow.backends.objectstore.layout.file_layout import FileLayout, merge_columns, storage_column
from ematix_flow.backends.objectstore.layout.table_paths import DataFile
from ematix_flow.backends.objectstore.table.table_state import FileFacts, PendingChange, TableState
from ematix_flow.backends.objectstore.table.table_storage import TableVersion
from ematix_flow.backends.objectstore.writing.tables import FilesTables, existing_files
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.expectations import QUARANTINE_BATCH, QUARANTINED_BY, RULE
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import numpy
    import pyarrow as pa

_TEXT = DataType("text")


@dataclass(frozen=True)
class RowChoice:
    """Rows of a quarantine table by the values of some columns; of each file without those in ``except_``.

    ``except_`` holds places among the chosen rows of a file, in order, by the file's name.
    """

    values: tuple[tuple[str, Any, DataType], ...]
    except_: Mapping[str, numpy.ndarray[Any, Any]] = field(default_factory=dict)

    @classmethod
    def of_filter(cls, chosen: QuarantineFilter) -> RowChoice:
        wanted = (
            (QUARANTINED_BY, chosen.pipeline),
            (RULE, chosen.rule),
            (QUARANTINE_BATCH, chosen.batch),
        )
        return cls(tuple((name, value, _TEXT) for name, value in wanted if value is not None))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Whether each row has the values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pa.repeat(pa.scalar(True), batch.num_rows)
        for name, value, data_type in self.values:
            same = pc.equal(batch.column(name), pa.scalar(value, data_type.arrow()))
            found = pc.and_(found, same.fill_null(False))
        return found


@dataclass(frozen=True)
class _ChangedFiles:
    """Files that take the place of others."""

    new: dict[str, tuple[DataFile, FileFacts]]
    removed: tuple[str, ...]
    removed_rows: int


class FilesQuarantine:
    """One quarantine table, as a target sees it. ``target`` is the name of the target's storage."""

    def __init__(self, tables: FilesTables, spec: TableSpec, target: str, scratch: Path) -> None:
        self._tables, self._spec, self._target, self._scratch = tables, spec, target, scratch
        self._home = tables.root.table_storage(spec)

    @property
    def name(self) -> str:
        return self._home.name

    def exists(self) -> bool:
        return self._home.current_version() is not None

    # ------------------------------------------------------------------ reading

    def chosen_files(self, base: TableVersion | None, choice: RowChoice) -> list[DataFile]:
        """The files with chosen rows that count, in a stable order."""
        version = self._home.current_version()
        if version is None:
            return []
        files = self._settled_files(version, base)
        found = [file for file in self._home.data_files(version) if file.name in files]
        return [file for file in found if self._count_chosen(version, file, choice)]

    def count(self, base: TableVersion | None, choice: RowChoice) -> int:
        version = self._home.current_version()
        if version is None:
            return 0
        return sum(self._count_chosen(version, f, choice) for f in self.chosen_files(base, choice))

    def _count_chosen(self, version: TableVersion, file: DataFile, choice: RowChoice) -> int:
        import pyarrow.compute as pc

        wanted = [name for name, _, _ in choice.values]
        columns = [c for c in version.state.layout.columns if c.name in wanted]
        return sum(
            int(pc.sum(choice.mask(batch)).as_py() or 0)
            for batch in read_rows(file, version.state.layout, columns)
        )

    def read_chosen(
        self, file: DataFile, choice: RowChoice, columns: Sequence[ColumnSpec]
    ) -> Iterator[pa.RecordBatch]:
        """The chosen rows of a file."""
        version = self._home.current_version()
        assert version is not None
        missing = [c for c in version.state.layout.columns if c.name in {n for n, _, _ in choice.values}]
        names = {c.name for c in columns}
        every = [*columns, *(c for c in missing if c.name not in names)]
        for batch in read_rows(file, version.state.layout, every):
            yield batch.filter(choice.mask(batch)).select([c.name for c in columns])

    # ------------------------------------------------------------------ changing

    def stage(
        self,
        base: TableVersion,
        token: str,
        rows: Iterable[pa.RecordBatch],
        file_prefix: str,
        removed: RowChoice | None,
    ) -> int:
        """Publish new rows, which count from the target's commit on, and note what that commit removes.

        Returns the number of rows that it removes. ``base`` is the target's current version.
        """
        with self._home.lock():
            version = self._tables.ensure_version(self._home, self._spec)
            files = self._settled_files(version, base)
            declared = tuple(storage_column(c) for c in self._spec.columns)
            layout = replace(
                version.state.layout, columns=merge_columns(version.state.layout.columns, declared)
            )
            added = self._write(rows, layout, f"{file_prefix}-rows")
            changed = _ChangedFiles({}, (), 0)
            if removed is not None:
                changed = self._without(version, files, removed, layout, file_prefix)
            new = {**added, **changed.new}
            note = PendingChange(self._target, token, tuple(new), changed.removed)
            state = replace(
                version.state,
                layout=layout,
                files={**files, **{name: facts for name, (_, facts) in new.items()}},
                pending=(*self._others(version.state), note),
            )
            self._home.publish(version, list(files), [file for file, _ in new.values()], state)
        fault_points.point("quarantine.written")
        return changed.removed_rows

    def purge(self, choice: RowChoice) -> int:
        """Remove the chosen rows. Returns how many there were."""
        if not self.exists():
            return 0
        with self._home.lock():
            self._home.recover()
            version = self._home.current_version()
            assert version is not None
            if version.state.pending:
                raise TargetFailed(
                    f"{self._spec.label} has rows of a load that is not done, or has died",
                    state="nothing was purged",
                    next_step="run the pipeline, and purge them then",
                )
            files = existing_files(self._home, version)
            changed = self._without(version, files, choice, version.state.layout, f"part-{uuid.uuid4().hex}")
            if changed.removed:
                kept = {name: facts for name, facts in files.items() if name not in changed.removed}
                new = {name: facts for name, (_, facts) in changed.new.items()}
                state = replace(version.state, files={**kept, **new})
                self._home.publish(version, list(kept), [file for file, _ in changed.new.values()], state)
        return changed.removed_rows

    def sweep(self) -> None:
        """Remove files that a load left here when it died before it published them."""
        self._tables.root.sweep_table(self._home, "", "")

    def settle(self, base: TableVersion | None) -> None:
        """Finish or undo the changes of earlier loads of this target, by what its current version says."""
        version = self._home.current_version()
        if version is None or not self._mine(version.state):
            return
        with self._home.lock():
            self._home.recover()
            version = self._home.current_version()
            assert version is not None
            files = self._settled_files(version, base)
            state = replace(version.state, files=files, pending=self._others(version.state))
            self._home.publish(version, list(files), (), state)
        fault_points.point("quarantine.settled")

    def _mine(self, state: TableState) -> list[PendingChange]:
        return [change for change in state.pending if change.target == self._target]

    def _others(self, state: TableState) -> tuple[PendingChange, ...]:
        return tuple(change for change in state.pending if change.target != self._target)

    def _settled_files(self, version: TableVersion, base: TableVersion | None) -> dict[str, FileFacts]:
        """The files that count: those of committed loads."""
        files = existing_files(self._home, version)
        tokens = dict(base.state.quarantines) if base is not None else {}
        for change in self._mine(version.state):
            gone = change.removed if tokens.get(self.name) == change.token else change.added
            files = {name: facts for name, facts in files.items() if name not in gone}
        return files

    def _without(
        self,
        version: TableVersion,
        files: Mapping[str, FileFacts],
        choice: RowChoice,
        layout: FileLayout,
        prefix: str,
    ) -> _ChangedFiles:
        """The files with chosen rows, rewritten without them."""
        new: dict[str, tuple[DataFile, FileFacts]] = {}
        removed: list[str] = []
        rows = 0
        for number, file in enumerate(self._home.data_files(version)):
            count = self._count_chosen(version, file, choice) if file.name in files else 0
            count -= len(choice.except_.get(file.name, ()))
            if count > 0:
                rows += count
                removed.append(file.name)
                new |= self._write(self._other_rows(version, file, choice), layout, f"{prefix}-{number}")
        return _ChangedFiles(new, tuple(removed), rows)

    def _other_rows(
        self, version: TableVersion, file: DataFile, choice: RowChoice
    ) -> Iterator[pa.RecordBatch]:
        import numpy

        stay = choice.except_.get(file.name, numpy.empty(0, dtype="int64"))
        start = 0
        for batch in read_rows(file, version.state.layout, version.state.layout.columns):
            chosen = choice.mask(batch).to_numpy(zero_copy_only=False)
            places = start + numpy.cumsum(chosen) - 1  # among the chosen rows of the file
            start += int(chosen.sum())
            first, last = numpy.searchsorted(stay, [places[0], start]) if batch.num_rows else (0, 0)
            kept = ~chosen | numpy.isin(places, stay[first:last])
            yield batch.filter(_boolean(kept))

    def _write(
        self, rows: Iterable[pa.RecordBatch], layout: FileLayout, prefix: str
    ) -> dict[str, tuple[DataFile, FileFacts]]:
        folder = self._scratch / "quarantine"
        rolling = RollingFileWriter(folder, prefix, layout)
        try:
            for batch in rows:
                rolling.write(_with_columns(batch, layout))
            written = rolling.close()
        except BaseException:
            rolling.abandon()
            raise
        return {
            file.name: (DataFile(folder / file.name, file.name), FileFacts(file.rows)) for file in written
        }


def _boolean(values: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(values)


def _with_columns(batch: pa.RecordBatch, layout: FileLayout) -> pa.RecordBatch:
    """The rows with every column of the layout; missing columns are null."""
    import pyarrow as pa

    arrays = [
        batch.column(c.name) if c.name in batch.schema.names else pa.nulls(batch.num_rows, c.type.arrow())
        for c in layout.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in layout.columns])
