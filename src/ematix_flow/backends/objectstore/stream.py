"""A folder of files as the source of a stream: the receiver delivers paths, and Spark reads the files.

Which files count, and how they are read, follows the same rules as in a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING

from ematix_flow.backends.messages.base import ReadRequest, ReceivedFileSource, Receiver
from ematix_flow.backends.objectstore.layout.source_files import ListedFile, SourceFile
from ematix_flow.backends.objectstore.reading.catalog import FilesCatalog, ReadableTable
from ematix_flow.backends.objectstore.reading.file_tree import FileTree, Parts
from ematix_flow.backends.objectstore.reading.receiver import FilesReceiver, FolderOptions, is_unfinished
from ematix_flow.backends.stores.table_folders import path_segments
from ematix_flow.errors import DataLost, SourceFailed, SourceMissing, did_you_mean
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_THREADS = 8
_DESCRIBED_FILES = 100  # the oldest, and as many of the newest
_DESCRIBED_BYTES = 256 * 1024 * 1024


class FilesStream(ReceivedFileSource):
    """``written_in_place``: whether files are visible while they are written, as on a disk."""

    def __init__(self, tree: FileTree, format: str, *, written_in_place: bool, poll_seconds: float) -> None:
        self._tree, self._format = tree, format
        self._catalog = FilesCatalog(tree, format)
        self._written_in_place, self._poll_seconds = written_in_place, poll_seconds

    # -------------------------------------------------------------- following

    def check(self, reading: ReadRequest) -> None:
        self._options(reading)
        parts = _folder_parts(reading)
        only = self._tree.root_file()
        if only is not None:
            raise SourceFailed(
                f"{only[0].display_name} is a file: a stream follows a folder and the "
                "files that come into it",
                next_step="name the folder above it as the path of the connection",
            )
        self._tree.require_root()
        shown = self._tree.display_name(parts)
        try:
            self._catalog.require_no_lake(shown, parts)
        except FileNotFoundError as error:
            known = [name.replace(".", "/") for name in self._catalog.names()]
            raise SourceMissing(
                f"there is no folder {shown}.{did_you_mean('/'.join(parts), known)}",
                next_step=f"make it, as in  mkdir -p '{shown}', or name another folder as the source's query",
            ) from error
        except NotADirectoryError as error:
            raise SourceFailed(
                f"{shown} is a file: a stream follows a folder and the files that come into it",
                next_step="name the folder that contains it",
            ) from error
        own = self._tree.own_table(parts)
        if own is not None and own.state.layout.format != self._format:
            raise self._catalog.other_format_error(shown, own.state.layout.format, "")

    def receiver(self, reading: ReadRequest, progress: Mapping[str, str]) -> Receiver:
        return FilesReceiver(
            lambda: self._files(reading),
            reading,
            self._options(reading),
            progress,
            written_in_place=self._written_in_place,
        )

    def max_batch_messages(self, reading: ReadRequest) -> int:
        return self._options(reading).max_files

    def _options(self, reading: ReadRequest) -> FolderOptions:
        return FolderOptions.from_options(reading.options, self._poll_seconds)

    def _files(self, reading: ReadRequest) -> Iterator[ListedFile]:
        """List the files, with their paths below the root. CannotConnect if the server cannot be reached."""
        parts, everywhere = _folder_parts(reading), self._options(reading).recursive
        above = "".join(f"{part}/" for part in parts)
        try:
            for found in self._tree.iterate_files(
                parts, lambda name: everywhere or self._catalog.is_part_of_table(name)
            ):
                yield replace(found, name=above + found.name)
        except SourceFailed:
            self._tree.root_file()  # fails if the root does not exist
            raise

    # -------------------------------------------------------------- reading

    def read_files(
        self,
        spark: SparkSession,
        paths: Sequence[str],
        reading: ReadRequest,
        columns: Sequence[ColumnSpec] | None = None,
    ) -> DataFrame:
        from ematix_flow.backends.objectstore.spark import FilesSource

        source = FilesSource(self._catalog, self._format, reading.files)
        return source.read(spark, self._table_of_files(paths, reading), columns)

    def describe(self, spark: SparkSession, reading: ReadRequest) -> tuple[ColumnSpec, ...] | None:
        """Infer the columns. Of very many or large files, only some of the oldest and newest are read."""
        from ematix_flow.backends.objectstore.spark.stream_rows import column_specs_of_frame

        parts = _folder_parts(reading)
        own = self._tree.own_table(parts)
        if own is not None:
            return tuple(replace(column, primary_key=False) for column in own.state.layout.columns)
        paths = self._paths_to_describe(reading)
        return column_specs_of_frame(self.read_files(spark, paths, reading)) if paths else None

    def _paths_to_describe(self, reading: ReadRequest) -> list[str]:
        def some() -> Iterator[tuple[int, str, int]]:
            return (
                (file.modified, file.name, file.size)
                for file in self._files(reading)
                if file.size and not is_unfinished(file.name)
            )

        chosen = nsmallest(_DESCRIBED_FILES, some())
        if len(chosen) == _DESCRIBED_FILES:
            chosen = sorted({*chosen, *nlargest(_DESCRIBED_FILES, some())})
        paths: list[str] = []
        size = 0
        while chosen and (not paths or size + chosen[-1][2] <= _DESCRIBED_BYTES):
            _, path, more = chosen.pop(-1 if len(paths) % 2 == 0 else 0)
            paths.append(path)
            size += more
        return sorted(paths)

    def _table_of_files(self, paths: Sequence[str], reading: ReadRequest) -> ReadableTable:
        """The files as one table. DataLost if a file is gone, SourceFailed if one has another format."""
        parts = _folder_parts(reading)
        above = "".join(f"{part}/" for part in parts)
        strange = next((path for path in paths if not path.startswith(above)), None)
        if strange is not None:
            raise SourceFailed(
                f"the file {strange} was received, but is not in {self._tree.display_name(parts)}",
                next_step="follow the folder that contains it, or give the stream another name",
            )
        names = sorted({path[len(above) :] for path in paths})
        own = self._tree.own_table(parts)
        if own is not None:
            there = {file.name: file for file in own.files}
            for name in names:
                if name not in there:
                    _raise_unless_loss_allowed(
                        _vanished_error(f"{self._tree.display_name(parts)}/{name}"), reading
                    )
            files = tuple(there[name] for name in names if name in there)
            return ReadableTable(reading.query, own.folder, files, own.state, whole_folder=False)
        with ThreadPoolExecutor(_THREADS) as threads:
            found = threads.map(lambda name: self._find_file(parts, name, reading), names)
            files = tuple(file for file in found if file is not None)
        self._catalog.require_format(self._tree.display_name(parts), files)
        return ReadableTable(reading.query, self._tree.uri(parts), files, None, whole_folder=False)

    def _find_file(self, parts: Parts, name: str, reading: ReadRequest) -> SourceFile | None:
        """Find a file. None if it is gone and the stream is allowed to lose data."""
        inside = (*parts, *name.split("/"))
        try:
            return replace(self._tree.source_file(inside), name=name)
        except (FileNotFoundError, SourceFailed) as error:
            if isinstance(error, SourceFailed) and not isinstance(error.__cause__, FileNotFoundError):
                raise
            _raise_unless_loss_allowed(_vanished_error(self._tree.display_name(inside)), reading)
            return None


def _folder_parts(reading: ReadRequest) -> Parts:
    """The folders that the query names, below the connection's root; empty for the root itself."""
    if reading.query.strip("/") in ("", "."):
        return ()
    try:
        return path_segments(reading.query)
    except ValueError as error:
        raise SourceFailed(
            f"{reading.query!r} cannot be a folder of files: {error}",
            next_step='name it relative to the root of the connection, as in  "raw/orders/"',
        ) from error


def _raise_unless_loss_allowed(lost: DataLost, reading: ReadRequest) -> None:
    """Raise the error, unless the stream is allowed to lose data."""
    if reading.fail_on_data_loss:
        raise lost
    _log.warning("%s; it is skipped, as fail_on_data_loss=False allows", lost.what)


def _vanished_error(shown: str) -> DataLost:
    return DataLost(
        f"{shown} no longer exists: it was received, but removed before its rows were read",
        state="nothing of this batch is loaded",
        next_step="put it back; or run the stream with fail_on_data_loss=False, which skips it",
    )
