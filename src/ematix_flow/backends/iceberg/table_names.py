"""Names of tables and namespaces in a catalog. They come from declarations and SQL and are not trusted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.stores.table_folders import path_segments
from ematix_flow.strategies.sql import identifier

TablePath = tuple[str, ...]

# after the name of a table these read its metadata or an earlier version, unless a table has that name
_METADATA = frozenset(
    {
        *("entries", "files", "data_files", "delete_files", "position_deletes", "manifests", "partitions"),
        *("all_entries", "all_files", "all_data_files", "all_delete_files", "all_manifests"),
        *("history", "snapshots", "refs", "metadata_log_entries", "changes"),
    }
)
_SELECTOR = re.compile(r"(?:at_timestamp|snapshot_id)_\d+|(?:branch|tag)_.+|rewrite", re.IGNORECASE)


@dataclass(frozen=True)
class Namespaces:
    """The namespaces of one connection: ``root`` is the connection's own namespace, below ``catalog``.

    ``needed``: each table must be in a namespace.
    """

    catalog: str
    root: TablePath = ()
    needed: bool = True

    def full_path(self, path: TablePath) -> TablePath:
        """The full path of a declared name. ValueError says why a name is not valid."""
        found = (*self.root, *path)
        for level in found:
            if len(path_segments(level)) > 1 or level.endswith("/"):
                raise ValueError(f"{level!r} holds a slash")
        if self.needed and len(found) == 1:
            raise ValueError("it is in no namespace, and this catalog keeps tables in namespaces only")
        return found

    def quoted_name(self, path: TablePath) -> str:
        """A full path, quoted for SQL."""
        return ".".join(quote_name(part) for part in (self.catalog, *path))

    def table_expression(self, path: TablePath) -> exp.Table:
        """A full path as a sqlglot table, which has three parts: further parts go into the last."""
        parts = [identifier(part) for part in (self.catalog, *path)]
        last: exp.Expr = parts[-1]
        if len(parts) > 3:
            last = exp.Dot.build([part.copy() for part in parts[2:]])
        middle = parts[1] if len(parts) > 2 else None
        return exp.Table(this=last, db=middle, catalog=parts[0]) if middle else _root_table(parts)


def _root_table(parts: list[exp.Identifier]) -> exp.Table:
    return exp.Table(this=parts[1], db=parts[0])


def may_mean_metadata(name: str) -> bool:
    return name.lower() in _METADATA or _SELECTOR.fullmatch(name) is not None
