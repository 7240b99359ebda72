"""Writes a stream as TOML text that `stream_from_text` can read. Secrets stay references or are masked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ematix_flow.api.column_text import column_to_text
from ematix_flow.api.stream_cdc import cdc_to_toml
from ematix_flow.api.stream_toml_endpoints import LOOKUP_KEYS, SOURCE_KEYS, target_keys
from ematix_flow.api.stream_toml_expectations import expectations_to_toml
from ematix_flow.api.stream_toml_joins import join_to_toml
from ematix_flow.api.stream_toml_windows import window_tables
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.pipelines import ConnectionRef, FileOptions
from ematix_flow.spec.streams import (
    DeadLetterSpec,
    LookupSpec,
    StreamSourceSpec,
    StreamSpec,
    StreamTargetSpec,
)
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.udfs import PythonAggregateUdfHandle, PythonScalarUdfHandle, function_reference

_OPTIONS = (
    "description",
    "idle_pause_ms",
    "max_rows_per_batch",
    "delivery",
    "on_drift",
    "continue_on_target_failure",
    "fail_on_data_loss",
    "checkpoint",
)
_TARGET_OPTIONS = (
    "topic",
    "queue",
    "prefix",
    "partition_key_prefix",
    "mode",
    "keys",
    "update_columns",
    "compare_columns",
    "event_timestamp_column",
    "message_key_column",
    "headers_column",
    "partition_column",
    "partition_by",
)
_DEFAULTS = StreamSpec("", (), ())
_TARGET_DEFAULTS = StreamTargetSpec("")


def stream_to_toml(spec: StreamSpec) -> str:
    """The stream as TOML text. Raises DeclarationError for normalisers, which TOML cannot express."""
    import tomlkit

    document: dict[str, Any] = {"pipeline_name": spec.name}
    if len(spec.sources) == 1:
        document["source_query"] = spec.sources[0].query
    document.update(_non_default_values(spec, _DEFAULTS, _OPTIONS))
    document.update(_dead_letter_keys(spec.dead_letters))
    if spec.columns is not None:
        document["source_columns"] = _column_types(spec.columns)
    transform: dict[str, Any] = {}
    if spec.transform_sql is not None:
        transform["sql"] = _multiline_text(spec.transform_sql)
    if spec.on_error != "fail" or spec.dead_letters != DeadLetterSpec():
        transform["on_error"] = spec.on_error
    if spec.dialect is not None:
        transform["dialect"] = spec.dialect
    for key, kind in (("udfs", PythonScalarUdfHandle), ("aggregate_udfs", PythonAggregateUdfHandle)):
        functions = [function_reference(each) for each in spec.functions if isinstance(each, kind)]
        if functions:
            transform[key] = functions
    if spec.lookups:
        transform["lookups"] = {lookup.name: _lookup_table(lookup) for lookup in spec.lookups}
    sources = [
        _source_table(source, n, alone=len(spec.sources) == 1) for n, source in enumerate(spec.sources)
    ]
    targets = [_target_table(target, n) for n, target in enumerate(spec.targets)]
    if transform:
        document["transform"] = transform
    document.update(window_tables(spec))
    if spec.join is not None:
        document["join"] = join_to_toml(spec.join)
    if spec.expectations:
        document.update(expectations_to_toml(spec.expectations))
    if spec.cdc is not None:
        document["cdc"] = cdc_to_toml(spec.cdc)
    for one, many, tables in (("source", "sources", sources), ("target", "targets", targets)):
        document.update({one: tables[0]} if len(tables) == 1 else {many: tables})
    return tomlkit.dumps(document)


def _source_table(source: StreamSourceSpec, number: int, *, alone: bool) -> dict[str, Any]:
    table = _connection_keys(source.connection, "source", number, SOURCE_KEYS)
    if not alone:
        table["query"] = source.query
    if source.starting is not None:
        table["starting"] = source.starting
    if source.options:
        table["options"] = dict(source.options)
    if source.columns is not None:
        table["columns"] = _column_types(source.columns)
    return {**table, **_file_option_keys(source.files)}


def _target_table(target: StreamTargetSpec, number: int) -> dict[str, Any]:
    kind = None if isinstance(target.connection, str) else target.connection.kind
    table = _connection_keys(target.connection, "target", number, target_keys(kind))
    table.update(_non_default_values(target, _TARGET_DEFAULTS, _TARGET_OPTIONS))
    table.update(_file_option_keys(target.files))
    if target.table is not None:
        table["table"] = _declared_table(target.table)
    elif target.table_name is not None:
        schema, name = target.table_name
        table["table"] = {"schema": schema, "name": name} if schema else {"name": name}
    return table


def _lookup_table(lookup: LookupSpec) -> dict[str, Any]:
    table = _connection_keys(lookup.connection, lookup.name, 0, LOOKUP_KEYS)
    if lookup.query is not None:
        table["query"] = _multiline_text(lookup.query)
    if lookup.table is not None:
        table["table"] = lookup.table
    if lookup.refresh_interval_ms is not None:
        table["refresh_interval_ms"] = lookup.refresh_interval_ms
    return table


def _dead_letter_keys(letters: DeadLetterSpec) -> dict[str, Any]:
    names = {
        "dlq_store": "store",
        "dead_letter_topic": "topic",
        "dead_letter_table": "table",
        "dlq_max_attempts": "max_attempts",
    }
    default = DeadLetterSpec()
    found = {key: getattr(letters, own) for key, own in names.items()}
    found = {key: value for key, value in found.items() if value != getattr(default, names[key])}
    if letters.connection is not None:
        table = _connection_keys(letters.connection, "dead_letters", 0, ())
        found["dead_letter_connection"] = table.get("connection", table)
    return found


def _connection_keys(reference: ConnectionRef, place: str, number: int, own: Iterable[str]) -> dict[str, Any]:
    """The keys of a connection, in a nested ``connection`` table if one clashes with the ``own`` keys."""
    if isinstance(reference, str):
        return {"connection": reference}
    fields = reference.to_json()
    if fields["name"] == (place if number == 0 else f"{place}_{number + 1}"):
        del fields["name"]
    registry = fields.get("schema_registry")
    if isinstance(registry, dict) and registry.get("name") == f"{reference.name}_schema_registry":
        del registry["name"]
    return {"connection": fields} if set(own) & set(fields) else fields


def _declared_table(table: TableSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"schema": table.schema} if table.schema else {}
    found["name"] = table.name
    for key in ("primary_key", "merge_keys"):
        if getattr(table, key):
            found[key] = list(getattr(table, key))
    for key in ("unique", "natural_keys"):
        if getattr(table, key):
            found[key] = [list(group) for group in getattr(table, key)]
    if table.doc:
        found["doc"] = table.doc
    return {**found, "columns": _column_types(table)}


def _column_types(table: TableSpec) -> dict[str, str]:
    for column in table.columns:
        if column.normalizers:
            raise DeclarationError(
                f"column {column.name!r} of {table.label} has normalisers, which TOML cannot express",
                where=table.where,
                next_step="keep this stream in Python, or change the values in transform_sql",
            )
    return {column.name: column_to_text(column) for column in table.columns}


def _file_option_keys(options: FileOptions) -> dict[str, Any]:
    found = {key: value for key, value in options.to_json().items() if value not in (None, [])}
    return {key: dict(value) if isinstance(value, list) else value for key, value in found.items()}


def _non_default_values(value: object, default: object, names: Iterable[str]) -> dict[str, Any]:
    found = {name: getattr(value, name) for name in names if getattr(value, name) != getattr(default, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _multiline_text(text: str) -> Any:
    """A multi-line TOML string, unless the text contains a carriage return, which it would lose."""
    import tomlkit

    return tomlkit.string(text, multiline=True) if "\n" in text and "\r" not in text else text
