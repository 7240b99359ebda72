"""Turns table names into folders. Names come from declarations and SQL and are not trusted: none may lead out
of the root, into hidden folders, or into another table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import TableSpec

_MAX_SEGMENT_BYTES = 255
_WALKED = 1_000


def path_segments(name: str) -> tuple[str, ...]:
    """The folders of a name; ``events/raw`` is two. ValueError says why a name is not valid."""
    parts = tuple(name.removesuffix("/").split("/"))
    for part in parts:
        if not part:
            raise ValueError("it has an empty part")
        if part in (".", ".."):
            raise ValueError("it would lead out of the connection's folder")
        if part.startswith("."):
            raise ValueError("a name that begins with a dot is hidden from readers")
        if any(ord(character) < 32 for character in part):
            raise ValueError("it contains a control character")
        if len(part.encode("utf-8", "surrogatepass")) > _MAX_SEGMENT_BYTES:
            raise ValueError(f"it is longer than the {_MAX_SEGMENT_BYTES} bytes that a file system allows")
    return parts


def table_folder(table: TableSpec) -> tuple[str, ...]:
    """The folders of a declared table; PlanError if its name is not valid."""
    parts: list[str] = []
    for name in filter(None, (table.schema, table.name)):
        try:
            parts.extend(path_segments(name))
        except ValueError as error:
            raise PlanError(
                f"{name!r} cannot be the name of a folder of files: {error}",
                where=table.where,
                next_step="choose another schema, name or prefix",
            ) from error
    return tuple(parts)


def is_hidden(name: str) -> bool:
    """Whether readers and maintenance ignore a file or folder of that name."""
    return name.startswith((".", "_"))


def folders_below(store: Store, folder: str, table: TableSpec) -> Iterator[tuple[str, list[str]]]:
    """The folder that a table will have and all folders below it that are not hidden, each with the names of
    its folders. PlanError if they do not end, as with circular links."""
    waiting = [folder]
    seen = 0
    while waiting:
        if seen == _WALKED:
            raise PlanError(
                f"{store.uri(folder)} contains more than {_WALKED:,} folders, and is not a table",
                where=table.where,
                next_step="move its content away, or choose another schema or name",
            )
        here, seen = waiting.pop(), seen + 1
        inside = store.folders(here)
        yield here, inside
        waiting += [f"{here}/{name}" for name in reversed(inside) if not is_hidden(name)]


def literal_path(path: str) -> str:
    """A path for Spark's readers, with glob characters escaped."""
    return re.sub(r"([\\\[\]{}*?^])", r"\\\1", path)
