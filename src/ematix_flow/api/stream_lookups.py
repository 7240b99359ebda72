"""Checks the lookups of a stream: what ``lookups=`` holds by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematix_flow.api import option_checks
from ematix_flow.api.stream_declaration import Lookup
from ematix_flow.api.tables import table_spec
from ematix_flow.errors import DeclarationError, FlowError
from ematix_flow.plan.stream_capabilities import STREAM_VIEW
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.streams import LookupSpec
from ematix_flow.spec.tables import TableSpec


def build_lookups(
    given: Mapping[str, Lookup] | None, transform_sql: str | None, where: SourceLocation | None
) -> tuple[LookupSpec, ...]:
    """The lookups, checked. SQL does not tell upper from lower case in their names."""
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"lookups= takes Lookup(…) by name, not {given!r}", where=where)
    if given and transform_sql is None:
        raise DeclarationError("lookups= works with transform_sql=, which is not set", where=where)
    lookups = tuple(_build_lookup(name, lookup, where) for name, lookup in (given or {}).items())
    seen: dict[str, str] = {}
    for lookup in lookups:
        other = seen.setdefault(lookup.name.lower(), lookup.name)
        if other != lookup.name:
            raise DeclarationError(
                f"two lookups are called {other!r} and {lookup.name!r}, which is one name in SQL", where=where
            )
    return lookups


def _build_lookup(name: str, lookup: Lookup, where: SourceLocation | None) -> LookupSpec:
    if not isinstance(lookup, Lookup):
        raise DeclarationError(f"lookups= takes Lookup(…) by name, not {lookup!r}", where=where)
    where = lookup.where or where
    option_checks.check_texts(where, query=lookup.query, schema=lookup.schema)
    if not isinstance(name, str) or name.lower() == STREAM_VIEW or not name.isidentifier():
        raise DeclarationError(
            f"a lookup cannot be called {name!r}: transform_sql uses it as a table name", where=where
        )
    if (lookup.query is None) == (lookup.table is None):
        raise DeclarationError(f"lookup {name!r} takes query= or table=, exactly one of them", where=where)
    option_checks.check_whole_number("refresh_interval_ms", lookup.refresh_interval_ms, 1, where)
    if lookup.schema and not isinstance(lookup.table, str):
        raise DeclarationError(
            f"lookup {name!r}: schema= works with a table= that is a plain name", where=where
        )
    table = None if lookup.table is None else _table_name(name, lookup.table, where)
    if table is not None and lookup.schema:
        table = f"{lookup.schema}.{table}"
    return LookupSpec(name, lookup.connection, lookup.query, table, lookup.refresh_interval_ms)


def _table_name(lookup: str, table: Any, where: SourceLocation | None) -> str:
    """``table`` or ``schema.table``, of a name, a tuple or a declared table."""
    if isinstance(table, str) and table.strip():
        return table
    if isinstance(table, (tuple, list)) and len(table) == 2 and all(isinstance(p, str) and p for p in table):
        return ".".join(table)
    try:
        declared = table if isinstance(table, TableSpec) else table_spec(table)
    except FlowError:
        raise DeclarationError(
            f"table= of lookup {lookup!r} takes a name, (schema, name) or a declared table, not {table!r}",
            where=where,
        ) from None
    return f"{declared.schema}.{declared.name}" if declared.schema else declared.name
