"""A stream declared in TOML, by a file or a text: which key means which option of `stream_spec`.

Owns the names of the keys and the line that an error points at. The rules are those of the decorator:
everything ends in `api.stream_options.build_stream`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ematix_flow.api.column_text import columns_from_text
from ematix_flow.api.stream_options import Lookup
from ematix_flow.api.stream_toml_places import (
    connection_from,
    lookup_from,
    source_from,
    target_from,
    warn_of_inline_secrets,
)
from ematix_flow.api.streaming import LATER, not_yet, stream_spec
from ematix_flow.config.toml_file import TomlFile, parse_toml, read_toml
from ematix_flow.config.toml_table import TomlTable
from ematix_flow.errors import ConfigError, DeclarationError, FlowError, did_you_mean
from ematix_flow.spec.connections import Connection
from ematix_flow.spec.location import SourceLocation, TableLocation
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import TableSpec

# options that are handed on as they stand
_PLAIN = (
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
)
# options whose ${…} are replaced
_TEXTS = ("dead_letter_topic", "dead_letter_table", "checkpoint")
# what may also stand in [source] or in [target], and its name there
_OF_SOURCE = {
    "source_query": "query",
    "source_options": "options",
    **{name: name for name in ("starting", "csv_read_options", "json_read_options")},
}
_OF_TARGET = {
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
_OTHERS = (
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
    "dead_letter_connection",
)
KEYS = (*_OTHERS, *_PLAIN, *_TEXTS, *_OF_SOURCE, *_OF_TARGET)
_TRANSFORM = {"sql": "transform_sql", "on_error": "transform_on_error", "dialect": "dialect"}
_ENGINE = ("engine", "peers", "tls")


def stream_from_toml(path: Path, *, name: str | None = None) -> StreamSpec:
    """The stream that a file declares; ``name`` replaces its own. Errors point at the line."""
    file = read_toml(path)
    if not file.exists:
        here = sorted(found.name for found in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = did_you_mean(path.name, here) if here else ""
        raise ConfigError(f"there is no file {path}.{hint}".rstrip("."))
    return _stream(file, name)


def stream_from_text(text: str, *, name: str | None = None) -> StreamSpec:
    """The stream that a TOML text declares; errors call it ``<config_str>``."""
    return _stream(parse_toml(text, Path("<config_str>")), name)


def _stream(file: TomlFile, name: str | None) -> StreamSpec:
    top = TomlTable.whole(file)
    for later in LATER:
        if later in top.values:
            raise not_yet(f"[{later}]", top.where(later))
    top.refuse_unknown(KEYS)
    named = [key for key in ("pipeline_name", "name") if key in top.values]
    if len(named) == 2:
        raise top.wrong("pipeline_name and name say the same thing: give one", "name")
    own = name or (top.text(named[0]) if named else None)
    if not own:
        raise top.wrong("it needs a name", *named, next_step='write  pipeline_name = "…"  at the top')
    where = top.where(*named)
    places = _places(top)
    places["source"] = _with_options_of_the_file(top, places["source"], _OF_SOURCE, "sources")
    places["target"] = _with_options_of_the_file(top, places["target"], _OF_TARGET, "targets")
    options: dict[str, Any] = {key: top.values[key] for key in _PLAIN if key in top.values}
    options.update((key, top.text(key)) for key in _TEXTS if key in top.values)
    options.update(_transform(top, options))
    options["sources"] = [source_from(table, _name("source", n)) for n, table in enumerate(places["source"])]
    options["targets"] = [target_from(table, _name("target", n)) for n, table in enumerate(places["target"])]
    letters = top.values.get("dead_letter_connection")
    if isinstance(letters, str):
        options["dead_letter_connection"] = top.text("dead_letter_connection")
    elif letters is not None:
        table = top.table("dead_letter_connection")
        assert table is not None
        options["dead_letter_connection"] = connection_from(table, "dead_letters")
    if "source_columns" in top.values:
        options["source_columns"] = _columns(top)
    try:
        spec = stream_spec(where, name=own, **options)
    except FlowError as error:
        error.where = _line_of(error, top, [table for tables in places.values() for table in tables])
        raise
    warn_of_inline_secrets(_inline(top, places))
    return replace(spec, where=TableLocation(where.file, where.line, dict(_connections_within(spec))))


def _connections_within(spec: StreamSpec) -> Iterator[tuple[str, SourceLocation]]:
    """The connections that the file itself holds, by name, and where."""
    references = [
        *(source.connection for source in spec.sources),
        *(target.connection for target in spec.targets),
        *(lookup.connection for lookup in spec.lookups),
        spec.dead_letters.connection,
    ]
    for reference in references:
        if isinstance(reference, Connection) and reference.declared_at is not None:
            yield reference.name, reference.declared_at


def _places(top: TomlTable) -> dict[str, list[TomlTable]]:
    """The tables of sources and of targets; one of each form, and at least one."""
    found: dict[str, list[TomlTable]] = {}
    for one, many, short in (("source", "sources", "source"), ("target", "targets", "target_connection")):
        given = [key for key in dict.fromkeys((one, many, short)) if key in top.values]
        if len(given) > 1:
            raise top.wrong(f"give {_shown(given[0])} or {_shown(given[1])}, not both", given[1])
        if not given:
            raise top.wrong(f"there is neither [{one}] nor [[{many}]]")
        key = given[0]
        if key == many:
            tables = top.tables(key) or []
            if not tables:
                raise top.wrong(f"[[{many}]] is empty", key)
            found[one] = tables
        elif isinstance(top.values[key], str):
            found[one] = [TomlTable(top.file, (key,), {"connection": top.values[key]})]
        else:
            table = top.table(key)
            assert table is not None
            found[one] = [table]
    return found


def _shown(key: str) -> str:
    return f"[[{key}]]" if key.endswith("s") else key if "_" in key else f"[{key}]"


def _name(place: str, number: int) -> str:
    """An inline connection's name; a further place does not change the name of the first."""
    return place if number == 0 else f"{place}_{number + 1}"


def _with_options_of_the_file(
    top: TomlTable, tables: list[TomlTable], names: dict[str, str], many: str
) -> list[TomlTable]:
    """The tables, the only one with the options that stand at the top of the file."""
    given = {key: own for key, own in names.items() if key in top.values}
    if not given:
        return tables
    first = next(iter(given))
    if many in top.values:
        raise top.wrong(f"with [[{many}]], {names[first]} stands in each of them, not {first} here", first)
    (table,) = tables
    for key, own in given.items():
        if own in table.values:
            raise table.wrong(f"{own} and {key} say the same thing: give one", own)
    values = {**table.values, **{own: top.values[key] for key, own in given.items()}}
    return [TomlTable(table.file, table.path, values, {own: (key,) for key, own in given.items()})]


def _transform(top: TomlTable, options: dict[str, Any]) -> dict[str, Any]:
    table = top.table("transform")
    found: dict[str, Any] = {}
    lookups = top.table("lookups")
    if table is not None:
        for later in LATER:
            if later in table.values:
                raise not_yet(f"[transform.{later}]", table.where(later))
        for key in _ENGINE:
            if key in table.values:
                raise table.wrong(
                    f"{key} is about where SQL runs, and here Spark runs it",
                    key,
                    next_step="remove it; --engine or [engine] in .ematix-flow.toml says where Spark runs",
                )
        table.refuse_unknown((*_TRANSFORM, "lookups"))
        for key, option in _TRANSFORM.items():
            if key in table.values:
                if option in options:
                    raise table.wrong(f"{key} and {option} say the same thing: give one", key)
                found[option] = table.values[key]
        within = table.table("lookups")
        if within is not None and lookups is not None:
            raise top.wrong("lookups stand in [transform.lookups.<name>], or at the top: not both", "lookups")
        lookups = within or lookups
    if lookups is not None:
        found["lookups"] = {name: _lookup(lookups, name) for name in lookups.values}
    return found


def _lookup(lookups: TomlTable, name: str) -> Lookup:
    table = lookups.table(name)
    assert table is not None
    return lookup_from(table, name)


def _columns(top: TomlTable) -> TableSpec:
    table = top.table("source_columns")
    assert table is not None
    try:
        return TableSpec(None, "source", columns_from_text(table.values), where=table.where())
    except DeclarationError as error:
        raise error.at(table.nearest(error.what)) from None


def _line_of(error: FlowError, top: TomlTable, places: list[TomlTable]) -> SourceLocation | None:
    """The line of the first option that the error names; it names them as the decorator does.

    Of what it wants instead and what is there, the latter: ``needs target_table=, not target_topic=``.
    """
    tables = [table for table in places if error.where == table.where()]
    transform = top.table("transform")
    wanted, _, there = error.what.partition(", not ")
    for option in re.findall(r"(\w+)=", f"{there} {wanted}"):
        short = option.removeprefix("target_").removeprefix("source_")
        candidates = [(table, key) for table in tables for key in (option, short)]
        candidates.append((top, option))
        if transform is not None:
            candidates += [(transform, key) for key, full in _TRANSFORM.items() if full == option]
            candidates.append((transform, option))
        for table, key in candidates:
            if key in table.values:
                return table.where(key)
    return error.where


def _inline(top: TomlTable, places: dict[str, list[TomlTable]]) -> Iterator[TomlTable]:
    """Every table that may hold the fields of a connection."""
    transform = top.table("transform")
    lookups = (transform and transform.table("lookups")) or top.table("lookups")
    within = [lookups.table(name) for name in lookups.values] if lookups else []
    letters = top.values.get("dead_letter_connection")
    others = [top.table("dead_letter_connection")] if isinstance(letters, dict) else []
    for table in (*places["source"], *places["target"], *within, *others):
        if table is not None:
            yield from _with_inner(table)


def _with_inner(table: TomlTable) -> Iterator[TomlTable]:
    yield table
    for key in ("connection", "schema_registry"):
        if isinstance(table.values.get(key), dict):
            inner = table.table(key)
            assert inner is not None
            yield from _with_inner(inner)
