"""Builds a connection from a mapping: a TOML table, a class body, or the DSN of an environment variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ematix_flow.errors import DeclarationError
from ematix_flow.spec.connections.base import KINDS, Connection, kind_class
from ematix_flow.spec.connections.references import REFERENCE, has_reference
from ematix_flow.spec.connections.urls import is_conninfo, split_url
from ematix_flow.spec.location import SourceLocation

_KIND_ALIASES = {"postgresql": "postgres", "mariadb": "mysql", "sqlite3": "sqlite"}
# the kind of a scheme that several kinds share, when no kind is given
_SCHEME_OWNERS = {"s3": "object_store_s3", "s3a": "object_store_s3", "file": "object_store_local"}
_EXTENSIONS = {".duckdb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite"}


def connection_from_mapping(
    name: str, mapping: Mapping[str, Any], where: SourceLocation | None = None
) -> Connection:
    """The typed connection. Its kind is given or follows from ``url``, which may be called ``dsn``.

    Raises DeclarationError at ``where`` for an unknown kind or field, or an invalid value.
    """
    try:
        values = {key: value for key, value in mapping.items() if value is not None}
        if "dsn" in values:
            if "url" in values:
                raise DeclarationError(f"connection {name!r} has url and dsn, which mean the same: give one")
            values["url"] = values.pop("dsn")
        kind = class_of_mapping(name, values)
        if values.pop("kind", None) is None:
            values = _with_plain_path(kind.kind, values)
        return kind(**{"name": name, **values})
    except DeclarationError as error:
        if where is not None:
            error.where = where
        raise


def class_of_mapping(name: str, mapping: Mapping[str, Any]) -> type[Connection]:
    """The class of a mapping's kind, given or inferred from its URL. Raises DeclarationError if unknown."""
    given = mapping.get("kind")
    if given is None:
        given = infer_kind(name, mapping.get("url", mapping.get("dsn")))
    return kind_class(_KIND_ALIASES.get(given, given) if isinstance(given, str) else given)


def infer_kind(name: str, url: object) -> str:
    """The kind of a URL by its scheme. Raises DeclarationError for an unknown scheme."""
    hint = 'add  kind = "…"  or begin the url with a scheme such as postgres://'
    if not isinstance(url, str) or not url:
        raise DeclarationError(f"connection {name!r} has neither kind nor url", next_step=hint)
    if is_conninfo(url):
        return "postgres"
    scheme = kind_of_scheme(url)
    if scheme is not None:
        return scheme
    for extension, kind in _EXTENSIONS.items():
        if url.lower().endswith(extension):
            return kind
    what = "is a reference" if REFERENCE.match(url) and has_reference(url) else "has no known scheme"
    raise DeclarationError(f"the kind of connection {name!r} is unknown: its url {what}", next_step=hint)


def kind_of_scheme(url: str) -> str | None:
    """The kind whose scheme this URL has, or None."""
    if "://" not in url:
        return None
    scheme = split_url(url).scheme
    for candidate in (scheme, scheme.partition("+")[0]):
        if candidate in _SCHEME_OWNERS:
            return _SCHEME_OWNERS[candidate]
        for kind, cls in KINDS.items():
            if candidate in cls.schemes and kind != "schema_registry":
                return kind
    return None


def _with_plain_path(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values with ``url = "warehouse.duckdb"`` turned into a path."""
    url = values.get("url", "")
    if kind in ("duckdb", "sqlite") and "://" not in url:
        return {**{k: v for k, v in values.items() if k != "url"}, "path": url}
    return values
