"""The layout of a table's files: format, columns in order, partitions and CSV dialect.

The layout is part of the table's state, and is pickled into the tasks that write.
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
FILE_BYTES = 256 * 1024 * 1024  # a file of this size is closed, and a new one is opened


@dataclass(frozen=True)
class CsvDialect:
    """How CSV cells are separated and quoted. A null is ``null`` without quotes; an equal text is quoted."""

    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    escape: str = '"'
    null: str = ""

    @classmethod
    def from_options(cls, options: FileOptions) -> CsvDialect:
        """The read options of the folder apply to writing too, unless write options are given."""
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
        """The null mark as seen by readers that also remove the escape character outside quotes."""
        return self.null if self.escape == self.quote else self.null.replace(self.escape, "")

    def __str__(self) -> str:
        header = "a header" if self.header else "no header"
        return (
            f"delimiter {self.delimiter!r}, {header}, quote {self.quote!r}, escape {self.escape!r}, "
            f"null {self.null!r}"
        )


@dataclass(frozen=True)
class FileLayout:
    """The layout of one table. ``columns`` are all columns, in the order of the files."""

    format: str
    columns: tuple[ColumnSpec, ...]
    partition_by: tuple[str, ...] = ()
    csv: CsvDialect = CsvDialect()
    compression: str = DEFAULT_COMPRESSION

    @property
    def stored_columns(self) -> tuple[ColumnSpec, ...]:
        """The columns inside a file. Partition columns are only in the folder's name."""
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
    """Refuse column names that readers of the format cannot read: ORC readers in Java end a name at a
    backtick."""
    for name in table.column_names:
        if format == "orc" and "`" in name:
            raise NameRefused(
                f"the name {name!r} in {table.label} contains a backtick, where ORC readers end a name",
                where=table.where,
                state="nothing was touched",
                next_step="choose another name, or another file format",
            )


def merge_columns(there: Sequence[ColumnSpec], declared: Sequence[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    """The table's columns after a load: existing columns keep their order, new ones follow.

    A column that the load does not have, or that older rows do not have, becomes nullable.
    """
    wanted = {c.name: c for c in declared}
    kept = [
        storage_column(wanted[c.name], c.nullable) if c.name in wanted else storage_column(c, True)
        for c in there
    ]
    names = {c.name for c in there}
    return (*kept, *(storage_column(c, bool(there)) for c in declared if c.name not in names))


def storage_column(column: ColumnSpec, nullable: bool = False) -> ColumnSpec:
    """The column as it is stored, without load-time transformations; nullable if it or the argument is."""
    return ColumnSpec(column.name, column.type, column.nullable or nullable, column.primary_key)


def storage_type(format: str, data_type: DataType) -> pa.DataType:
    """The Arrow type of the values in a file of this format (text formats hold text)."""
    import pyarrow as pa

    if format == "orc" and data_type.kind == "timestamp_tz":
        return pa.timestamp("us")  # UTC; Spark refuses ORC's own type for an instant
    return data_type.arrow()
