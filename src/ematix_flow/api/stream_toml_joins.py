"""A join in a stream's TOML: ``[transform.join]`` or ``[join]``."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from ematix_flow.config.toml_table import TomlTable
from ematix_flow.errors import DeclarationError
from ematix_flow.spec.joins import Join

_OPTIONS = tuple(each for each in fields(Join) if each.name != "where")
_DOCUMENTED_INNER = "stream_stream_join"  # another name of kind = "inner"


def read_join(top: TomlTable, transform: TomlTable | None) -> Join | None:
    """The join that the file declares; None if there is none."""
    outside, within = top.table("join"), transform.table("join") if transform is not None else None
    if outside is not None and within is not None:
        raise top.error("the join is given twice: keep [transform.join] or [join]", "join")
    table = within or outside
    if table is None:
        return None
    table.refuse_unknown([each.name for each in _OPTIONS])
    for each in _OPTIONS:
        if each.default is MISSING and each.name not in table.values:
            raise table.error(f"it needs {each.name} =")
    values = dict(table.values)
    if values.get("kind") == _DOCUMENTED_INNER:
        values["kind"] = "inner"
    try:
        return Join(**values, where=table.where())
    except DeclarationError as error:
        raise error.with_location(table.where_named(error.what)) from None


def join_to_toml(join: Join) -> dict[str, Any]:
    """The options that differ from their defaults."""
    found = join.to_json()
    return {each.name: found[each.name] for each in _OPTIONS if found[each.name] != each.default}
