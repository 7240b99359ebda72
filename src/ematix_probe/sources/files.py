"""Files as a source: Parquet, CSV, JSON lines and ORC, on a disk or in a bucket.

A path is one file, a glob, or a folder with its partition folders. DuckDB reads local Parquet, CSV and JSON
lines itself; ORC, and Parquet in a bucket, come as Arrow batches. CSV and JSON lines of a bucket are copied
into the temporary folder first, so that every statement reads the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sqlglot import exp

from ematix_probe.compiling.trees import aliased, case, is_null
from ematix_probe.errors import DeclarationError, SourceFailed
from ematix_probe.location import caller_location
from ematix_probe.sources.base import Subject
from ematix_probe.sources.duckdb_scan import ScanSource, Workspace
from ematix_probe.sources.file_paths import (
    DataFile,
    FoundFiles,
    find_files,
    has_glob,
    inner_path,
    is_own_name,
    table_name,
)
from ematix_probe.sources.partitions import hive_partitioning, partition_types
from ematix_probe.sources.s3 import S3Access, is_s3, s3_access
from ematix_probe.sources.scans import DatasetScan, Scan, SqlScan
from ematix_probe.sources.text_options import CsvOptions, JsonOptions, csv_options, json_options
from ematix_probe.sources.text_scan import csv_scan, json_scan, read_function

FileFormat = Literal["parquet", "csv", "jsonl", "orc"]
EXTENSIONS: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".parq", ".pq"),
    "csv": (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".csv.zst"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".jsonl.zst"),
    "orc": (".orc",),
}
_REQUESTS_AT_ONCE = 16


@dataclass(frozen=True)
class FileSource(ScanSource):
    """The files at ``path``. A table of a probe is a file or folder inside of it."""

    path: str
    format: FileFormat
    options: CsvOptions | JsonOptions | None = None
    access: S3Access | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return f"s3_{self.format}" if is_s3(self.path) else self.format

    @property
    def label(self) -> str:
        return self.path

    @property
    def default_subject(self) -> Subject:
        return Subject(self.path)

    @property
    def is_single(self) -> bool:
        return has_glob(self.path) or self.path.lower().endswith(EXTENSIONS[self.format])

    def scan(self, subject: Subject, workspace: Workspace) -> Scan:
        found, filesystem = self._find(subject)
        return scan_files(found, self.format, self.options, filesystem, workspace)

    def _find(self, subject: Subject) -> tuple[FoundFiles, Any]:
        extensions = EXTENSIONS[self.format]
        if subject == self.default_subject or is_own_name(self.path, subject):
            return find_files(self.path, extensions, self.access)
        if self.is_single:
            raise SourceFailed(
                f"{self.path} is one table, {table_name(self.path)!r}; {subject.label!r} is another one",
                next_step="give the source a folder, and name its tables",
            )
        failure: SourceFailed | None = None
        for path in inner_path(self.path, subject.schema, subject.table, extensions):
            try:
                return find_files(path, extensions, self.access)
            except SourceFailed as error:
                failure = failure or error
        raise failure or SourceFailed(f"there is no table {subject.label!r} in {self.path}")


def scan_files(
    found: FoundFiles,
    format: FileFormat,
    options: CsvOptions | JsonOptions | None,
    filesystem: Any,
    workspace: Workspace,
) -> Scan:
    """The rows of these files."""
    partitions = partition_types(found)
    if format == "orc" or (format == "parquet" and filesystem is not None):
        return _dataset_scan(found, format, filesystem, partitions)
    if filesystem is None:
        _check_first_bytes(found.files, format, options)
    if format == "parquet":
        return parquet_scan(found.files, partitions, workspace)
    local, names = (found, {}) if filesystem is None else _download(found, filesystem, workspace.folder)
    try:
        if format == "csv":
            assert isinstance(options, CsvOptions)
            scan = csv_scan(local.files, options, partitions, workspace.connection)
        else:
            assert isinstance(options, JsonOptions)
            scan = json_scan(local.files, options, partitions, workspace.connection)
    except SourceFailed as error:
        raise SourceFailed(_renamed(error.what, names), next_step=error.next_step) from error
    inner = scan.rename
    return replace(scan, rename=lambda message: _renamed(inner(message), names))


def _check_first_bytes(files: Sequence[DataFile], format: FileFormat, options: Any) -> None:
    """SourceFailed for local files of another format or encoding, of which engines say little."""
    for file in files:
        try:
            with open(file.path, "rb") as stream:
                first = stream.read(4)
        except OSError as error:
            raise SourceFailed(
                f"cannot read {file.path}: {error.strerror or error}",
                next_step="check that the file is still there, and that you may read it",
            ) from error
        if format == "parquet" and first not in (b"PAR1", b"PARE"):
            named = [name for name, ends in EXTENSIONS.items() if file.path.lower().endswith(ends)]
            step = "name a Parquet file"
            if named and named != ["parquet"]:
                step = f"source.{named[0]}() reads such files"
            raise SourceFailed(f"{file.path} is not a Parquet file", next_step=step)
        if format == "csv" and first[:2] in (b"\xff\xfe", b"\xfe\xff") and options.encoding == "utf-8":
            raise SourceFailed(
                f"{file.path} is text in UTF-16, not UTF-8", next_step='give  encoding="utf-16"'
            )


# ------------------------------------------------------------------ one reader a format


def parquet_scan(files: Sequence[DataFile], partitions: dict[str, str], workspace: Workspace) -> SqlScan:
    """The statistics in Parquet leave out NaN, and DuckDB decides conditions by them: a CASE hides them."""
    from ematix_probe.sources.duckdb_types import duckdb_type

    arguments: dict[str, Any] = {"union_by_name": len(files) > 1, "hive_partitioning": bool(partitions)}
    if partitions:
        types = {name: duckdb_type(kind) for name, kind in partitions.items()}
        arguments |= {"hive_types_autocast": False, "hive_types": types}
    query = exp.select("*").from_(read_function("read_parquet", files, arguments))
    floats = [name for name, native in workspace.describe(query) if native in ("FLOAT", "DOUBLE")]
    if floats:
        hidden = [aliased(_hidden(exp.column(name, quoted=True)), name) for name in floats]
        query.selects[0].set("replace", hidden)
    return SqlScan(query)


def _hidden(tree: exp.Expression) -> exp.Expression:
    return case(is_null(tree), exp.Null(), tree)


def _dataset_scan(found: FoundFiles, format: str, filesystem: Any, partitions: dict[str, str]) -> DatasetScan:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    costly = filesystem is not None
    filesystem = filesystem or LocalFileSystem()
    reader = ds.ParquetFileFormat() if format == "parquet" else ds.OrcFileFormat()
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        schemas = list(pool.map(lambda file: _file_schema(reader, file, filesystem), found.files))
    parts = hive_partitioning(partitions) if partitions else None
    try:
        inside = pa.unify_schemas(schemas, promote_options="permissive")
        for name in partitions:
            if name in inside.names:
                inside = inside.remove(inside.get_field_index(name))
        whole = pa.schema([*inside, *parts.schema]) if parts else inside
    except pa.ArrowInvalid as error:
        raise SourceFailed(f"the files of {found.root} have columns of different types: {error}") from error
    dataset = ds.dataset(
        [file.path for file in found.files],
        schema=whole.remove_metadata(),
        format=reader,
        filesystem=filesystem,
        partitioning=parts,
        partition_base_dir=found.root,
    )
    return DatasetScan(dataset, costly=costly)


def _file_schema(reader: Any, file: DataFile, filesystem: Any) -> Any:
    import pyarrow as pa

    try:
        return reader.inspect(file.path, filesystem)
    except (pa.ArrowException, OSError) as error:
        raise SourceFailed(
            f"cannot read {file.shown}: {str(error).splitlines()[0]}",
            next_step="replace the file, or leave it out of the path",
        ) from error


# ------------------------------------------------------------------ text of a bucket


def _download(found: FoundFiles, filesystem: Any, folder: Path) -> tuple[FoundFiles, dict[str, str]]:
    """Copies of the files, and which object each is."""
    needed, free = sum(file.size for file in found.files), shutil.disk_usage(folder).free
    if needed > free:
        raise SourceFailed(
            f"{found.root} has {needed >> 20} MiB of text, "
            f"and the temporary folder has {free >> 20} MiB of room",
            next_step="set TMPDIR to a larger disk, or keep the data as Parquet",
        )
    base = folder / f"objects-{len(list(folder.iterdir()))}"
    start = len(found.root.rstrip("/")) + 1

    def copy(file: DataFile) -> DataFile:
        target = base / file.path[start:]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                filesystem.open_input_stream(file.path, compression=None) as source,
                target.open("wb") as out,
            ):
                shutil.copyfileobj(source, out, 1 << 20)
        except OSError as error:
            raise SourceFailed(f"cannot read {file.shown}: {error}") from error
        return replace(file, path=str(target))

    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        copies = tuple(pool.map(copy, found.files))
    names = {local.path: local.shown for local in copies}
    return FoundFiles(copies, str(base)), names


def _renamed(message: str, names: dict[str, str]) -> str:
    for path, shown in names.items():
        message = message.replace(path, shown)
    return message


# ------------------------------------------------------------------ what users call


def parquet(path: Any, **access: Any) -> FileSource:
    """Parquet files: a path, a glob or a folder. For ``s3://`` give region=, endpoint_url=, access_key= …"""
    return _source("parquet", path, None, access)


def orc(path: Any, **access: Any) -> FileSource:
    """ORC files: a path, a glob or a folder."""
    return _source("orc", path, None, access)


def csv(
    path: Any,
    *,
    delimiter: str | None = None,
    header: bool = True,
    columns: Any = None,
    quote: str = '"',
    escape: str | None = None,
    **more: Any,
) -> FileSource:
    """CSV files. ``columns={"id": "bigint"}`` gives types; the others are found in the first 100,000 rows.

    An empty value without quotes is NULL, ``""`` is an empty text. Further options: ``null=``, ``encoding=``,
    ``sample_rows=`` (None: all), and those of a bucket.
    """
    rest: dict[str, Any] = {
        name: more.pop(name) for name in ("null", "encoding", "sample_rows") if name in more
    }
    return _source("csv", path, csv_options(delimiter, header, columns, quote, escape, rest), more)


def jsonl(path: Any, *, columns: Any = None, **more: Any) -> FileSource:
    """Files with one JSON object a line. With ``columns=`` only these are read. Options as in `csv`."""
    rest: dict[str, Any] = {name: more.pop(name) for name in ("sample_rows",) if name in more}
    return _source("jsonl", path, json_options(columns, rest), more)


def s3_parquet(
    *, bucket: str, key: str, region: str, endpoint_url: str | None = None, **access: Any
) -> FileSource:
    """Parquet in a bucket. ``key`` is that of an object, a glob or a prefix."""
    for name, value in (("bucket", bucket), ("key", key), ("region", region)):
        if not isinstance(value, str) or not value.strip():
            raise DeclarationError(f"{name}= takes a text that is not empty", where=caller_location())
    options = {**access, "region": region, "endpoint_url": endpoint_url}
    return _source("parquet", f"s3://{bucket}/{key.lstrip('/')}", None, options)


def _source(
    format: FileFormat, path: Any, options: CsvOptions | JsonOptions | None, access: dict[str, Any]
) -> FileSource:
    text = str(path) if isinstance(path, Path) else path
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"source.{format}() takes a path, not {path!r}", where=caller_location())
    if not is_s3(text):
        if "://" in text:
            raise DeclarationError(
                f"source.{format}() reads local paths and s3://, not {text.partition('://')[0]}://",
                where=caller_location(),
            )
        if access:
            raise DeclarationError(
                f"source.{format}() of a local path takes no {next(iter(access))}=", where=caller_location()
            )
        return FileSource(text, format, options)
    return FileSource(text, format, options, s3_access(access, f"source.{format}()"))
