"""MySQL and MariaDB as a source, by pymysql. A probe reads in one consistent snapshot, in UTC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from ematix_probe.environment import REFERENCE, resolve
from ematix_probe.errors import CannotConnect, DeclarationError, SourceFailed
from ematix_probe.extras import require
from ematix_probe.location import caller_location
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject
from ematix_probe.sources.mysql_address import MySQLAddress, parse_address
from ematix_probe.sources.mysql_types import catalog_column, result_column
from ematix_probe.sources.sql_subject import (
    check_timeout,
    describing,
    reference_subject,
    subject_tree,
    without_secrets,
)

_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
_SETTINGS = (
    f"sql_mode = CONCAT_WS(',', NULLIF(REPLACE(@@sql_mode, 'NO_BACKSLASH_ESCAPES', ''), ''), '{_MODE}')",
    "time_zone = '+00:00'",
)
_COLUMNS = (
    "SELECT column_name, column_type, is_nullable FROM information_schema.columns "
    "WHERE table_name = %s AND table_schema = COALESCE(%s, DATABASE()) ORDER BY ordinal_position"
)
_KEY = (
    "SELECT column_name FROM information_schema.statistics WHERE index_name = 'PRIMARY' "
    "AND table_name = %s AND table_schema = COALESCE(%s, DATABASE()) ORDER BY seq_in_index"
)


@dataclass(frozen=True, repr=False)
class MySQLSource(Source):
    """A database of a server. ``timeout``: the seconds that a statement may take."""

    kind = "mysql"
    url: str = field(repr=False)
    timeout: float | None = None

    @property
    def label(self) -> str:
        try:
            return parse_address(resolve(self.url)).label
        except DeclarationError:
            return "mysql://…"

    def __repr__(self) -> str:
        return f"mysql({self.label!r})"

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        driver = require("pymysql", "mysql", "a MySQL source")
        address = parse_address(resolve(self.url))
        connection = _connect(driver, address)
        try:
            try:
                _begin(connection, self.timeout)
            except driver.MySQLError as error:
                raise CannotConnect(_message(error, address), where=address.label) from None
            yield OpenMySQL(connection, subject, address, driver)
        finally:
            with suppress(driver.MySQLError, OSError):
                connection.close()  # which ends the transaction


class OpenMySQL(OpenSubject):
    dialect = "mysql"

    def __init__(self, connection: Any, subject: Subject, address: MySQLAddress, driver: Any) -> None:
        self._connection, self._subject, self._address = connection, subject, address
        self._driver = driver
        self._columns = self._describe(subject)
        self._key: tuple[str, ...] = ()
        if subject.query is None:
            self._key = tuple(name for (name,) in self._run(_KEY, (subject.table, subject.schema)))

    def columns(self) -> Sequence[ColumnInfo]:
        return self._columns

    def rows(self) -> exp.Query | exp.Table:
        return subject_tree(self._subject)

    def reference(self, table: str) -> exp.Query | exp.Table:
        return subject_tree(reference_subject(table))

    def reference_columns(self, table: str) -> Sequence[ColumnInfo]:
        return self._describe(reference_subject(table))

    def key(self) -> Sequence[str]:
        return self._key

    def fetch(self, query: exp.Query) -> list[tuple[Any, ...]]:
        return self._run(query.sql(dialect=self.dialect))

    def _describe(self, subject: Subject) -> tuple[ColumnInfo, ...]:
        """By the catalog where it has the table, which says more than a result does."""
        with self._statement() as cursor:
            cursor.execute(describing(subject_tree(subject)).sql(dialect=self.dialect))
            described = tuple(result_column(each) for each in cursor._result.fields)
        if subject.query is not None:
            return described
        found = {
            name: catalog_column(name, kind, nullable == "YES")
            for name, kind, nullable in self._run(_COLUMNS, (subject.table, subject.schema))
        }
        return tuple(found.get(column.name, column) for column in described)

    def _run(self, sql: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self._statement() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except (self._driver.MySQLError, OSError, UnicodeError) as error:
            raise SourceFailed(_message(error, self._address), where=self._address.label) from None


def mysql(url: str, *, timeout: float | None = None) -> MySQLSource:
    """A MySQL or MariaDB database: ``mysql://user:password@host:port/database?ssl_ca=…``."""
    where = caller_location()
    if not isinstance(url, str):
        raise DeclarationError("mysql() takes a url that begins with mysql:// or mariadb://", where=where)
    if not REFERENCE.search(url):
        try:
            parse_address(url)
        except DeclarationError as error:
            raise DeclarationError(error.what, where=where, next_step=error.next_step) from None
    return MySQLSource(url, check_timeout(timeout))


def open_connection(driver: Any, address: MySQLAddress, **more: Any) -> Any:
    """A connection with the TLS that the address asks for. Raises what the driver raises."""
    tls = address.tls()
    connection = driver.connect(
        host=address.host,
        port=address.port,
        unix_socket=address.unix_socket,
        user=address.user,
        password=address.password.encode(),  # the driver itself would encode it as latin1
        database=address.database or None,
        charset="utf8mb4",
        connect_timeout=address.connect_timeout,
        ssl=tls,
        ssl_disabled=tls is None,
        program_name="ematix-probe",
        defer_connect=True,
        **more,
    )
    if address.mode == "prefer":
        connection._ssl_required = False
    connection.connect()
    return connection


def _connect(driver: Any, address: MySQLAddress) -> Any:
    try:
        return open_connection(driver, address, autocommit=True)
    except (driver.MySQLError, OSError, RuntimeError, ValueError) as error:
        raise CannotConnect(
            f"MySQL cannot be reached: {_message(error, address)}",
            where=address.label,
            next_step="check the url, the user, the password and TLS, and that the server runs",
        ) from None  # the driver's traceback holds the password


def _begin(connection: Any, timeout: float | None) -> None:
    settings = list(_SETTINGS)
    if timeout is not None:
        if "MariaDB" in connection.get_server_info():
            settings.append(f"max_statement_time = {timeout:.3f}")
        else:
            settings.append(f"max_execution_time = {max(1, round(timeout * 1000))}")
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {', '.join(settings)}")
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def _message(error: Exception, address: MySQLAddress) -> str:
    texts = [part for part in error.args if isinstance(part, str)]
    return without_secrets(texts[-1] if texts else str(error), [address.password])
