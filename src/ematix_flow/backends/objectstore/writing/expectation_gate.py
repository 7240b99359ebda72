"""The expectation gate of files: divides staged rows into those that are loaded and those that are set aside.

`check` runs before anything is published. Only staged files with failing rows are written again. `set_aside`
publishes the quarantine table before the target, and `settle` finishes it after the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow import fault_points
from ematix_flow.backends.arrow.batch_casts import cast_batch
from ematix_flow.backends.base import Load, QuarantinedRows
from ematix_flow.backends.objectstore.formats.file_readers import read_rows
from ematix_flow.backends.objectstore.formats.file_writers import RollingFileWriter, WrittenFile
from ematix_flow.backends.objectstore.layout.table_paths import DataFile
from ematix_flow.backends.objectstore.table.staging import FilesStaging, WrittenPart
from ematix_flow.backends.objectstore.table.table_storage import TableStorage, TableVersion
from ematix_flow.backends.objectstore.writing.boundary_rows import are_same_rows
from ematix_flow.backends.objectstore.writing.quarantine import FilesQuarantine, RowChoice
from ematix_flow.backends.objectstore.writing.row_checks import CheckedPieces, FailingRows, check_pieces
from ematix_flow.backends.objectstore.writing.tables import FilesTables
from ematix_flow.backends.sql.quarantine import source_position, values_read_again
from ematix_flow.errors import PlanError, TargetFailed
from ematix_flow.spec.expectations import (
    POSITION,
    QUARANTINE_BATCH,
    QUARANTINED_AT,
    QUARANTINED_BY,
    RULE,
    ExpectationResult,
)
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = DataType("text")


@dataclass(frozen=True)
class CheckedReplay:
    """The rows of a quarantine table that pass, as ``choice`` names them; the others stay there."""

    batches: Iterator[pa.RecordBatch]
    choice: RowChoice
    quarantined: int
    results: tuple[ExpectationResult, ...]


@dataclass(frozen=True)
class PassedParts:
    """The parts without the rows that are set aside, and what the gate found."""

    parts: tuple[WrittenPart, ...]
    quarantined: int = 0
    results: tuple[ExpectationResult, ...] = ()


class FilesGate:
    """The gate of one load into the table of ``home``. ``scratch`` is a local folder for files made here."""

    def __init__(
        self, tables: FilesTables, home: TableStorage, load: Load, staging: FilesStaging, scratch: Path
    ) -> None:
        self._tables, self._home, self._load, self._staging = tables, home, load, staging
        self._scratch = scratch / "gate"
        self._failing = self._scratch / "failing.parquet"  # the failing rows, each with its rule
        self._staged_to: FilesQuarantine | None = None

    def _quarantine(self) -> FilesQuarantine | None:
        gate = self._load.plan.gate
        if gate is None or gate.quarantine is None:
            return None
        return FilesQuarantine(self._tables, gate.quarantine, self._home.name, self._scratch)

    def settle(self, version: TableVersion | None) -> None:
        """Finish or undo what a crashed load changed in the quarantine table."""
        quarantine = self._quarantine()
        if quarantine is not None:
            quarantine.sweep()
            quarantine.settle(version)

    # ------------------------------------------------------------------ checking

    def check(self, parts: Sequence[WrittenPart]) -> PassedParts:
        """Evaluate the rules on the staged rows. Raises ExpectationFailed."""
        gate = self._load.plan.gate
        if gate is None or not gate.rules:
            return PassedParts(tuple(parts))
        pieces = [(part, file) for part in parts for file in self._pieces(part)]
        readers = [lambda file=file: self._read(file) for _, file in pieces]
        checked = check_pieces(self._load, gate, readers, self.read_table)
        if not checked.failing:
            return PassedParts(tuple(parts), 0, checked.results)
        self._scratch.mkdir(parents=True, exist_ok=True)
        with _FailingRowsFile(self._failing, [rule.label for rule in gate.set_aside_rules]) as aside:
            passed = self._divide(parts, checked, aside)
        return PassedParts(passed, checked.quarantined, checked.results)

    def check_replayed(
        self, rows: QuarantinedRows, base: TableVersion | None, dry_run: bool
    ) -> CheckedReplay:
        """Evaluate the rules on rows of a quarantine table. The rows that pass are read from it."""
        quarantine = FilesQuarantine(self._tables, rows.table, self._home.name, self._scratch)
        if not quarantine.exists():
            raise PlanError(
                f"there is no quarantine table {rows.table.label}",
                state="nothing was touched",
                next_step="name the table that holds the rows, with quarantine=",
            )
        if not dry_run:
            quarantine.settle(base)
        columns, choice = self._load.table.columns, RowChoice.of_filter(rows.chosen)
        files = quarantine.chosen_files(base, choice)
        gate, checked = self._load.plan.gate, CheckedPieces()
        if gate is not None and gate.rules:
            readers = [lambda file=file: quarantine.read_chosen(file, choice, columns) for file in files]
            checked = check_pieces(self._load, gate, readers, self.read_table)
        staying = {files[number].name: failing.places for number, failing in checked.failing.items()}
        staged = self._load.plan.staged

        def passing() -> Iterator[pa.RecordBatch]:
            for number, file in enumerate(files):
                batches: Iterable[pa.RecordBatch] = quarantine.read_chosen(file, choice, columns)
                failing = checked.failing.get(number)
                for batch in batches if failing is None else split_rows(batches, failing):
                    yield cast_batch(batch, staged)

        left = replace(choice, except_=staying)
        return CheckedReplay(passing(), left, checked.quarantined, checked.results)

    def _pieces(self, part: WrittenPart) -> list[DataFile | Path]:
        aside = [part.set_aside_file] if part.set_aside_file is not None else []
        return [*part.data, *aside]

    def _read(self, piece: DataFile | Path) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        if isinstance(piece, DataFile):
            yield from read_rows(piece, self._staging.layout, self._load.table.columns)
            return
        with pq.ParquetFile(piece) as file:
            yield from file.iter_batches()

    def read_table(self, name: str) -> tuple[Sequence[ColumnSpec], Iterable[pa.RecordBatch]]:
        """Another table under the root of the target, for rules that look up its rows."""
        schema, _, table = name.rpartition(".")
        home = self._tables.root.table_storage(TableSpec(schema or None, table, (ColumnSpec("_", _TEXT),)))
        version = home.current_version()
        if version is None:
            raise TargetFailed(f"there is no table {name!r} that was loaded into {home.display_name}")
        layout = version.state.layout
        files = home.data_files(version)
        return layout.columns, (batch for file in files for batch in read_rows(file, layout, layout.columns))

    def _divide(
        self, parts: Sequence[WrittenPart], checked: CheckedPieces, aside: _FailingRowsFile
    ) -> tuple[WrittenPart, ...]:
        found, piece = [], 0
        for part in parts:
            data: list[DataFile] = []
            files: list[WrittenFile] = []
            for where, file in zip(part.data, part.summary.files, strict=True):
                failing = checked.failing.get(piece)
                if failing is None:
                    data.append(where)
                    files.append(file)
                else:
                    written = self._rewrite(where, piece, failing, aside)
                    data += [DataFile(self._scratch / each.name, each.name) for each in written]
                    files += written
                piece += 1
            kept, rows = part.set_aside_file, part.summary.rows_set_aside
            if kept is not None:
                failing = checked.failing.get(piece)
                if failing is not None:
                    kept, rows = self._rewrite_boundary(kept, piece, failing, aside)
                piece += 1
            summary = replace(part.summary, files=tuple(files), rows_set_aside=rows)
            found.append(WrittenPart(summary, tuple(data), kept))
        return tuple(found)

    def _rewrite(
        self, file: DataFile, piece: int, failing: FailingRows, aside: _FailingRowsFile
    ) -> list[WrittenFile]:
        """Write the rows of a file that pass; the others go aside."""
        prefix = self._staging.file_prefix(f"gate{piece}")
        mark = self._staging.watermark_column
        rolling = RollingFileWriter(self._scratch, prefix, self._staging.layout, mark)
        try:
            for batch in aside.split_off(self._read(file), failing):
                rolling.write(self._staging.add_load_columns(batch))
            return rolling.close()
        except BaseException:
            rolling.abandon()
            raise

    def _rewrite_boundary(
        self, file: Path, piece: int, failing: FailingRows, aside: _FailingRowsFile
    ) -> tuple[Path, int]:
        import pyarrow.parquet as pq

        passing, rows = self._scratch / f"boundary{piece}.parquet", 0
        with pq.ParquetFile(file) as old, pq.ParquetWriter(str(passing), old.schema_arrow) as new:
            for batch in aside.split_off(old.iter_batches(), failing):
                new.write_batch(batch)
                rows += batch.num_rows
        return passing, rows

    # ------------------------------------------------------------------ setting aside

    def _read_again(self) -> RowChoice | None:
        """The quarantined rows that the load has read again; None if it reads only new rows."""
        values = values_read_again(self._load)
        return RowChoice(values) if values is not None else None

    def must_write(self, passed: PassedParts, base: TableVersion) -> bool:
        """Whether rows are set aside that are not in quarantine yet, although the load made no progress."""
        quarantine, read_again = self._quarantine(), self._read_again()
        if not passed.quarantined or quarantine is None:
            return False
        if read_again is None:
            return True
        columns = (*self._load.table.columns, ColumnSpec(RULE, _TEXT))
        files = quarantine.chosen_files(base, read_again)
        kept = chain.from_iterable(quarantine.read_chosen(file, read_again, columns) for file in files)
        return not are_same_rows(self._failing_rows(None), kept, columns, self._scratch)

    def set_aside(self, passed: PassedParts, base: TableVersion, high: Watermark | None) -> None:
        """Publish the rows in the quarantine table. They count once the target is published."""
        fault_points.point("gate.checked")
        quarantine, removed = self._quarantine(), self._read_again()
        if quarantine is None:
            return
        if removed is not None and not quarantine.count(base, removed):
            removed = None
        if removed is not None or passed.quarantined:
            rows = self._failing_rows(high) if passed.quarantined else ()
            self._stage(quarantine, base, rows, removed)

    def take_out(self, replayed: QuarantinedRows, choice: RowChoice, read: int, base: TableVersion) -> None:
        """Let the replayed rows leave the quarantine table once the target is published."""
        fault_points.point("gate.checked")
        quarantine = FilesQuarantine(self._tables, replayed.table, self._home.name, self._scratch)
        if quarantine.exists():
            removed = self._stage(quarantine, base, (), choice)
            if removed != read:
                raise TargetFailed(
                    f"{replayed.table.label} changed while its rows were read: {removed:,} of {read:,} "
                    "are left",
                    state="nothing was changed",
                    next_step="replay them again",
                )

    def _stage(
        self,
        quarantine: FilesQuarantine,
        base: TableVersion,
        rows: Iterable[pa.RecordBatch],
        removed: RowChoice | None,
    ) -> int:
        self._staged_to = quarantine
        prefix = self._staging.file_prefix("quarantine")
        return quarantine.stage(base, self._staging.attempt, rows, prefix, removed)

    def tokens(self, base: TableVersion) -> tuple[tuple[str, str], ...]:
        """For the target's next state: the token of the last commit that changed each quarantine table."""
        if self._staged_to is None:
            return base.state.quarantines
        return tuple({**dict(base.state.quarantines), self._staged_to.name: self._staging.attempt}.items())

    def settle_own(self) -> None:
        """Finish the change of the quarantine table, after the target was published."""
        if self._staged_to is not None:
            self._staged_to.settle(self._home.current_version())

    def _failing_rows(self, high: Watermark | None) -> Iterator[pa.RecordBatch]:
        """The failing rows as the quarantine table stores them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        load = self._load
        constants = (
            (QUARANTINED_AT, load.loaded_at, DataType("timestamp_tz")),
            (QUARANTINED_BY, load.pipeline, _TEXT),
            (QUARANTINE_BATCH, str(load.run_id), _TEXT),
            (POSITION, source_position(load, high), _TEXT),
        )
        with pq.ParquetFile(self._failing) as file:
            for batch in file.iter_batches():
                for name, value, data_type in constants:
                    scalar = pa.scalar(value, data_type.arrow())
                    batch = batch.append_column(name, pa.repeat(scalar, batch.num_rows))
                yield batch


class _FailingRowsFile:
    """The file with the failing rows of all pieces, in Arrow's form."""

    def __init__(self, path: Path, rules: Sequence[str]) -> None:
        self._path, self._rules = path, rules
        self._writer: Any = None

    def __enter__(self) -> _FailingRowsFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def split_off(self, batches: Iterable[pa.RecordBatch], failing: FailingRows) -> Iterator[pa.RecordBatch]:
        """Write the failing rows of a piece into the file, and yield the others."""
        import pyarrow as pa

        def write(rows: pa.RecordBatch, rules: Sequence[int]) -> None:
            labels = [self._rules[number] for number in rules]
            self._write(rows.append_column(RULE, pa.array(labels, pa.string())))

        yield from split_rows(batches, failing, write)

    def _write(self, rows: pa.RecordBatch) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(str(self._path), rows.schema, compression="zstd")
        self._writer.write_batch(rows)


def split_rows(
    batches: Iterable[pa.RecordBatch],
    failing: FailingRows,
    write: Callable[[pa.RecordBatch, Sequence[int]], None] = lambda rows, rules: None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece that pass. ``write`` gets the failing ones and the numbers of their rules."""
    import numpy
    import pyarrow as pa

    start = 0
    for batch in batches:
        first, last = numpy.searchsorted(failing.places, [start, start + batch.num_rows])
        places = failing.places[first:last] - start
        if len(places):
            write(batch.take(pa.array(places)), failing.rules[first:last].tolist())
        passing = numpy.ones(batch.num_rows, dtype=bool)
        passing[places] = False
        start += batch.num_rows
        yield batch.filter(pa.array(passing))
