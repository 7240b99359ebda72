"""Databases: PostgreSQL and MySQL by URL or by host, SQLite and DuckDB by path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ematix_flow.spec.connections.base import Connection
from ematix_flow.spec.connections.urls import UrlPieces

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
MEMORY = ":memory:"


@dataclass(frozen=True, kw_only=True, repr=False)
class _ServerConnection(Connection):
    """A database server: ``url``, or ``host`` and other fields, or a URL with fields that override it.

    ``password=`` is taken as it is. The password inside a URL may hold any character too, but there
    a percent sign with two hex digits is decoded.
    """

    keeps_url: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"sslmode": SSL_MODES}

    host: str = ""
    port: int | None = None
    database: str = ""
    user: str = ""
    password: str = ""
    sslmode: str = ""
    ssl_root_cert: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""

    def _check(self) -> None:
        if not self.url and not self.host:
            raise self._error("it needs url, or host", next_step=f'add  url = "{self.schemes[0]}://…"')
        self._require_all_or_none("ssl_cert", "ssl_key")


@dataclass(frozen=True, kw_only=True, repr=False)
class PostgresConnection(_ServerConnection):
    """PostgreSQL. ``url`` is ``postgres://user:password@host/database`` or ``host=… dbname=…``.

    Without ``sslmode`` a server on this machine decides whether to use TLS; any other must show a
    certificate that the system trusts (``verify-full``).
    """

    kind: ClassVar[str] = "postgres"
    schemes: ClassVar[tuple[str, ...]] = ("postgres", "postgresql")


@dataclass(frozen=True, kw_only=True, repr=False)
class MySQLConnection(_ServerConnection):
    """MySQL or MariaDB. ``sslmode`` takes PostgreSQL's values, and MySQL's own."""

    kind: ClassVar[str] = "mysql"
    schemes: ClassVar[tuple[str, ...]] = ("mysql", "mariadb")
    aliases: ClassVar[Mapping[str, str]] = {
        "disabled": "disable",
        "preferred": "prefer",
        "required": "require",
        "verify-ca": "verify-ca",
        "verify-identity": "verify-full",
    }


@dataclass(frozen=True, kw_only=True, repr=False)
class _FileDatabase(Connection):
    required: ClassVar[tuple[str, ...]] = ("path",)

    path: str = ""

    @classmethod
    def fields_from_url(cls, url: UrlPieces) -> dict[str, object]:
        """``sqlite://relative.db`` or ``sqlite:///absolute.db``; without a path a database in memory."""
        path = url.location
        if path.startswith("//"):
            path = "/" + path.lstrip("/")
        return {"path": MEMORY if path.strip("/") in ("", MEMORY) else path}


@dataclass(frozen=True, kw_only=True, repr=False)
class SQLiteConnection(_FileDatabase):
    """A SQLite file, or ``:memory:``."""

    kind: ClassVar[str] = "sqlite"
    schemes: ClassVar[tuple[str, ...]] = ("sqlite",)


@dataclass(frozen=True, kw_only=True, repr=False)
class DuckDBConnection(_FileDatabase):
    """A DuckDB file, or ``:memory:``."""

    kind: ClassVar[str] = "duckdb"
    schemes: ClassVar[tuple[str, ...]] = ("duckdb",)
