"""`Target`: one of several targets of a pipeline, with its own options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ematix_flow.api.option_checks import normalize_mode
from ematix_flow.api.tables import ManagedTable, table_spec
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.graph.connections import resolve
from ematix_flow.spec.connections import Connection, has_reference
from ematix_flow.spec.declared_fields import check_location
from ematix_flow.spec.file_options import check_file_options, check_file_values, check_folder_options
from ematix_flow.spec.location import SourceLocation, caller_location
from ematix_flow.spec.pipelines import (
    ConnectionRef,
    DeclaredMode,
    DeletePolicy,
    FileOptions,
    TargetSpec,
    require_connection_ref,
)
from ematix_flow.spec.tables import TableSpec

DeclaredTable = type[ManagedTable] | TableSpec


@dataclass(frozen=True)
class Target:
    """A connection and a destination in it: a declared table, or a prefix for files.

    Options left None are taken from the pipeline. When the connection itself is given, the file options are
    checked against its format at once.
    """

    connection: ConnectionRef | None = None
    table: DeclaredTable | str | tuple[str, str] | None = None  # a name, or (schema, name), for streams only
    mode: DeclaredMode | None = None
    topic: str | None = None
    queue: str | None = None
    partition_key_prefix: str | None = None
    prefix: str | None = None
    message_key_column: str | None = None
    headers_column: str | None = None
    partition_column: str | None = None
    partition_by: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    update_columns: Sequence[str] | None = None
    compare_columns: Sequence[str] | None = None
    event_timestamp_column: str | None = None
    handle_deletes: DeletePolicy | None = None
    column_map: Mapping[str, str] | None = None  # {declared column: source column}, on top of the pipeline's
    primary_key: Sequence[str] | None = None
    parquet_compression: str | None = None
    csv_delimiter: str | None = None
    csv_header: bool | None = None
    csv_quote: str | None = None
    csv_escape: str | None = None
    csv_null_value: str | None = None
    csv_read_options: Mapping[str, Any] | None = None
    json_read_options: Mapping[str, Any] | None = None
    where: SourceLocation | None = field(
        default=None, repr=False, compare=False
    )  # set when a file declares it

    def __post_init__(self) -> None:
        check_location(self.where)
        if self.mode is not None:
            normalize_mode(self.mode, None)
        check_connection_file_options(self.connection, self.file_options(), None)

    def file_options(self) -> FileOptions:
        return FileOptions(
            parquet_compression=self.parquet_compression,
            csv_delimiter=self.csv_delimiter,
            csv_header=self.csv_header,
            csv_quote=self.csv_quote,
            csv_escape=self.csv_escape,
            csv_null_value=self.csv_null_value,
            csv_read_options=read_mapping("csv_read_options", self.csv_read_options, self.where),
            json_read_options=read_mapping("json_read_options", self.json_read_options, self.where),
        )


def target(
    target_class: DeclaredTable,
    *,
    mode: DeclaredMode | None = None,
    target_connection: ConnectionRef | None = None,
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    event_timestamp_column: str | None = None,
    handle_deletes: DeletePolicy | None = None,
    column_map: Mapping[str, str] | None = None,
    partition_by: Sequence[str] | None = None,
) -> Target:
    """Declare one of the ``targets=`` of a pipeline: a declared table and its own options."""
    where = caller_location()
    try:
        table_spec(target_class)
        return Target(
            connection=target_connection,
            table=target_class,
            mode=mode,
            keys=keys,
            update_columns=update_columns,
            compare_columns=compare_columns,
            event_timestamp_column=event_timestamp_column,
            handle_deletes=handle_deletes,
            column_map=column_map,
            partition_by=partition_by,
        )
    except DeclarationError as error:
        raise error.with_location(where) from None


_BROKER_OPTIONS = (
    "topic",
    "queue",
    "partition_key_prefix",
    "message_key_column",
    "headers_column",
    "partition_column",
)


def check_connection_file_options(
    reference: ConnectionRef | None,
    options: FileOptions,
    where: SourceLocation | None,
    *,
    prefix: str | None = None,
    partition_by: Sequence[str] = (),
) -> None:
    """Check the file options against the connection as far as it is known now. Planning checks again."""
    if options == FileOptions() and prefix is None and not partition_by:
        return
    connection = known_connection(reference)
    if connection is not None:
        check_folder_options(connection.kind, prefix, partition_by, where)
    file_format = getattr(connection, "format", None)
    if connection is None or file_format == "" or has_reference(file_format):
        check_file_values(options, where)
    else:
        check_file_options(file_format, options, where)


def known_connection(reference: ConnectionRef | None) -> Connection | None:
    """The connection as defined now; None when it is declared later or elsewhere."""
    require_connection_ref(reference)
    if not isinstance(reference, str):
        return reference
    try:
        return resolve(reference)
    except FlowError:  # the run that uses it raises the error
        return None


def batch_table_spec(
    table: DeclaredTable | str | tuple[str, str] | None, prefix: str | None, where: SourceLocation | None
) -> TableSpec | None:
    """The declared table of a batch target; None for files with only a prefix."""
    if table is None:
        if prefix is None:
            raise DeclarationError(
                "a target needs table= (a declared table), or prefix= for files",
                where=where,
                next_step="declare one with @ematix.table or a ManagedTable class",
            )
        return None
    if isinstance(table, TableSpec):
        return table
    try:
        return table_spec(table)
    except DeclarationError as error:
        raise error.with_location(where) from None


def _table_in_folder(table: TableSpec | None, prefix: str | None) -> TableSpec | None:
    """With both, the table defines the columns and the prefix defines the folder."""
    return table if table is None or prefix is None else replace(table, schema=None, name=prefix)


def read_column_names(
    option: str, value: Sequence[str] | str | None, where: SourceLocation | None
) -> tuple[str, ...] | None:
    """The column names as a tuple. A plain string is a single name, not a sequence of letters."""
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise DeclarationError(f"{option}= takes column names, not {value!r}", where=where)
    out = tuple(value)
    for name in out:
        if not isinstance(name, str):
            raise DeclarationError(f"{option}= takes column names, not {name!r}", where=where)
    if option == "keys" and not out:
        raise DeclarationError(
            "keys= names no column", where=where, next_step="name the columns, or leave keys= out"
        )
    return out


def read_mapping(
    option: str, value: Mapping[str, Any] | None, where: SourceLocation | None
) -> tuple[tuple[str, Any], ...]:
    """The items of an option that takes a mapping."""
    if value is not None and not isinstance(value, Mapping):
        raise DeclarationError(f"{option}= takes names and values, not {value!r}", where=where)
    return tuple((value or {}).items())


def build_target(target: Target, defaults: TargetSpec, where: SourceLocation | None) -> TargetSpec:
    """The spec of a Target. Options that the target leaves out come from the pipeline."""
    for streaming in _BROKER_OPTIONS:
        if getattr(target, streaming) is not None:
            raise DeclarationError(
                f"{streaming}= is for streaming targets; a batch target has a table", where=where
            )
    partition_by = read_column_names("partition_by", target.partition_by, where)
    connection = defaults.connection if target.connection is None else target.connection
    check_connection_file_options(
        connection,
        target.file_options(),
        where,
        prefix=target.prefix,
        partition_by=partition_by or (),
    )
    if target.primary_key is not None:
        raise DeclarationError(
            "primary_key= is for a stream's table given by name only; a declared table has pk()", where=where
        )
    keys = read_column_names("keys", target.keys, where)
    update = read_column_names("update_columns", target.update_columns, where)
    compare = read_column_names("compare_columns", target.compare_columns, where)
    return TargetSpec(
        connection=connection,
        table=_table_in_folder(batch_table_spec(target.table, target.prefix, where), target.prefix),
        mode=defaults.mode if target.mode is None else normalize_mode(target.mode, where),
        prefix=target.prefix,
        keys=defaults.keys if keys is None else keys,
        update_columns=defaults.update_columns if update is None else update,
        compare_columns=defaults.compare_columns if compare is None else compare,
        event_timestamp_column=target.event_timestamp_column or defaults.event_timestamp_column,
        handle_deletes=target.handle_deletes or defaults.handle_deletes,
        ttl_seconds=defaults.ttl_seconds,
        partition_by=partition_by or (),
        max_shrink=defaults.max_shrink,
        allow_empty=defaults.allow_empty,
        column_map=read_mapping("column_map", target.column_map, where),
        files=target.file_options(),
    )
