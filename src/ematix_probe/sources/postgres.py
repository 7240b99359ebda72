"""PostgreSQL as a source, by psycopg 3: TLS and every option of the URL are libpq's.

A probe reads in one transaction, REPEATABLE READ and READ ONLY, in which times are UTC. Each statement has a
savepoint, so that a refused one does not end the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from sqlglot import exp

from ematix_probe.column_types import family_of, plain_type
from ematix_probe.database_urls import split_database_url
from ematix_probe.environment import REFERENCE, resolve
from ematix_probe.errors import CannotConnect, DeclarationError, SourceFailed
from ematix_probe.extras import require
from ematix_probe.location import caller_location
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject
from ematix_probe.sources.sql_subject import (
    check_timeout,
    describing,
    reference_subject,
    subject_tree,
    table_tree,
    without_secrets,
)

if TYPE_CHECKING:
    import psycopg

_SCHEMES = ("postgres", "postgresql")
_SECRETS = ("password", "sslpassword", "passfile")
_TYPES = """
SELECT format_type(o, m), t.typtype::text, t.typcategory::text
FROM unnest(%s::bigint[], %s::int[]) WITH ORDINALITY AS asked (o, m, place) JOIN pg_type t ON t.oid = o
ORDER BY place
"""
_NOT_NULL = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND attnotnull"
_KEY = """
SELECT a.attname FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.place
"""


@dataclass(frozen=True, repr=False)
class PostgresSource(Source):
    """A database of a server. ``timeout``: the seconds that a statement may take."""

    kind = "postgres"
    url: str = field(repr=False)
    timeout: float | None = None

    @property
    def label(self) -> str:
        parts = self._parts()
        host = parts.get("host") or parts.get("hostaddr") or "localhost"
        user = f"{parts['user']}@" if parts.get("user") else ""
        port = f":{parts['port']}" if parts.get("port") else ""
        return f"postgres://{user}{host}{port}/{parts.get('dbname', '')}"

    def __repr__(self) -> str:
        return f"postgres({self.label!r})"

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        connection = self._connect()
        try:
            try:
                self._begin(connection)
            except self._driver().Error as error:
                raise CannotConnect(self._message(error), where=self.label) from None
            from ematix_probe.sources.postgres_times import return_them_as_texts

            return_them_as_texts(connection.adapters)
            yield OpenPostgres(connection, subject, self)
        finally:
            with suppress(self._driver().Error, OSError):
                connection.close()  # which ends the transaction

    def _connect(self) -> psycopg.Connection[Any]:
        driver = self._driver()
        parts = self._parts()
        more = {"fallback_application_name": "ematix-probe", "client_encoding": "utf8"}
        if "connect_timeout" not in parts:
            more["connect_timeout"] = "15"
        try:
            return driver.connect(self._readable_url(), autocommit=True, **more)  # type: ignore[no-any-return]
        except (driver.Error, OSError, UnicodeError) as error:
            raise CannotConnect(
                f"PostgreSQL cannot be reached: {self._message(error)}",
                where=self.label,
                next_step="check the url, the user and the password, and that the server runs",
            ) from None  # the driver's traceback holds the password

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        settings = ["TimeZone = 'UTC'", "standard_conforming_strings = on", "extra_float_digits = 1"]
        if self.timeout is not None:
            settings.append(f"statement_timeout = {max(1, round(self.timeout * 1000))}")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for setting in settings:
            connection.execute(f"SET LOCAL {setting}".encode())

    def _driver(self) -> Any:
        return require("psycopg", "postgres", "a PostgreSQL source")

    def _parts(self) -> Mapping[str, Any]:
        """libpq's options; nothing when the url cannot be read, which connecting reports."""
        conninfo = require("psycopg.conninfo", "postgres", "a PostgreSQL source")
        try:
            return cast("Mapping[str, Any]", conninfo.conninfo_to_dict(self._readable_url()))
        except (self._driver().Error, DeclarationError):
            return {}

    def _readable_url(self) -> str:
        """The URL as libpq reads it; it takes the first ``@`` for the end of the password."""
        return split_database_url(resolve(self.url)).encoded

    def _message(self, error: Exception) -> str:
        parts = self._parts()
        return without_secrets(str(error), [self.url, *(parts.get(name) for name in _SECRETS)])


class OpenPostgres(OpenSubject):
    dialect = "postgres"

    def __init__(self, connection: psycopg.Connection[Any], subject: Subject, source: PostgresSource) -> None:
        self._connection, self._subject, self._source = connection, subject, source
        self._key: tuple[str, ...] = ()
        self._columns = self._describe(subject)
        if subject.query is None:
            self._key = tuple(name for (name,) in self._run(_KEY, (self._name(subject),)))

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
        not_null: set[str] = set()
        with self._statement() as cursor:
            cursor.execute(describing(subject_tree(subject)).sql(dialect=self.dialect).encode())
            found = [
                (column.name, column.type_code, cursor.pgresult.fmod(place))
                for place, column in enumerate(cursor.description or ())
            ]
        if subject.query is None:
            not_null = {name for (name,) in self._run(_NOT_NULL, (self._name(subject),))}
        types = self._run(_TYPES, ([oid for _, oid, _ in found], [modifier for *_, modifier in found]))
        return tuple(
            _column(name, *kind, nullable=None if subject.query is not None else name not in not_null)
            for (name, *_), kind in zip(found, types, strict=True)
        )

    def _name(self, subject: Subject) -> str:
        return table_tree(subject.schema, subject.table).sql(dialect=self.dialect)

    def _run(self, sql: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self._statement() as cursor:
            cursor.execute(sql.encode(), values)
            return list(cursor.fetchall())

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        """A cursor inside a savepoint."""
        driver = self._source._driver()
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except (driver.Error, UnicodeError) as error:
            raise SourceFailed(self._source._message(error), where=self._source.label) from None


def postgres(url: str, *, timeout: float | None = None) -> PostgresSource:
    """A PostgreSQL database: ``postgres://user:password@host:port/database?sslmode=verify-full``."""
    scheme = url.partition("://")[0].partition("+")[0] if isinstance(url, str) and "://" in url else ""
    if not isinstance(url, str) or (scheme not in _SCHEMES and not REFERENCE.match(url)):
        raise DeclarationError(
            "postgres() takes a url that begins with postgres:// or postgresql://", where=caller_location()
        )
    if not REFERENCE.search(url):
        try:
            split_database_url(url)
        except DeclarationError as error:
            error.where = caller_location()
            raise
    return PostgresSource(url, check_timeout(timeout))


def _column(name: str, native: str, kind: str, category: str, *, nullable: bool | None) -> ColumnInfo:
    plain = _plain(native, kind, category)
    return ColumnInfo(name, family_of(plain), plain, nullable, native)  # type: ignore[arg-type]


def _plain(native: str, kind: str, category: str) -> str:
    if kind == "e":
        return "text"
    if category == "A":
        return "array"
    if native.startswith("numeric(") and "-" in native:
        return "numeric"
    try:
        return plain_type(native)
    except ValueError:
        return "text" if category == "S" else "other"
