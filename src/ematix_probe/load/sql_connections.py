"""Connections of load probes to the four databases: one class a driver, each connection for one thread.

They connect only to addresses that were allowed before. A statement is one transaction, its values are bound.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from ematix_probe.database_urls import split_database_url
from ematix_probe.errors import CannotConnect, DeclarationError
from ematix_probe.extras import require
from ematix_probe.load.hosts import AllowedHost, Endpoint, resolve_allowed, same_address
from ematix_probe.load.sql_target import Dialect, SqlTarget

KEPT_ROWS = 1000  # of an answer, for checks
FETCHED_AT_ONCE = 1000
CANCEL_SECONDS = 1.0


class SqlConnection(ABC):
    """One open connection. ``close`` and ``cancel`` may be called from another thread."""

    is_broken = False
    ends_late_statements = False  # by a timeout of the server or of the socket

    @abstractmethod
    def execute(
        self, statement: str, values: Mapping[str, Any] | None, keep: bool
    ) -> tuple[int, Sequence[Any]]:
        """Run the statement; how many rows it returned, and the first of them when ``keep``."""

    @abstractmethod
    def cancel(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


_DRIVERS: dict[Dialect, tuple[str, str]] = {
    "postgres": ("psycopg", "PostgreSQL"),
    "mysql": ("pymysql", "MySQL or MariaDB"),
    "duckdb": ("duckdb", "DuckDB"),
    "sqlite": ("sqlite3", "SQLite"),
}


def import_driver(dialect: Dialect) -> Any:
    """The driver's module; MissingDependency says what to install."""
    module, product = _DRIVERS[dialect]
    return require(module, dialect, f"a load on {product}")


def count_rows(cursor: Any, keep: bool) -> tuple[int, list[Any]]:
    """Read all rows, in pieces, and keep the first."""
    count = 0
    kept: list[Any] = []
    while rows := cursor.fetchmany(FETCHED_AT_ONCE):
        count += len(rows)
        if keep and len(kept) < KEPT_ROWS:
            kept += rows[: KEPT_ROWS - len(kept)]
    return count, kept


# --- Postgres --------------------------------------------------------------------------------------------


class PostgresConnection(SqlConnection):
    ends_late_statements = True

    def __init__(self, target: SqlTarget, endpoints: Sequence[Endpoint], timeout: float) -> None:
        psycopg = import_driver("postgres")
        settings = postgres_settings(target.url)
        hosts = [each for each in endpoints for _ in each.addresses]
        if hosts:
            # each address with its name, which TLS needs; libpq then asks no name server
            settings["host"] = ",".join(each.host.strip("[]") for each in hosts)
            settings["hostaddr"] = ",".join(address for each in endpoints for address in each.addresses)
            settings["port"] = ",".join(str(each.port) for each in hosts)
        options = f"{settings.get('options') or ''} -c statement_timeout={max(round(timeout * 1000), 1)}"
        settings.update(options=options.strip(), connect_timeout=max(round(timeout), 2))
        settings.setdefault("application_name", "ematix-probe")
        self._error: type[Exception] = psycopg.Error
        self._connection = psycopg.connect(**settings, autocommit=True)
        address = self._connection.info.hostaddr
        allowed = [one for each in endpoints for one in each.addresses]
        if allowed and not any(same_address(address, one) for one in allowed):
            self.close()
            raise CannotConnect(f"the driver connected to {address}, which was not allowed")

    def execute(
        self, statement: str, values: Mapping[str, Any] | None, keep: bool
    ) -> tuple[int, Sequence[Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return count_rows(cursor, keep) if cursor.description else (0, [])

    @property
    def is_broken(self) -> bool:  # type: ignore[override]
        return bool(self._connection.closed or self._connection.broken)

    def cancel(self) -> None:
        with contextlib.suppress(self._error):
            self._connection.cancel_safe(timeout=CANCEL_SECONDS)

    def close(self) -> None:
        self._connection.close()


def postgres_settings(url: str) -> dict[str, Any]:
    """The settings of a URL as libpq reads it, with the host that it would take from the environment."""
    import os

    psycopg = import_driver("postgres")
    _scheme, _, rest = split_database_url(url).encoded.partition("://")
    try:
        settings = dict(psycopg.conninfo.conninfo_to_dict(f"postgresql://{rest}"))
    except psycopg.ProgrammingError as error:
        raise DeclarationError(f"the URL of the database cannot be read: {error}") from None
    if "service" in settings or (os.environ.get("PGSERVICE") and not settings.get("host")):
        raise DeclarationError(
            "a load probe takes no service of libpq: its host would not be known",
            next_step="write host and port into the URL",
        )
    for name, variable in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"), ("port", "PGPORT")):
        if not settings.get(name) and os.environ.get(variable):
            settings[name] = os.environ[variable]
    return settings


def postgres_hosts(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of a URL; none for a Unix socket."""
    settings = postgres_settings(url)
    hosts = str(settings.get("host") or "").split(",")
    addresses = str(settings.get("hostaddr") or "").split(",")
    ports = str(settings.get("port") or "5432").split(",")
    found = []
    for number in range(max(len(hosts), len(addresses))):
        host = next((each[number] for each in (addresses, hosts) if number < len(each) and each[number]), "")
        port = ports[number] if number < len(ports) else ports[0]
        if host and not host.startswith(("/", "@")):
            found.append((host, int(port or 5432)))
    return found


# --- MySQL and MariaDB -----------------------------------------------------------------------------------


class MySQLConnection(SqlConnection):
    ends_late_statements = True

    def __init__(self, target: SqlTarget, endpoints: Sequence[Endpoint], timeout: float) -> None:
        pymysql = import_driver("mysql")
        parts = split_database_url(target.url)
        given = parts.options
        endpoint = endpoints[0] if endpoints else None
        tls = self._tls(given)
        self._connection = _mysql_connection_class()(
            host=endpoint.host.strip("[]") if endpoint else "localhost",
            port=endpoint.port if endpoint else 0,
            unix_socket=None if endpoint else given.get("unix_socket"),
            user=parts.user or "",
            password=parts.password or "",
            database=parts.database or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(round(timeout), 2),
            read_timeout=timeout,
            write_timeout=timeout,
            defer_connect=True,
            **tls,
        )
        self._pymysql = pymysql
        # the socket is made here, so that no name is asked for again
        self._connection.connect(None if endpoint is None else connect_socket(endpoint, timeout))

    @staticmethod
    def _tls(given: Mapping[str, str]) -> dict[str, Any]:
        """TLS as the URL asks: ``ssl_ca=file`` verifies, ``ssl=true`` by the machine's authorities."""
        if given.get("ssl_disabled", "").lower() in ("true", "1"):
            return {"ssl_disabled": True}
        if given.get("ssl_ca"):
            return {"ssl_ca": given["ssl_ca"], "ssl_verify_cert": True, "ssl_verify_identity": True}
        return {"ssl": _machine_tls()} if given.get("ssl", "").lower() in ("true", "1") else {}

    def execute(
        self, statement: str, values: Mapping[str, Any] | None, keep: bool
    ) -> tuple[int, Sequence[Any]]:
        # rows come one by one, so that a large answer needs no memory
        with self._connection.cursor(self._pymysql.cursors.SSCursor) as cursor:
            cursor.execute(statement, values or None)
            return count_rows(cursor, keep) if cursor.description else (0, [])

    @property
    def is_broken(self) -> bool:  # type: ignore[override]
        return not self._connection.open

    def cancel(self) -> None:
        """The socket's own timeout ends a statement."""

    def close(self) -> None:
        with contextlib.suppress(self._pymysql.err.Error, OSError):
            self._connection.close()


@functools.cache
def _machine_tls() -> Any:
    import ssl

    return ssl.create_default_context()


@functools.cache
def _mysql_connection_class() -> Any:
    """PyMySQL's connections with one TLS context for all: to make one takes longer than all else."""
    base: Any = import_driver("mysql").connections.Connection

    class ConnectionWithSharedTls(base):  # type: ignore[misc]  # PyMySQL has no types
        contexts: ClassVar[dict[str, Any]] = {}

        def _create_ssl_ctx(self, options: Any) -> Any:
            if not isinstance(options, dict):
                return options  # it is a context
            key = repr(sorted(options.items()))
            if key not in self.contexts:
                self.contexts[key] = super()._create_ssl_ctx(options)
            return self.contexts[key]

    return ConnectionWithSharedTls


def connect_socket(endpoint: Endpoint, timeout: float) -> socket.socket:
    failure: OSError | None = None
    for address in endpoint.addresses:
        try:
            made = socket.create_connection((address, endpoint.port), timeout)
        except OSError as error:
            failure = error
            continue
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(None)
        return made
    raise failure or OSError("the host has no address")


# --- SQLite and DuckDB -----------------------------------------------------------------------------------


class SQLiteConnection(SqlConnection):
    def __init__(self, target: SqlTarget, endpoints: Sequence[Endpoint], timeout: float) -> None:
        sqlite3 = import_driver("sqlite")
        path = database_file(target.url)
        # mode=rw: a misspelt path is an error, not a new and empty database
        uri = path if path == ":memory:" else f"{Path(path).absolute().as_uri()}?mode=rw"
        self._connection = sqlite3.connect(
            uri, timeout=timeout, isolation_level=None, check_same_thread=False, uri=path != ":memory:"
        )

    def execute(
        self, statement: str, values: Mapping[str, Any] | None, keep: bool
    ) -> tuple[int, Sequence[Any]]:
        cursor = self._connection.execute(statement, values or {})
        try:
            return count_rows(cursor, keep) if cursor.description else (0, [])
        finally:
            cursor.close()

    def cancel(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()


class DuckDBDatabase:
    """The database of one process; each thread has a cursor of it, as DuckDB asks for."""

    def __init__(self, target: SqlTarget) -> None:
        duckdb = import_driver("duckdb")
        path = database_file(target.url)
        if path != ":memory:" and not Path(path).exists():
            raise CannotConnect(f"there is no DuckDB database at {path!r}", next_step="check the path")
        # no extension comes by itself: one of them would fetch from hosts that nobody allowed
        settings = {"autoload_known_extensions": "false", "autoinstall_known_extensions": "false"}
        self.connection = duckdb.connect(path, read_only=target.reads_only, config=settings)


class DuckDBConnection(SqlConnection):
    def __init__(self, database: DuckDBDatabase) -> None:
        self._cursor = database.connection.cursor()

    def execute(
        self, statement: str, values: Mapping[str, Any] | None, keep: bool
    ) -> tuple[int, Sequence[Any]]:
        self._cursor.execute(statement, values or None)
        return count_rows(self._cursor, keep) if self._cursor.description else (0, [])

    def cancel(self) -> None:
        self._cursor.interrupt()

    def close(self) -> None:
        self._cursor.close()


def database_file(url: str) -> str:
    """The path of ``sqlite:///file`` or ``duckdb:////absolute/file``; DeclarationError for others."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    path = path[1:] if path.startswith("/") else path
    if parts.netloc or "://" in path or path.lower().startswith(("md:", "motherduck:", "file:")):
        raise DeclarationError(
            "a load probe takes a database in a local file",
            next_step="write sqlite:///file.db, duckdb:///file.duckdb, or four slashes for an absolute path",
        )
    return path or ":memory:"


def find_endpoints(target: SqlTarget, allowed: Sequence[AllowedHost]) -> tuple[Endpoint, ...]:
    """The hosts of the target, checked: HostNotAllowed when one of them was not allowed. None for files."""
    if target.dialect == "postgres":
        hosts = postgres_hosts(target.url)
    elif target.dialect == "mysql":
        parts = split_database_url(target.url)
        local = parts.host is None and "unix_socket" in parts.options
        hosts = [] if local else [(parts.host or "localhost", parts.port or 3306)]
    else:
        database_file(target.url)
        hosts = []
    return tuple(resolve_allowed(host, port, allowed, where=target.where) for host, port in hosts)
