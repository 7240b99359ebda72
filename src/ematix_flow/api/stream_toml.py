"""Reads a stream from a TOML file or text, and runs it (`run_pipeline`).

Owns the names of the keys, the fields of `StreamOptions` that they set, and the lines that errors point at.
The rules are those of the decorator, in `api.stream_options.build_stream`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.api.stream_cdc import read_cdc
from ematix_flow.api.stream_declaration import Lookup
from ematix_flow.api.stream_toml_endpoints import (
    read_connection,
    read_lookup,
    read_source,
    read_source_columns,
    read_target,
    warn_of_inline_secrets,
)
from ematix_flow.api.stream_toml_expectations import read_expectation_tables, read_quarantine
from ematix_flow.api.stream_toml_joins import read_join
from ematix_flow.api.stream_toml_windows import WINDOW_KEYS, read_window_options
from ematix_flow.api.streaming import stream_spec
from ematix_flow.config.toml_file import TomlFile, parse_toml, read_toml
from ematix_flow.config.toml_table import TomlTable
from ematix_flow.config.working_folder import working_folder
from ematix_flow.errors import ConfigError, FlowError, UsageError, did_you_mean
from ematix_flow.graph.module_loading import import_user_module
from ematix_flow.graph.registry import current_registry
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.location import SourceLocation, TableLocation
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.udfs import UdfHandle, load_function
from ematix_flow.streams.run_options import StreamRunOptions

if TYPE_CHECKING:
    from ematix_flow.engine.spark.settings import EngineSettings
    from ematix_flow.streams.running_stream import StreamResult

# options that are passed on unchanged
_PLAIN_OPTIONS = (
    "mode",
    "keys",
    "update_columns",
    "compare_columns",
    "event_timestamp_column",
    "transform_sql",
    "transform_on_error",
    "dialect",
    "dlq_store",
    "dlq_max_attempts",
    "idle_pause_ms",
    "max_rows_per_batch",
    "delivery",
    "guarantee",
    "continue_on_target_failure",
    "on_drift",
    "fail_on_data_loss",
    "description",
    "on_fail",
    "on_quality_failure",
    "alert_on_quality_warn",
)
# options whose ${…} are replaced
_EXPANDED_OPTIONS = ("dead_letter_topic", "dead_letter_table", "checkpoint")
# keys at the top of the file, and their names inside [source] or [target]
_SOURCE_OPTIONS = {
    "source_query": "query",
    "source_options": "options",
    **{name: name for name in ("starting", "csv_read_options", "json_read_options")},
}
_TARGET_OPTIONS = {
    f"target_{name}": name
    for name in (
        "table",
        "topic",
        "queue",
        "partition_key_prefix",
        "prefix",
        "message_key_column",
        "headers_column",
        "partition_column",
        "partition_by",
        "primary_key",
    )
}
_OTHER_KEYS = (
    "pipeline_name",
    "name",
    "source",
    "sources",
    "source_columns",
    "target",
    "targets",
    "target_connection",
    "transform",
    "lookups",
    "join",
    "cdc",
    "expectations",
    "quarantine",
    "dead_letter_connection",
)
_FUNCTION_KEYS = ("udfs", "aggregate_udfs")
KEYS = (
    *(*_OTHER_KEYS, *_PLAIN_OPTIONS, *_EXPANDED_OPTIONS),
    *(*_SOURCE_OPTIONS, *_TARGET_OPTIONS, *_FUNCTION_KEYS, *WINDOW_KEYS),
)
_TRANSFORM_KEYS = {"sql": "transform_sql", "on_error": "transform_on_error", "dialect": "dialect"}
_ENGINE_KEYS = ("engine", "peers", "tls")


def stream_from_toml(path: Path, *, name: str | None = None) -> StreamSpec:
    """The stream that a file declares. ``name`` replaces its own name. Errors point at the line."""
    file = read_toml(path)
    if not file.exists:
        here = sorted(found.name for found in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = did_you_mean(path.name, here) if here else ""
        raise ConfigError(f"there is no file {path}.{hint}".rstrip("."))
    return _build_stream(file, name)


def stream_from_text(text: str, *, name: str | None = None) -> StreamSpec:
    """The stream that a TOML text declares. Errors call the text ``<config_str>``."""
    return _build_stream(parse_toml(text, Path("<config_str>")), name)


def run_pipeline(
    *,
    config: str | Path | None = None,
    config_str: str | None = None,
    metrics_port: int | None = None,
    pipeline_name: str | None = None,
    run_log_url: str | None = None,
    once: bool = False,
    restart_on_error: bool = False,
    initial_backoff_ms: int = 1_000,
    max_backoff_ms: int = 60_000,
    max_restarts: int | None = None,
    reset_backoff_after_secs: float = 60,
    engine: str | EngineSettings | None = None,
) -> StreamResult:
    """Run the stream that a TOML file or text declares, until it is stopped."""
    from ematix_flow.streams.running_stream import run_stream

    if (config is None) == (config_str is None):
        raise UsageError("run_pipeline takes config= (a file) or config_str= (a text), exactly one of them")
    if config is not None:
        spec = stream_from_toml(Path(config), name=pipeline_name)
    else:
        assert config_str is not None
        spec = stream_from_text(config_str, name=pipeline_name)
    options = StreamRunOptions(
        once=once,
        metrics_port=metrics_port,
        restart_on_error=restart_on_error,
        initial_backoff_ms=initial_backoff_ms,
        max_backoff_ms=max_backoff_ms,
        max_restarts=max_restarts,
        reset_backoff_after_secs=reset_backoff_after_secs,
        run_log=run_log_url,
        engine=engine,
    )
    return run_stream(spec, current_registry(), options)


def _build_stream(file: TomlFile, name: str | None) -> StreamSpec:
    top = TomlTable.of_file(file)
    top.refuse_unknown(KEYS)
    named = [key for key in ("pipeline_name", "name") if key in top.values]
    if len(named) == 2:
        raise top.error("pipeline_name and name mean the same: give one of them", "name")
    own = name or (top.text(named[0]) if named else None)
    if not own:
        raise top.error("it needs a name", *named, next_step='write  pipeline_name = "…"  at the top')
    where = top.where(*named)
    places = _source_and_target_tables(top)
    places["source"] = _with_top_level_options(top, places["source"], _SOURCE_OPTIONS, "sources")
    places["target"] = _with_top_level_options(top, places["target"], _TARGET_OPTIONS, "targets")
    options: dict[str, Any] = {key: top.values[key] for key in _PLAIN_OPTIONS if key in top.values}
    options.update((key, top.text(key)) for key in _EXPANDED_OPTIONS if key in top.values)
    options.update(_transform_options(top, options))
    options.update(read_window_options(top, top.table("transform")))
    options["join"] = read_join(top, top.table("transform"))
    options["cdc"] = read_cdc(top)
    options["expectations"] = read_expectation_tables(top)
    options["quarantine"] = read_quarantine(top)
    options["sources"] = [
        read_source(table, _inline_connection_name("source", n)) for n, table in enumerate(places["source"])
    ]
    options["targets"] = [
        read_target(table, _inline_connection_name("target", n)) for n, table in enumerate(places["target"])
    ]
    letters = top.values.get("dead_letter_connection")
    if isinstance(letters, str):
        options["dead_letter_connection"] = top.text("dead_letter_connection")
    elif letters is not None:
        table = top.table("dead_letter_connection")
        assert table is not None
        options["dead_letter_connection"] = read_connection(table, "dead_letters")
    if "source_columns" in top.values:
        options["source_columns"] = read_source_columns(top, "source_columns")
    try:
        spec = stream_spec(where, name=own, **options)
    except FlowError as error:
        error.where = _error_location(error, top, [table for tables in places.values() for table in tables])
        raise
    warn_of_inline_secrets(_connection_tables(top, places))
    return replace(spec, where=TableLocation(where.file, where.line, dict(_inline_connections(spec))))


def _inline_connections(spec: StreamSpec) -> Iterator[tuple[str, SourceLocation]]:
    """The connections that the file itself defines, by name, with their locations."""
    references = [
        *(source.connection for source in spec.sources),
        *(target.connection for target in spec.targets),
        *(lookup.connection for lookup in spec.lookups),
        spec.dead_letters.connection,
    ]
    for reference in references:
        if isinstance(reference, Connection) and reference.declared_at is not None:
            yield reference.name, reference.declared_at


def _source_and_target_tables(top: TomlTable) -> dict[str, list[TomlTable]]:
    """The tables of the sources and of the targets: each in one form, and at least one of each."""
    found: dict[str, list[TomlTable]] = {}
    for one, many, short in (("source", "sources", "source"), ("target", "targets", "target_connection")):
        given = [key for key in dict.fromkeys((one, many, short)) if key in top.values]
        if len(given) > 1:
            raise top.error(
                f"give {_toml_heading(given[0])} or {_toml_heading(given[1])}, not both", given[1]
            )
        if not given:
            raise top.error(f"there is neither [{one}] nor [[{many}]]")
        key = given[0]
        if key == many:
            tables = top.tables(key) or []
            if not tables:
                raise top.error(f"[[{many}]] is empty", key)
            found[one] = tables
        elif isinstance(top.values[key], str):
            found[one] = [TomlTable(top.file, (key,), {"connection": top.values[key]})]
        else:
            table = top.table(key)
            assert table is not None
            found[one] = [table]
    return found


def _toml_heading(key: str) -> str:
    return f"[[{key}]]" if key.endswith("s") else key if "_" in key else f"[{key}]"


def _inline_connection_name(place: str, number: int) -> str:
    """The name of an inline connection. The first has no number: adding another keeps its name."""
    return place if number == 0 else f"{place}_{number + 1}"


def _with_top_level_options(
    top: TomlTable, tables: list[TomlTable], names: dict[str, str], many: str
) -> list[TomlTable]:
    """The tables; a single one also gets the options at the top of the file."""
    given = {key: own for key, own in names.items() if key in top.values}
    if not given:
        return tables
    first = next(iter(given))
    if many in top.values:
        raise top.error(
            f"with [[{many}]], write {names[first]} in each of them instead of {first} here", first
        )
    (table,) = tables
    for key, own in given.items():
        if own in table.values:
            raise table.error(f"{own} and {key} mean the same: give one of them", own)
    values = {**table.values, **{own: top.values[key] for key, own in given.items()}}
    return [TomlTable(table.file, table.path, values, {own: (key,) for key, own in given.items()})]


def _transform_options(top: TomlTable, options: dict[str, Any]) -> dict[str, Any]:
    table = top.table("transform")
    found: dict[str, Any] = dict(_read_functions(top))
    lookups = top.table("lookups")
    if table is not None:
        for key in _ENGINE_KEYS:
            if key in table.values:
                raise table.error(
                    f"{key} has no effect: Spark runs the SQL",
                    key,
                    next_step="remove it; --engine or [engine] in .ematix-flow.toml chooses where Spark runs",
                )
        table.refuse_unknown((*_TRANSFORM_KEYS, *_FUNCTION_KEYS, "lookups", "window", "join", "cdc"))
        for key, functions in _read_functions(table):
            if key in found:
                raise table.error(f"{key} is given twice: keep it here or at the top of the file", key)
            found[key] = functions
        for key, option in _TRANSFORM_KEYS.items():
            if key in table.values:
                if option in options:
                    raise table.error(f"{key} and {option} mean the same: give one of them", key)
                found[option] = table.values[key]
        within = table.table("lookups")
        if within is not None and lookups is not None:
            raise top.error(
                "lookups are given twice: keep [transform.lookups.<name>] or [lookups.<name>]", "lookups"
            )
        lookups = within or lookups
    if lookups is not None:
        found["lookups"] = {name: _read_lookup(lookups, name) for name in lookups.values}
    return found


def _read_functions(table: TomlTable) -> Iterator[tuple[str, list[UdfHandle]]]:
    """The functions that ``udfs`` and ``aggregate_udfs`` of this table refer to."""
    for key in _FUNCTION_KEYS:
        if key in table.values:
            given = table.values[key]
            if not isinstance(given, list):
                raise table.error(f'{key} is a list, as in ["my_functions:vwap"], not {given!r}', key)
            for reference in given:
                module = str(reference).partition(":")[0]
                if all(part.isidentifier() for part in module.split(".")):
                    import_user_module(module, working_folder(), table.file.path.resolve().parent)
            yield key, [load_function(each, table.where(key)) for each in given]


def _read_lookup(lookups: TomlTable, name: str) -> Lookup:
    table = lookups.table(name)
    assert table is not None
    return read_lookup(table, name)


def _error_location(error: FlowError, top: TomlTable, places: list[TomlTable]) -> SourceLocation | None:
    """The line of the first option that the error names. An error names options as the decorator does.

    In ``needs target_table=, not target_topic=`` the option after ``not`` is the one in the file.
    """
    tables = [table for table in places if error.where == table.where()]
    transform = top.table("transform")
    wanted, _, there = error.what.partition(", not ")
    for option in re.findall(r"(\w+)=", f"{there} {wanted}"):
        short = option.removeprefix("target_").removeprefix("source_")
        candidates = [(table, key) for table in tables for key in (option, short)]
        candidates.append((top, option))
        if transform is not None:
            candidates += [(transform, key) for key, full in _TRANSFORM_KEYS.items() if full == option]
            candidates.append((transform, option))
        for table, key in candidates:
            if key in table.values:
                return table.where(key)
    return error.where


def _connection_tables(top: TomlTable, places: dict[str, list[TomlTable]]) -> Iterator[TomlTable]:
    """Every table that may contain the fields of a connection."""
    transform = top.table("transform")
    lookups = (transform and transform.table("lookups")) or top.table("lookups")
    within = [lookups.table(name) for name in lookups.values] if lookups else []
    letters = top.values.get("dead_letter_connection")
    others = [top.table("dead_letter_connection")] if isinstance(letters, dict) else []
    for table in (*places["source"], *places["target"], *within, *others):
        if table is not None:
            yield from _with_nested_tables(table)


def _with_nested_tables(table: TomlTable) -> Iterator[TomlTable]:
    yield table
    for key in ("connection", "schema_registry"):
        if isinstance(table.values.get(key), dict):
            inner = table.table(key)
            assert inner is not None
            yield from _with_nested_tables(inner)
