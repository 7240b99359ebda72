"""Delta tables as a source: one version of the table for all statements of a probe.

delta-rs reads the table, deletion vectors and renamed columns included. Where the table has neither, DuckDB
reads its files if they are local, which is faster. A table with a feature that delta-rs does not read is read
by Spark if a session with Delta is there; else the error says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ematix_probe.environment import resolve
from ematix_probe.errors import DeclarationError, ProbeError, SourceFailed
from ematix_probe.extras import require
from ematix_probe.location import caller_location
from ematix_probe.sources.base import OpenSubject, Subject
from ematix_probe.sources.duckdb_scan import ScanSource, Workspace
from ematix_probe.sources.file_paths import DataFile, is_own_name
from ematix_probe.sources.files import parquet_scan
from ematix_probe.sources.s3 import S3Access, is_s3, s3_access
from ematix_probe.sources.scans import BatchScan, Scan, SqlScan

if TYPE_CHECKING:
    import pyarrow as pa

# the features of a table that this release reads through delta-rs
_READ_FEATURES = frozenset(
    {"timestampNtz", "deletionVectors", "columnMapping", "v2Checkpoint", "vacuumProtocolCheck"}
)
# those of them with which every row of the files is a row of the table, under the same names
_PLAIN_FILES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_UNSUPPORTED = re.compile(r"unsupported|\breader", re.IGNORECASE)


@dataclass(frozen=True)
class DeltaSource(ScanSource):
    """The table at ``path``, or the tables in the folder at ``path`` for a probe with table=."""

    kind = "delta"
    path: str
    version: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    access: S3Access | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return self.path if self.version is None else f"{self.path} version {self.version}"

    @property
    def default_subject(self) -> Subject:
        return Subject(self.path)

    @property
    def is_single(self) -> bool:
        return not is_s3(self.path) and (Path(self.path).expanduser() / "_delta_log").is_dir()

    def scan(self, subject: Subject, workspace: Workspace) -> Scan:
        table = self._table(subject)
        scan = _scan_of(table)
        return _files_scan(table, scan, workspace) or scan

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        """Through Spark, when delta-rs does not read the table."""
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(super().open(subject))
            except _NotForDeltaRs as error:
                opened = stack.enter_context(self._by_spark(subject, error))
            yield opened

    def _place(self, subject: Subject) -> str:
        if subject == self.default_subject or is_own_name(self.path, subject):
            return self.path
        return "/".join(part for part in (self.path.rstrip("/"), subject.schema, subject.table) if part)

    def _table(self, subject: Subject) -> Any:
        deltalake = require("deltalake", "delta", "a Delta table")
        place = self._place(subject)
        options = {key: resolve(value) for key, value in self.storage_options.items()}
        if is_s3(place):
            options = {**(self.access or S3Access()).resolved().delta_options(), **options}
            place = f"s3://{place.split('://', 1)[1]}"
        try:
            table = deltalake.DeltaTable(place, version=self.version, storage_options=options or None)
        except deltalake.exceptions.TableNotFoundError as error:
            raise SourceFailed(
                f"there is no Delta table at {place}",
                next_step="check the path: a table has a folder _delta_log",
            ) from error
        except Exception as error:
            if _UNSUPPORTED.search(str(error)):
                raise _NotForDeltaRs(str(error).splitlines()[0]) from error
            raise SourceFailed(
                f"cannot open the Delta table at {place}: {_first_line(error)}",
                next_step="check the path and the version; of a bucket the endpoint, the region and the keys",
            ) from error
        missing = set(table.protocol().reader_features or ()) - _READ_FEATURES
        if missing:
            raise _NotForDeltaRs(f"it has the feature {', '.join(sorted(missing))}")
        return table

    @contextmanager
    def _by_spark(self, subject: Subject, unreadable: _NotForDeltaRs) -> Iterator[OpenSubject]:
        from ematix_probe.sources.spark import SparkSource, active_session

        if subject.query is not None:
            raise SourceFailed(
                f"delta-rs does not read a table of this query: {unreadable.what}",
                next_step="read it with source.spark(query=…), on a session with Delta",
            )
        place = self._place(subject)
        session = active_session()
        if session is None:
            raise SourceFailed(
                f"delta-rs does not read the Delta table at {place}: {unreadable.what}",
                state="no Spark session is there that could read it",
                next_step="start a Spark session with Delta before the probe, or use source.spark(table=…)",
            )
        reader = session.read.format("delta")
        if self.version is not None:
            reader = reader.option("versionAsOf", self.version)
        try:
            frame = reader.load(place.replace("s3://", "s3a://", 1))
        except Exception as error:
            raise SourceFailed(
                f"neither delta-rs nor Spark reads the Delta table at {place}: {_first_line(error)}",
                state=f"delta-rs: {unreadable.what}",
            ) from error
        source = SparkSource(session=session, frame=frame, name=place)
        with source.open(source.default_subject or Subject(place)) as opened:
            yield opened


class _NotForDeltaRs(SourceFailed):
    """Why delta-rs does not read a table."""


@dataclass(frozen=True)
class _DeltaScan(BatchScan):
    """One version of a table. Its DataFusion scan gives only live rows."""

    table: Any
    arrow_schema: Any
    not_null: frozenset[str] = frozenset()

    def schema(self) -> pa.Schema:
        return self.arrow_schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        import pyarrow as pa

        if hasattr(self.table, "scan"):
            return pa.RecordBatchReader.from_stream(self.table.scan(columns=list(columns)))
        dataset = self.table.to_pyarrow_dataset()  # before deltalake 1.6
        return dataset.scanner(columns=list(columns)).to_reader()


def _scan_of(table: Any) -> _DeltaScan:
    import pyarrow as pa

    declared = table.schema()
    required = frozenset(field.name for field in declared.fields if not field.nullable)
    try:
        if hasattr(table, "scan"):
            schema = pa.RecordBatchReader.from_stream(table.scan()).schema
        else:
            schema = table.to_pyarrow_dataset().schema
    except Exception as error:
        raise _NotForDeltaRs(_first_line(error)) from error
    return _DeltaScan(table, schema, required)


def _files_scan(table: Any, scan: _DeltaScan, workspace: Workspace) -> SqlScan | None:
    """The files of the version, if they hold exactly its rows and columns and are on this machine."""
    import duckdb
    import pyarrow as pa

    protocol, partitions = table.protocol(), table.metadata().partition_columns
    if (
        partitions
        or protocol.min_reader_version == 2
        or not _PLAIN_FILES.issuperset(protocol.reader_features or ())
    ):
        return None
    paths = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    if not paths or not all(Path(path).is_file() for path in paths):
        return None
    files = [DataFile(path, 0, path) for path in sorted(paths)]
    try:
        found = parquet_scan(files, {}, workspace)
        as_batches = workspace.connection.from_arrow(pa.Table.from_batches([], scan.schema()))
        wanted = list(zip(as_batches.columns, map(str, as_batches.types), strict=True))
        # a file without a column, or with another type for it, is delta-rs's to read
        if workspace.describe(found.query) != wanted:
            return None
    except (ProbeError, duckdb.Error, pa.ArrowException):
        return None
    return replace(found, not_null=scan.not_null)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def delta(
    path: Any, version: int | None = None, storage_options: Mapping[str, str] | None = None, **access: Any
) -> DeltaSource:
    """A Delta table: a folder, or ``s3://bucket/key`` with region=, endpoint_url=, access_key=, secret_key=.

    Without ``version`` the newest one is read. ``storage_options`` go to delta-rs as they are.
    """
    text = str(path) if isinstance(path, Path) else path
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"source.delta() takes a path, not {path!r}", where=caller_location())
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 0):
        raise DeclarationError(f"version= is a whole number from 0, not {version!r}", where=caller_location())
    s3 = s3_access(access, "source.delta()") if access else None
    if s3 is not None and not is_s3(text):
        raise DeclarationError(
            f"source.delta() of a local path takes no {next(iter(access))}=", where=caller_location()
        )
    return DeltaSource(text, version, dict(storage_options or {}), s3)
