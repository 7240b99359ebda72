"""Names as folders. They come from declarations and from SQL and are hostile: none may lead out of the root,
into what is hidden, or into another table."""

from __future__ import annotations

import re

from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import TableSpec

_MAX_SEGMENT_BYTES = 255


def segments(name: str) -> tuple[str, ...]:
    """The folders that a name means; ``events/raw`` is two. ValueError says why a name cannot be one."""
    parts = tuple(name.removesuffix("/").split("/"))
    for part in parts:
        if not part:
            raise ValueError("it has an empty part")
        if part in (".", ".."):
            raise ValueError("it would lead out of the connection's folder")
        if part.startswith("."):
            raise ValueError("a name that begins with a dot is hidden from readers")
        if any(ord(character) < 32 for character in part):
            raise ValueError("it holds a control character")
        if len(part.encode("utf-8", "surrogatepass")) > _MAX_SEGMENT_BYTES:
            raise ValueError(f"it is longer than the {_MAX_SEGMENT_BYTES} bytes that a file system keeps")
    return parts


def table_folder(table: TableSpec) -> tuple[str, ...]:
    """The folders that lead to a declared table; PlanError for a name that cannot be one."""
    parts: list[str] = []
    for name in filter(None, (table.schema, table.name)):
        try:
            parts.extend(segments(name))
        except ValueError as error:
            raise PlanError(
                f"{name!r} cannot be the name of a folder of files: {error}",
                where=table.where,
                next_step="choose another schema, name or prefix",
            ) from error
    return tuple(parts)


def literal_path(path: str) -> str:
    """A path for Spark's readers in which nothing is a pattern."""
    return re.sub(r"([\\\[\]{}*?^])", r"\\\1", path)
