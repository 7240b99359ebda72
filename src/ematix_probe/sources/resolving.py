"""Finds the source that ``source=`` means: a source, a connection or its name, or a data frame."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from ematix_probe.errors import DeclarationError
from ematix_probe.sources.base import Source

ENTRY_POINTS = "ematix_probe.connections"  # functions (name or object) -> Source | None


def resolve_source(source: Any, where: str | None = None) -> Source:
    """The source; DeclarationError for what is none."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        return _named_connection(source, where)
    from ematix_probe.sources.frames import frame_source

    found = frame_source(source) or _ask_finders(source, where)
    if found is None:
        raise DeclarationError(
            f"source= takes a source, a data frame, a connection or its name, not {type(source).__name__}",
            where=where,
            next_step='write source=source.postgres("postgres://…"), or another one of ematix_probe.source',
        )
    return found


def _named_connection(name: str, where: str | None) -> Source:
    if "://" in name:
        raise DeclarationError(
            "source= takes the name of a connection, not a url",  # which may hold a password
            where=where,
            next_step='write source=source.postgres(url), source.mysql(url) or source.sqlite("path")',
        )
    found = _ask_finders(name, where)
    if found is not None:
        return found
    what = f"there is no connection {name!r}"
    if metadata.entry_points(group=ENTRY_POINTS):
        next_step = "flow connections list  shows the names that there are"
    else:
        what += ": no package that knows connections by name is installed"
        next_step = "install ematix-flow-spark, or give a source such as source.postgres(url)"
    raise DeclarationError(what, where=where, next_step=next_step)


def _ask_finders(given: Any, where: str | None) -> Source | None:
    """The source of a connection or its name, from the packages that know connections."""
    for each in metadata.entry_points(group=ENTRY_POINTS):
        try:
            found = each.load()(given)
        except DeclarationError as error:
            error.where = error.where or where
            raise
        if found is not None:
            if not isinstance(found, Source):
                raise TypeError(f"{each.value} returned no source for a connection, but {type(found)}")
            return found
    return None
