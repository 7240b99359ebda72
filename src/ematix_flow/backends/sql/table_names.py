"""Refuse names of a declared table that are reserved, too long, or equal to one another in the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ematix_flow.errors import NameRefused
from ematix_flow.spec.generated_names import RESERVED_PREFIX, first_reserved_name
from ematix_flow.spec.location import SourceLocation
from ematix_flow.spec.tables import COMPANION_COLUMNS, TableSpec


def require_table_names(table: TableSpec, limit: int | None) -> None:
    """Refuse reserved names, and names of more than ``limit`` bytes, which the database would cut."""
    refuse_reserved((table.name, *table.column_names), table.label, table.where)
    if limit is None:
        return
    wanted = table.with_load_columns()
    for name in (wanted.schema or "", wanted.name, *wanted.column_names):
        if len(name.encode()) > limit:
            raise NameRefused(
                f"the name {name!r} is {len(name.encode())} bytes long; this database keeps {limit}",
                where=table.where,
                next_step="choose a shorter name",
            )


def refuse_reserved(names: Iterable[str], what: str, where: SourceLocation | None = None) -> None:
    """NameRefused for a name that could clash with generated SQL. ``what`` has the names."""
    name = first_reserved_name(names)
    if name is not None:
        raise NameRefused(
            f"the name {name!r} in {what} begins with {RESERVED_PREFIX!r}, which is "
            "reserved for names that loads generate",
            where=where,
            state="nothing was touched",
            next_step="choose another name; in the source SQL give the column one with AS",
        )


def refuse_dotted_capital(names: Iterable[str], what: str, where: SourceLocation | None = None) -> None:
    """NameRefused for the letter that Spark cannot look up, because its lower case is two characters."""
    for name in names:
        if "\u0130" in name:
            raise NameRefused(
                f"the name {name!r} in {what} contains the letter \u0130, which Spark cannot look up",
                where=where,
                state="nothing was touched",
                next_step="write it with another letter, such as a plain I",
            )


def ascii_lower(name: str) -> str:
    """The name in lower case as SQLite and DuckDB compare it: only A to Z change."""
    return "".join(c.lower() if c.isascii() else c for c in name)


def require_distinct_names(table: TableSpec, system: str, folded: Callable[[str], str] = str.lower) -> None:
    """Refuse columns that ``system`` treats as the same one, including load columns."""
    stored = table.with_load_columns().column_names
    kept_next_to = (*table.column_names, *COMPANION_COLUMNS) if table.keeps == "events" else ()
    for names in (stored, kept_next_to):
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(folded(name), name)
            if other != name:
                raise NameRefused(
                    f"columns {other!r} and {name!r} of {table.label} differ only in case, "
                    f"and {system} treats them as the same name",
                    where=table.where,
                    state="nothing was touched",
                    next_step="give one of them another name",
                )
