"""Inspects the files of a folder and compares their columns with the declared ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.base import LiveTable, TableChange, TablePlan
from ematix_flow.backends.objectstore.formats.file_readers import file_schema, read_first_record
from ematix_flow.backends.objectstore.layout.file_layout import CsvDialect
from ematix_flow.backends.objectstore.layout.partition_folders import partition_columns
from ematix_flow.backends.objectstore.layout.table_paths import DataFile, find_foreign_format
from ematix_flow.backends.objectstore.table.table_storage import TableStorage
from ematix_flow.errors import DeclarationError, SchemaMismatch
from ematix_flow.spec.connections import format_from_path
from ematix_flow.spec.file_options import CsvReadOptions
from ematix_flow.spec.tables import BATCH_ID, LOADED_AT, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType, from_arrow

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = ("small_int", "integer", "big_int")
_TEXTS = ("text", "string", "json", "jsonb", "uuid")


def require_format(home: TableStorage, there: str, format: str, example: str = "") -> None:
    """Refuse a folder with files of another format: readers expect one format in a folder."""
    if there != format:
        raise SchemaMismatch(
            f"the folder {home.display_name} holds {there} files{example}, and the "
            f"connection's format is {format}",
            next_step="choose another table, prefix or connection",
        )


def list_user_files(home: TableStorage, format: str) -> list[DataFile]:
    """The data files of a folder that this product did not write; SchemaMismatch if it is not one table."""
    files = home.user_files()
    foreign = find_foreign_format(files, format)
    if foreign is not None:
        require_format(home, str(format_from_path(foreign.name)), format, f" ({foreign.name})")
    others = home.user_folders()
    if others:
        raise SchemaMismatch(
            f"the folder {home.display_name} has folders that are not partitions: {', '.join(others[:5])}",
            next_step="choose another table or prefix: a table's folder holds only data files",
        )
    return files


def infer_columns(files: Sequence[DataFile], format: str, dialect: CsvDialect) -> tuple[ColumnSpec, ...]:
    """The columns of files that other programs wrote, in the order of their first appearance."""
    found: dict[str, tuple[DataType | None, str]] = {}  # None: only nulls so far
    if format == "csv":
        _require_one_header(files, dialect)
    for file in files[:1] if format == "csv" else files:
        for field in file_schema(file.path, format, dialect):
            data_type = None if str(field.type) == "null" else _canonical_type(field.type, field.name, file)
            there, first = found.setdefault(field.name, (data_type, file.name))
            if there is None:
                found[field.name] = (data_type, file.name)
            elif data_type not in (None, there):
                assert data_type is not None
                if format != "json_lines":
                    raise SchemaMismatch(
                        f"column {field.name!r} is {data_type} in {file.name} and {there} in {first}",
                        next_step=f"make the files of {file.path.parent} agree, or choose another folder",
                    )
                found[field.name] = (_common_type(there, data_type), first)
    text = DataType("text")
    columns = [ColumnSpec(name, data_type or text, nullable=True) for name, (data_type, _) in found.items()]
    columns += [ColumnSpec(n, text, nullable=True) for n in user_partition_columns(files) if n not in found]
    return tuple(columns)


def name_by_position(columns: Sequence[ColumnSpec], table: TableSpec) -> tuple[ColumnSpec, ...]:
    """Name the columns of files without a header: the first gets the first declared name, and so on."""
    names = [*table.column_names, *(c.name for c in columns[len(table.column_names) :])]
    return tuple(replace(column, name=name) for column, name in zip(columns, names, strict=False))


def undeclared_as_text(columns: Sequence[ColumnSpec], table: TableSpec) -> tuple[ColumnSpec, ...]:
    """Record undeclared CSV columns as text: a type inferred from the beginning of a file could lose zeros
    and signs of later values."""
    declared = table.with_load_columns().column_names
    text = DataType("text")
    return tuple(c if c.name in declared else replace(c, type=text) for c in columns)


def _canonical_type(arrow_type: pa.DataType, column: str, file: DataFile) -> DataType:
    try:
        return from_arrow(arrow_type)
    except DeclarationError as error:
        raise SchemaMismatch(f"column {column!r} of {file.path}: {error.what}") from error


def _common_type(one: DataType, other: DataType) -> DataType:
    """The common type of two files: JSON has one kind of number; other differing types become text."""
    return DataType("double" if {one.kind, other.kind} <= {*_WHOLE, "double"} else "text")


def find_csv_dialect(files: Sequence[DataFile], table: TableSpec, reading: CsvReadOptions) -> CsvDialect:
    """The declared dialect of CSV files that other programs wrote; SchemaMismatch for a dialect that cannot
    be written. Without a declared delimiter, the one that fits the header best is used."""
    quote = reading.quote
    known = CsvDialect(header=reading.has_header, quote=quote, escape=reading.escape or quote)
    if not files:
        return known
    _refuse_unsupported_dialect(files[0], reading)
    given = (reading.delimiter,) if reading.delimiter else (",", ";", "\t", "|")
    dialects = [replace(known, delimiter=delimiter) for delimiter in given]
    names = set(table.column_names)
    return max(dialects, key=lambda d: len(names & set(read_first_record(files[0].path, d))))


def _refuse_unsupported_dialect(file: DataFile, reading: CsvReadOptions) -> None:
    """Refuse read options that cannot be written: comments and short records."""
    odd = [
        option
        for option in ("terminator", "comment", "null_regex", "truncated_rows_ok")
        if getattr(reading, option)
    ]
    if odd:
        raise SchemaMismatch(
            f"the folder {file.path.parent} has files of other programs ({file.name}), and "
            f"csv_read_options= reads them with {', '.join(odd)}: flow cannot write such files, "
            "and one folder has one dialect",
            next_step="read that folder as a source, and load it into another one",
        )


def user_partition_columns(files: Sequence[DataFile]) -> tuple[str, ...]:
    """The partition columns in the paths of files that other programs wrote."""
    return tuple(partition_columns(files[0].name)) if files else ()


def _require_one_header(files: Sequence[DataFile], dialect: CsvDialect) -> None:
    """Refuse files with different headers: readers take CSV columns by position."""
    if not dialect.header:
        return
    first = read_first_record(files[0].path, dialect) if files else []
    outside = {name.lower() for name in user_partition_columns(files)}
    twice = next((name for name in first if name.lower() in outside), None)
    if twice is not None:
        raise SchemaMismatch(
            f"{files[0].name} in the folder {files[0].path.parent} has the column {twice!r}, and so has the "
            "name of its partition folder: files that flow writes have it only in the folder's name",
            next_step="read that folder as a source, and load it into another one",
        )
    for file in files[1:]:
        if read_first_record(file.path, dialect) != first:
            raise SchemaMismatch(
                f"{file.name} and {files[0].name} in the folder {file.path.parent} have different headers",
                next_step="give these files the same columns in the same order, or choose another folder",
            )


def plan_columns(table: TableSpec, live: LiveTable, holds: CanHold) -> TablePlan:
    """What must change in the live table, and which differences no change can fix."""
    there = {c.name: c for c in live.columns}
    changes: list[TableChange] = []
    differences: list[str] = []
    for column in table.with_load_columns().columns:
        found = there.get(column.name)
        if found is not None:
            if not holds(column, found):
                what = f"column {column.name!r} is {found.type} in the files, declared as {column.type}"
                differences.append(what)
        elif column.nullable or column.name in (LOADED_AT, BATCH_ID):
            changes.append(TableChange("add_column", f"{table.label}.{column.name}"))
        else:
            what = f"column {column.name!r} ({column.type}, not null) is declared but not in the files"
            differences.append(what)
    return TablePlan(tuple(changes), tuple(differences))


CanHold = Callable[[ColumnSpec, ColumnSpec], bool]


def written_files_can_hold(declared: ColumnSpec, there: ColumnSpec) -> bool:
    """Whether files with the column as in ``there`` can be read together with those of the declared one."""
    return declared.type == there.type or {declared.type.kind, there.type.kind} <= set(_TEXTS)


def found_files_can_hold(format: str, partitions: Sequence[str]) -> CanHold:
    """The same for files of other programs: a type inferred from text is less strict than a schema."""

    def holds(declared: ColumnSpec, there: ColumnSpec) -> bool:
        if declared.name in partitions or written_files_can_hold(declared, there):
            return True
        if format == "parquet":
            return from_arrow(declared.type.arrow()) == there.type
        if format == "orc":
            times = {"timestamp", "timestamp_tz"}
            return {declared.type.kind, there.type.kind} <= times
        return _may_be_same_type(declared.type, there.type)

    return holds


def _may_be_same_type(declared: DataType, there: DataType) -> bool:
    """Whether an inferred type may be the declared one: digits may be any number, or text."""
    if declared.kind in _TEXTS or declared.kind == "bytes":
        return True
    if there.kind in _WHOLE:
        return declared.kind in (*_WHOLE, "numeric", "float", "double")
    if there.kind == "double":
        return declared.kind in ("numeric", "float", "double")
    if there.kind in ("date", "timestamp", "timestamp_tz"):
        return declared.kind in ("date", "timestamp", "timestamp_tz")
    return declared.kind == there.kind
