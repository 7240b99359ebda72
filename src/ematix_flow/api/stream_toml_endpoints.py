"""Reads ``[source]``, ``[target]`` and the lookups of a stream's TOML, each with its connection.

Each table holds its own options next to the fields of an inline connection, or next to the name of a
connection that is defined elsewhere. `stream_options` checks which options go together.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ematix_flow.api.column_text import columns_from_text
from ematix_flow.api.stream_declaration import Lookup, Source
from ematix_flow.api.target import Target, read_column_names
from ematix_flow.config.connection_resolution import with_kind_from_url
from ematix_flow.config.interpolate import remember_secrets
from ematix_flow.config.toml_table import TomlTable
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.spec.connections import (
    KINDS,
    class_of_mapping,
    connection_from_mapping,
    has_reference,
    split_url,
)
from ematix_flow.spec.connections.references import holds_secret
from ematix_flow.spec.pipelines import ConnectionRef
from ematix_flow.spec.tables import TableSpec
from ematix_probe.redaction import MASK

SOURCE_KEYS = ("query", "starting", "options", "csv_read_options", "json_read_options", "columns")
DESTINATION_KEYS = ("topic", "queue", "prefix", "partition_key_prefix")  # their ${…} are replaced
TARGET_KEYS = (
    *DESTINATION_KEYS,
    "table",
    "mode",
    "keys",
    "update_columns",
    "compare_columns",
    "event_timestamp_column",
    "handle_deletes",
    "primary_key",
    "message_key_column",
    "headers_column",
    "partition_column",
    "partition_by",
    "parquet_compression",
    "csv_delimiter",
    "csv_header",
    "csv_quote",
    "csv_escape",
    "csv_null_value",
    "csv_read_options",
    "json_read_options",
)
LOOKUP_KEYS = ("query", "table", "schema", "refresh_interval_ms")
TABLE_KEYS = ("schema", "name", "primary_key", "columns", "unique", "natural_keys", "merge_keys", "doc")
_KINDS_WITH_PREFIX_FIELD = ("delta_s3",)  # for these kinds, prefix is a field of the connection
_warning_registry: dict[Any, Any] = {}  # the warnings that were already shown


def read_source(table: TomlTable, name: str) -> Source:
    """The source of a TOML table. ``name`` is the name of an inline connection without its own."""
    starting = table.values.get("starting")
    return Source(
        connection=read_connection(table, name, SOURCE_KEYS),
        query=table.text("query") or "",
        starting=table.text("starting") if isinstance(starting, str) else starting,
        csv_read_options=table.values.get("csv_read_options"),
        json_read_options=table.values.get("json_read_options"),
        options=table.values.get("options", {}),
        columns=read_source_columns(table, "columns"),
        where=table.where(),
    )


def read_source_columns(table: TomlTable, key: str) -> TableSpec | None:
    """The columns of payloads that a nested table declares."""
    columns = table.table(key)
    if columns is None:
        return None
    try:
        return TableSpec(None, "source", columns_from_text(columns.values), where=columns.where())
    except DeclarationError as error:
        raise error.with_location(columns.where_named(error.what)) from None


def target_keys(kind: object) -> tuple[str, ...]:
    """The keys of a target that are not fields of its connection."""
    return tuple(key for key in TARGET_KEYS if key != "prefix" or kind not in _KINDS_WITH_PREFIX_FIELD)


def read_target(table: TomlTable, name: str) -> Target:
    own = target_keys(table.values.get("kind"))
    given = {key: table.values[key] for key in own if key in table.values}
    given.update((key, table.text(key)) for key in DESTINATION_KEYS if key in given)
    connection = read_connection(table, name, own)
    if "table" in given:
        given["table"], key = _read_table(table)
        if key:
            if "primary_key" in table.values:
                raise table.error("primary_key is given twice, here and in its table", "primary_key")
            given["primary_key"] = key
    try:
        return Target(connection=connection, where=table.where(), **given)
    except FlowError as error:
        raise error.with_location(table.where_named(error.what)) from None


def read_lookup(table: TomlTable, name: str) -> Lookup:
    connection = read_connection(table, name, LOOKUP_KEYS)
    return Lookup(
        connection,
        query=table.values.get("query"),
        table=table.text("table"),
        schema=table.text("schema") or "",
        refresh_interval_ms=table.values.get("refresh_interval_ms"),
        where=table.where(),
    )


def read_connection(table: TomlTable, name: str, own: Iterable[str] = ()) -> ConnectionRef:
    """The connection of a table: its name, or its fields next to the ``own`` keys or in ``connection``."""
    own = tuple(own)
    fields = {key: value for key, value in table.values.items() if key not in own}
    if "connection" in fields:
        for key in fields:
            if key != "connection":
                raise _field_next_to_name_error(table, key, own)
        if isinstance(fields["connection"], Mapping):
            within = table.table("connection")
            assert within is not None
            return read_connection(within, name)
        named = table.text("connection")
        if not named:
            raise table.error("connection takes the name of a connection", "connection")
        return named
    if not fields:
        raise table.error('it needs  connection = "…",  or  kind = "…"  and the fields of that kind')
    named = str(fields.pop("name", name))
    try:
        fields = {**with_kind_from_url(named, fields, os.environ)}
        kind = class_of_mapping(named, fields)
    except FlowError as error:
        raise error.with_location(table.where_named(error.what)) from None
    table.refuse_unknown({*own, *kind.field_names(), "kind", "dsn"})
    if isinstance(fields.get("schema_registry"), Mapping):
        registry = table.table("schema_registry")
        assert registry is not None
        fields["schema_registry"] = read_connection(registry, f"{named}_schema_registry")
    try:
        connection = connection_from_mapping(named, fields, table.where())
    except DeclarationError as error:
        error.where = table.where_named(error.what)
        raise
    remember_secrets(connection)
    return connection.with_location(table.location())


def warn_of_inline_secrets(tables: Iterable[TomlTable]) -> None:
    """Warn once, at the first line, when a file holds passwords in clear text."""
    found = [(table, key) for table in tables for key in _inline_secrets(table.values)]
    if not found:
        return
    where = found[0][0].where(found[0][1])
    listed = ", ".join(f"{table.label} {key}" for table, key in found)
    warnings.warn_explicit(
        f"{found[0][0].file.path.name} holds secrets in clear text: {listed}; write ${{VARIABLE}} instead",
        UserWarning,
        where.file,
        where.line,
        registry=_warning_registry,
    )


def _inline_secrets(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key in TARGET_KEYS or not isinstance(value, str) or has_reference(value) or value in ("", MASK):
            continue
        if holds_secret(key) or ("://" in value and split_url(value).password not in (None, "", MASK)):
            yield key


def _read_table(target: TomlTable) -> tuple[Any, tuple[str, ...]]:
    """The name of a table with its primary key, or the declared table when there are ``columns``."""
    given = target.values["table"]
    if isinstance(given, str):
        return target.text("table"), ()
    if isinstance(given, list):
        return given, ()
    table = target.table("table")
    assert table is not None
    table.refuse_unknown(TABLE_KEYS)
    schema, name = table.text("schema"), table.text("name")
    if not name:
        raise table.error("it needs a name", next_step='write  name = "…"')
    key = read_column_names("primary_key", table.values.get("primary_key"), table.where("primary_key")) or ()
    columns = table.table("columns")
    if columns is not None:
        return _read_declared_table(table, columns, schema, name, key), ()
    for only in ("unique", "natural_keys", "merge_keys", "doc"):
        if only in table.values:
            raise table.error(f"{only} needs a table with declared columns", only)
    return (schema or "", name), key


def _read_declared_table(
    table: TomlTable, columns: TomlTable, schema: str | None, name: str, key: tuple[str, ...]
) -> TableSpec:
    def groups(option: str) -> tuple[tuple[str, ...], ...]:
        listed = table.values.get(option, [])
        if not isinstance(listed, list) or not all(isinstance(group, list) for group in listed):
            raise table.error(f'{option} takes groups of columns, as in [["a", "b"]]', option)
        return tuple(read_column_names(option, group, table.where(option)) or () for group in listed)

    try:
        return TableSpec(
            schema=schema or None,
            name=name,
            columns=columns_from_text(columns.values, key),
            unique=groups("unique"),
            natural_keys=groups("natural_keys"),
            merge_keys=read_column_names(
                "merge_keys", table.values.get("merge_keys"), table.where("merge_keys")
            )
            or (),
            doc=table.text("doc"),
            where=table.where(),
        )
    except DeclarationError as error:
        about = table if error.what.startswith("primary_key") else columns
        raise error.with_location(about.where_named(error.what)) from None


def _field_next_to_name_error(table: TomlTable, key: str, own: tuple[str, ...]) -> DeclarationError:
    fields = {field for kind in KINDS.values() for field in kind.field_names()} | {"kind", "dsn"}
    if key not in fields:
        try:
            table.refuse_unknown({*own, "connection"})
        except DeclarationError as error:
            return error
    return table.error(f"connection already names a connection, so {key} does not belong here", key)
