"""How a table's files are laid out: format, columns in order, partitions, and the dialect of CSV.

A layout is written into the table's state and travels, pickled, into the tasks that write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import NameRefused
from ematix_flow.spec.file_options import CsvReadOptions
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

EXTENSIONS = {"parquet": ".parquet", "csv": ".csv", "json_lines": ".jsonl", "orc": ".orc"}
DEFAULT_COMPRESSION = "zstd"
FILE_BYTES = 256 * 1024 * 1024  # a file that has grown to this is closed, and a new one begun


@dataclass(frozen=True)
class CsvDialect:
    """How cells are told apart. A null is ``null`` without quotes; an equal text is quoted."""

    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    escape: str = '"'
    null: str = ""

    @classmethod
    def from_options(cls, options: FileOptions) -> CsvDialect:
        """What is said of reading the folder holds for writing too, unless that is said as well."""
        read = CsvReadOptions.from_file_options(options)
        quote = options.csv_quote or read.quote
        return cls(
            delimiter=options.csv_delimiter or read.delimiter or ",",
            header=read.has_header if options.csv_header is None else options.csv_header,
            quote=quote,
            escape=options.csv_escape or read.escape or quote,
            null=options.csv_null_value or "",
        )

    @property
    def null_unescaped(self) -> str:
        """The null mark as a reader sees it that takes the escape away outside quotes too."""
        return self.null if self.escape == self.quote else self.null.replace(self.escape, "")

    def __str__(self) -> str:
        header = "a header" if self.header else "no header"
        return (
            f"delimiter {self.delimiter!r}, {header}, quote {self.quote!r}, escape {self.escape!r}, "
            f"null {self.null!r}"
        )


@dataclass(frozen=True)
class FileLayout:
    """One table's files. ``columns`` are all of them, in the order in which files hold them."""

    format: str
    columns: tuple[ColumnSpec, ...]
    partition_by: tuple[str, ...] = ()
    csv: CsvDialect = CsvDialect()
    compression: str = DEFAULT_COMPRESSION

    @property
    def stored_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns inside a file: partition columns stand in its folder's name alone."""
        return tuple(c for c in self.columns if c.name not in self.partition_by)

    def column(self, name: str) -> ColumnSpec | None:
        return next((c for c in self.columns if c.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "columns": [c.to_json() for c in self.columns],
            "partition_by": list(self.partition_by),
            "csv": asdict(self.csv) if self.format == "csv" else None,
            "compression": self.compression if self.format == "parquet" else None,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FileLayout:
        return cls(
            format=value["format"],
            columns=tuple(ColumnSpec.from_json(c) for c in value["columns"]),
            partition_by=tuple(value["partition_by"]),
            csv=CsvDialect(**value["csv"]) if value["csv"] else CsvDialect(),
            compression=value["compression"] or DEFAULT_COMPRESSION,
        )


def require_readable_names(table: TableSpec, format: str) -> None:
    """Refuse names that readers of a format lose: those of ORC in Java end a name at a backtick."""
    for name in table.column_names:
        if format == "orc" and "`" in name:
            raise NameRefused(
                f"the name {name!r} in {table.label} holds a backtick, at which readers of ORC end a name",
                where=table.where,
                state="nothing was touched",
                next_step="choose another name, or another format of files",
            )


def merge_columns(there: Sequence[ColumnSpec], declared: Sequence[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """The table's columns after a load: those there keep their order, new ones follow.

    A column that the load does not bring, or that older rows do not have, is nullable from then on.
    """
    wanted = {c.name: c for c in declared}
    kept = [
        storage_column(wanted[c.name], c.nullable) if c.name in wanted else storage_column(c, True)
        for c in there
    ]
    names = {c.name for c in there}
    return (*kept, *(storage_column(c, bool(there)) for c in declared if c.name not in names))


def storage_column(column: ColumnSpec, nullable: bool = False) -> ColumnSpec:
    """The column without what is done to values before they are stored; nullable if either says so."""
    return ColumnSpec(column.name, column.type, column.nullable or nullable, column.primary_key)


def storage_type(format: str, data_type: DataType) -> pa.DataType:
    """The Arrow type in which a file of this format holds the values (text formats hold text)."""
    import pyarrow as pa

    if format == "orc" and data_type.kind == "timestamp_tz":
        return pa.timestamp("us")  # UTC; Spark refuses ORC's own type for an instant
    return data_type.arrow()
