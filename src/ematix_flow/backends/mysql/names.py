"""Names of tables and columns: which ones MySQL can store, and how a user writes them."""

from __future__ import annotations

import re

from ematix_flow.backends.sql.table_names import require_distinct_names
from ematix_flow.errors import NameRefused, SourceFailed
from ematix_flow.spec.tables import TableSpec

MAX_CHARACTERS = 64


def parse_table_name(table: str) -> list[str]:
    """The parts of ``database.table``; a part in backticks or double quotes may contain dots and quotes."""
    parts = re.findall(r'`(?:[^`]|``)*`|"(?:[^"]|"")*"|[^.`"]+', table)
    if not parts or ".".join(parts) != table or len(parts) > 2:
        raise SourceFailed(
            f"source_table {table!r} is not the name of a table", next_step="write it as  database.table"
        )
    return [p[1:-1].replace(p[0] * 2, p[0]) if p[0] in '`"' else p for p in parts]


def require_names(table: TableSpec) -> None:
    """Refuse names that the server would cut, refuse or confuse."""
    for name in filter(None, (table.schema, table.name, *table.with_load_columns().column_names)):
        problem = _name_problem(name)
        if problem:
            raise NameRefused(
                f"the name {name!r} {problem}", where=table.where, next_step="choose another name"
            )
    require_distinct_names(table, "MySQL", _fold_name)


def _fold_name(name: str) -> str:
    """The name as the server compares column names: it treats a capital i with a dot as an i."""
    return name.replace("\u0130", "i").lower()


def _name_problem(name: str) -> str | None:
    if len(name) > MAX_CHARACTERS:
        return f"is {len(name)} characters long; MySQL allows {MAX_CHARACTERS}"
    if any(ord(char) > 0xFFFF or char == "\x00" for char in name):
        return "has a character that MySQL does not allow in names (such as an emoji)"
    return "ends with a space, which MySQL does not allow" if name.endswith(" ") else None
