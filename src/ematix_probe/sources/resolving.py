"""Finds the source that ``source=`` means: a source, the name of a connection, or a data frame."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from ematix_probe.errors import DeclarationError
from ematix_probe.sources.base import Source

ENTRY_POINTS = "ematix_probe.connections"  # functions (name) -> Source | None, or a DeclarationError


def resolve_source(source: Any, where: str | None = None) -> Source:
    """The source; DeclarationError for what is none."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        return _named_connection(source, where)
    from ematix_probe.sources.frames import frame_source

    found = frame_source(source)
    if found is None:
        raise DeclarationError(
            f"source= takes a source, a data frame or the name of a connection, not {type(source).__name__}",
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
    finders = metadata.entry_points(group=ENTRY_POINTS)
    for each in finders:
        try:
            found = each.load()(name)
        except DeclarationError as error:
            error.where = error.where or where
            raise
        if found is not None:
            if not isinstance(found, Source):
                raise TypeError(f"{each.value} returned no source for {name!r}: {found!r}")
            return found
    what = f"there is no connection {name!r}"
    if list(finders):
        next_step = "flow connections list  shows the names that there are"
    else:
        what += ": no package that knows connections by name is installed"
        next_step = "install ematix-flow-spark, or give a source such as source.postgres(url)"
    raise DeclarationError(what, where=where, next_step=next_step)
