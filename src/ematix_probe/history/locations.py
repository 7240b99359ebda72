"""Reads the path or URL of a history, and makes the store behind it. Opens nothing."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

from ematix_probe.database_urls import split_database_url
from ematix_probe.errors import DeclarationError, HistoryError
from ematix_probe.history.base import HistoryStore
from ematix_probe.redaction import mask
from ematix_probe.suggestions import did_you_mean

POSTGRES = ("postgres", "postgresql", "postgresql+psycopg")
MYSQL = ("mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql")
OBJECTS = {"s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "azureblob": "az"}
_KINDS = ("sqlite", "postgresql", "mysql", "mariadb", "duckdb", *OBJECTS)
_DUCKDB_FILES = (".duckdb", ".ddb")


def open_store(given: str) -> HistoryStore:
    """The store of ``given``. A path is a file: of DuckDB if its name says so, else of SQLite."""
    if not given.strip():
        raise HistoryError(
            "a history needs a path or a URL", next_step="write  history.db  or  postgresql://…"
        )
    scheme, separator, rest = given.partition("://")
    scheme = scheme.lower()
    if not separator:
        scheme, rest = "duckdb" if given.endswith(_DUCKDB_FILES) else "sqlite", given
    if scheme in ("sqlite", "duckdb"):
        # as in the URL of a run log: three slashes and four both begin an absolute path
        path = Path(re.sub("^/+", "/", unquote(rest) if separator else rest)).expanduser()
        if not rest.strip("/"):
            raise HistoryError(
                f"the history {given!r} has no path", next_step=f"write {scheme}://path/to/history.db"
            )
        from ematix_probe.history.sql import SqlHistory

        if scheme == "sqlite":
            from ematix_probe.history.sqlite_database import SqliteDatabase

            return SqlHistory(SqliteDatabase(path.absolute()))
        from ematix_probe.history.duckdb_database import DuckDBDatabase

        return SqlHistory(DuckDBDatabase(path.absolute()))
    if scheme in POSTGRES or scheme in MYSQL:
        from ematix_probe.history.servers import MySQLDatabase, PostgresDatabase
        from ematix_probe.history.sql import SqlHistory

        if scheme in POSTGRES:
            try:
                address = split_database_url(f"postgresql://{rest}")
            except DeclarationError as error:
                raise HistoryError(f"the history: {error.what}", next_step=error.next_step) from None
            plain, options = split_options(address.encoded, ("schema",))
            return SqlHistory(PostgresDatabase(plain, options.get("schema")))
        return SqlHistory(MySQLDatabase(f"mysql://{rest}"))
    if scheme in OBJECTS:
        from ematix_probe.history.objects import ObjectHistory

        return ObjectHistory(given, OBJECTS[scheme])
    raise HistoryError(
        f"a history at {mask(given)!r}: {scheme!r} is not a kind of history{did_you_mean(scheme, _KINDS)}",
        next_step="give the path of an SQLite file, or postgresql://…, mysql://…, duckdb://…, s3://…, gs://… "
        "or az://…",
    )


def split_options(url: str, own: Collection[str], *, only: bool = False) -> tuple[str, dict[str, str]]:
    """The URL without these options of its query, and their values. With ``only``, no other is allowed."""
    place, separator, query = url.partition("?")
    if not separator:
        return url, {}
    found, rest = dict[str, str](), []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name in own:
            found[name] = unquote(value)
        elif only:
            raise HistoryError(
                f"the history {mask(place)} has no option {name!r}{did_you_mean(name, own)}",
                next_step=f"its options are {', '.join(own)}",
            )
        else:
            rest.append(pair)
    return f"{place}?{'&'.join(rest)}" if rest else place, found
