"""Iceberg tables as a source: from a catalog, or from the metadata in a folder.

All statements of a probe read one snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_probe.environment import resolve
from ematix_probe.errors import CannotConnect, DeclarationError, SourceFailed
from ematix_probe.extras import require
from ematix_probe.location import caller_location
from ematix_probe.sources.base import Subject
from ematix_probe.sources.duckdb_scan import ScanSource, Workspace
from ematix_probe.sources.file_paths import is_own_name
from ematix_probe.sources.s3 import S3Access, is_s3, s3_access, split_s3
from ematix_probe.sources.scans import BatchScan, Scan

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = re.compile(r"v?(\d+)[^/]*\.metadata\.json")


@dataclass(frozen=True)
class IcebergSource(ScanSource):
    """A table of a catalog (``catalog`` or ``properties``), or the table whose metadata is at ``table``."""

    kind = "iceberg"
    table: str = ""
    catalog: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    snapshot: int | None = None
    access: S3Access | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return ".".join(part for part in (self.catalog, self.table) if part) or "Iceberg"

    @property
    def default_subject(self) -> Subject | None:
        return Subject(self.table) if self.table else None

    @property
    def is_single(self) -> bool:
        named = self.catalog is not None or bool(self.properties)
        return bool(self.table) if named else self.table.endswith(".metadata.json")

    def scan(self, subject: Subject, workspace: Workspace) -> Scan:
        require("pyiceberg", "iceberg", "an Iceberg table")
        table = self._load(subject)
        if self.snapshot is not None and table.snapshot_by_id(self.snapshot) is None:
            raise SourceFailed(f"the Iceberg table {self.label} has no snapshot {self.snapshot}")
        return iceberg_scan(table, self.snapshot)

    def _load(self, subject: Subject) -> Any:
        named = ".".join(part for part in (subject.schema, subject.table) if part)
        options = {key: resolve(value) for key, value in self.properties.items()}
        if self.access is not None:
            options = {**self.access.resolved().iceberg_options(), **options}
        if self.catalog is None and not self.properties:
            return self._from_metadata(self._place(subject), options)
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        own = not named or subject == self.default_subject or named == self.table.rpartition(".")[2]
        name = self.table if own and self.table else named
        try:
            return load_catalog(self.catalog or "default", **options).load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise SourceFailed(f"the Iceberg catalog has no table {name!r}") from error
        except Exception as error:
            raise CannotConnect(
                f"cannot load the Iceberg table {name!r}: {_first_line(error)}",
                next_step="check the catalog's name, its properties such as uri, and its credentials",
            ) from error

    def _place(self, subject: Subject) -> str:
        own = self.table.rstrip("/")
        if subject == self.default_subject or is_own_name(own, subject):
            return own
        return "/".join(part for part in (own, subject.schema, subject.table) if part)

    def _from_metadata(self, place: str, options: dict[str, str]) -> Any:
        from pyiceberg.table import StaticTable

        options.setdefault("py-io-impl", "pyiceberg.io.pyarrow.PyArrowFileIO")
        file = place if place.endswith(".metadata.json") else newest_metadata(place, self.access)
        try:
            return StaticTable.from_metadata(file, options)
        except FileNotFoundError as error:
            raise SourceFailed(f"there is no Iceberg metadata at {file}") from error
        except Exception as error:
            raise SourceFailed(f"cannot read the Iceberg metadata {file}: {_first_line(error)}") from error


@dataclass(frozen=True)
class _IcebergScan(BatchScan):
    table: Any
    snapshot: int | None
    arrow_schema: Any
    not_null: frozenset[str] = frozenset()

    def schema(self) -> pa.Schema:
        return self.arrow_schema

    def read(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        scan = self.table.scan(selected_fields=tuple(columns), snapshot_id=self.snapshot)
        return scan.to_arrow_batch_reader()


def iceberg_scan(table: Any, snapshot: int | None = None) -> Scan:
    """The rows of a table of pyiceberg, as of one snapshot: by default its current one."""
    current = table.current_snapshot()
    pinned = snapshot if snapshot is not None or current is None else current.snapshot_id
    scan = table.scan(snapshot_id=pinned)
    required = frozenset(each.name for each in scan.projection().fields if each.required)
    return _IcebergScan(table, pinned, scan.projection().as_arrow(), required)


def newest_metadata(folder: str, access: S3Access | None = None) -> str:
    """The newest metadata file of a table: the one of the version hint, else the highest number."""
    from pyarrow.fs import FileSelector, FileType, LocalFileSystem

    if is_s3(folder):
        filesystem, scheme = (access or S3Access()).resolved().filesystem(), "s3://"
        base = "/".join(part for part in split_s3(folder) if part)
    else:
        plain = folder.removeprefix("file://")
        filesystem, scheme, base = LocalFileSystem(), "file://", str(Path(plain).expanduser().absolute())
    try:
        found = filesystem.get_file_info(FileSelector(f"{base}/metadata", allow_not_found=True))
        files = {each.base_name: each.path for each in found if each.type == FileType.File}
        hint = ""
        if "version-hint.text" in files:
            with filesystem.open_input_stream(files["version-hint.text"]) as stream:
                hint = bytes(stream.readall()).decode().strip()
    except OSError as error:
        raise CannotConnect(f"cannot read {folder}: {error}") from error
    for name in (hint, f"v{hint}.metadata.json"):
        if name in files and name.endswith(".metadata.json"):
            return f"{scheme}{files[name]}"
    versions = sorted((int(match[1]), name) for name in files if (match := _VERSION.fullmatch(name)))
    if not versions:
        raise SourceFailed(
            f"there is no Iceberg table in {folder}",
            next_step="name the folder that holds metadata/, a metadata file, or a catalog",
        )
    return f"{scheme}{files[versions[-1][1]]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def iceberg(
    table: Any = "",
    *,
    catalog: str | None = None,
    properties: Mapping[str, str] | None = None,
    snapshot: int | None = None,
    **access: Any,
) -> IcebergSource:
    """An Iceberg table.

    ``source.iceberg("sales.orders", catalog="prod")`` loads it from a catalog of pyiceberg, ``properties``
    are the catalog's (``{"type": "rest", "uri": …}``). ``source.iceberg("/lake/orders")`` reads the newest
    metadata in a folder or in ``s3://``. The path may also be that of one metadata file.
    """
    text = str(table) if isinstance(table, Path) else table
    if not isinstance(text, str):
        raise DeclarationError(
            f"source.iceberg() takes a name or a path, not {table!r}", where=caller_location()
        )
    if not text.strip() and catalog is None and not properties:
        raise DeclarationError(
            "source.iceberg() takes a path, or a catalog and a table", where=caller_location()
        )
    if snapshot is not None and (not isinstance(snapshot, int) or isinstance(snapshot, bool)):
        raise DeclarationError(
            f"snapshot= is the id of a snapshot, not {snapshot!r}", where=caller_location()
        )
    s3 = s3_access(access, "source.iceberg()") if access else None
    return IcebergSource(text.strip(), catalog, dict(properties or {}), snapshot, s3)
