"""Windows in a stream's TOML: ``[transform.window]`` or ``[window]``, ``[watermark]``, ``[state_store]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from ematix_flow.config.toml_table import TomlTable
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.connections.urls import mask_url
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.windows import Aggregation, StateStore, Watermark, Window

Declared = TypeVar("Declared")
WINDOW_KEYS = ("window", "watermark", "state_store")
_AGGREGATION_KEYS = {"agg": "agg", "as": "as_", "column": "column"}


def read_window_options(top: TomlTable, transform: TomlTable | None) -> dict[str, Any]:
    """The options ``window``, ``watermark`` and ``state_store`` that the file sets."""
    found: dict[str, Any] = {}
    window, within = top.table("window"), transform.table("window") if transform is not None else None
    if window is not None and within is not None:
        raise top.error("the window is given twice: keep [transform.window] or [window]", "window")
    window = within or window
    if window is not None:
        found["window"] = _read_window(window)
    watermark, store = top.table("watermark"), top.table("state_store")
    if watermark is not None:
        found["watermark"] = _read_table(watermark, Watermark, watermark.values)
    if store is not None:
        found["state_store"] = _read_table(store, StateStore, store.values)
    return found


def _read_window(table: TomlTable) -> Window:
    aggregations = []
    for each in table.tables("aggregations") or []:
        each.refuse_unknown(_AGGREGATION_KEYS)
        values = {_AGGREGATION_KEYS[key]: value for key, value in each.values.items()}
        for key in ("agg", "as"):
            if key not in each.values:
                raise each.error(f"it needs {key} =")
        aggregations.append(_build(each, Aggregation, values))
    if "kind" not in table.values:
        raise table.error('it needs  kind = "tumbling",  "hopping"  or  "session"')
    return _read_table(table, Window, {**table.values, "aggregations": aggregations})


def _read_table(table: TomlTable, declared: type[Declared], values: Any) -> Declared:
    table.refuse_unknown([each.name for each in fields(declared) if each.name != "where"])  # type: ignore[arg-type]
    return _build(table, declared, values)


def _build(table: TomlTable, declared: Callable[..., Declared], values: Any) -> Declared:
    try:
        return declared(**values)
    except DeclarationError as error:
        raise error.with_location(table.where()) from None


def window_tables(spec: StreamSpec) -> dict[str, Any]:
    """The tables of a file that declare a stream's window, watermark and state store."""
    tables = {key: getattr(spec, key) for key in WINDOW_KEYS}
    return {key: _written(value) for key, value in tables.items() if value is not None}


def _written(value: Any) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    found: dict[str, Any] = {}
    for each in fields(value):
        given = getattr(value, each.name)
        if each.name != "where" and given != each.default and given is not None:
            found[each.name] = list(given) if isinstance(given, tuple) else given
    if isinstance(value, StateStore) and value.url is not None:
        found["url"] = mask_url(value.url)
    if isinstance(value, Window):
        names = {own: key for key, own in _AGGREGATION_KEYS.items()}
        found["aggregations"] = [
            {names[own]: given for own, given in vars(each).items() if given is not None}
            for each in value.aggregations
        ]
    return found
