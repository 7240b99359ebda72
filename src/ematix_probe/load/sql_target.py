"""A SQL statement as a value: what a load probe runs, with its parameters. Nothing is connected from here."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from ematix_probe.database_urls import split_database_url
from ematix_probe.environment import REFERENCE, resolve
from ematix_probe.errors import DeclarationError
from ematix_probe.load.checks import Check, FunctionCheck, RowCountCheck, needs_body, read_checks
from ematix_probe.load.feeders import Feeder, feed
from ematix_probe.location import caller_location
from ematix_probe.redaction import mask
from ematix_probe.unknown_options import refuse_unknown_options

Dialect = Literal["postgres", "mysql", "sqlite", "duckdb"]
SCHEMES: dict[str, Dialect] = {
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
    "duckdb": "duckdb",
}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Statement:
    """A statement in pieces: text, and the names of the values that stand between two texts."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    def for_driver(self, dialect: Dialect) -> str:
        """The statement as the driver of this database takes it, with named values."""
        if dialect in ("postgres", "mysql"):
            # without values the drivers of both leave the text alone
            texts = [text.replace("%", "%%") for text in self.texts] if self.names else list(self.texts)
            marks = [f"%({name})s" for name in self.names]
        else:
            texts = list(self.texts)
            marks = [("$" if dialect == "duckdb" else ":") + name for name in self.names]
        return "".join(part for pair in zip(texts, [*marks, ""], strict=True) for part in pair)


def read_statement(sql: str, dialect: Dialect) -> Statement:
    """Find the ``:name`` of a statement, which are not in texts, comments or casts. ValueError for no SQL."""
    import sqlglot
    from sqlglot.errors import TokenError

    try:
        tokens = sqlglot.tokenize(sql, dialect=dialect)
    except TokenError as error:
        raise ValueError(str(error)) from None
    kinds = [token.token_type.name for token in tokens]
    # the body of a function or a trigger has semicolons too
    if kinds[:1] != ["CREATE"] and any(
        one == "SEMICOLON" != other for one, other in itertools.pairwise(kinds)
    ):
        raise ValueError("it is more than one statement")
    texts, names, done = [], [], 0
    for colon, name in itertools.pairwise(tokens):
        follows = colon.token_type.name == "COLON" and name.start == colon.end + 1
        if follows and NAME.fullmatch(sql[name.start : name.end + 1]):
            texts.append(sql[done : colon.start])
            names.append(sql[name.start : name.end + 1])
            done = name.end + 1
    return Statement((*texts, sql[done:]), tuple(names))


@dataclass(frozen=True)
class SqlTarget:
    """One statement, run many times over a pool of connections."""

    dialect: Dialect
    url: str = field(repr=False)
    sql: str
    statement: Statement = field(repr=False)
    pool: int | None = None
    checks: tuple[Check, ...] = ()
    feeder: Feeder | None = None
    where: str | None = field(default=None, compare=False, repr=False)

    kind = "sql"

    @property
    def label(self) -> str:
        return " ".join(self.sql.split())

    @property
    def database_label(self) -> str:
        if self.dialect in ("sqlite", "duckdb") or REFERENCE.search(self.url):
            return mask(self.url)
        return split_database_url(self.url).masked

    @property
    def needs_rows(self) -> bool:
        return needs_body(self.checks)

    @property
    def reads_only(self) -> bool:
        """Whether the URL of a DuckDB file asks for ``access_mode=read_only``."""
        return dict(parse_qsl(urlsplit(self.url).query)).get("access_mode") == "read_only"

    @property
    def serves_several_processes(self) -> bool:
        return self.dialect != "duckdb" or self.reads_only or REFERENCE.search(self.url) is not None

    def resolved(self) -> SqlTarget:
        """The target with the references to the environment replaced."""
        url = resolve(self.url, self.where)
        _check_url(self.dialect, url, self.where)
        return dataclasses.replace(self, url=url)


@refuse_unknown_options("sql()")
def sql(
    source: Any,
    statement: str,
    *,
    params: Any = None,
    pool: int | None = None,
    checks: Iterable[Any] = (),
) -> SqlTarget:
    """A statement for a load probe: ``sql(url, "SELECT … WHERE id = :id", params=rows, pool=10)``.

    ``source`` is a URL or one of `ematix_probe.source` over Postgres, MySQL, MariaDB, SQLite or DuckDB.
    ``params`` is a mapping, or a feeder whose columns fill the ``:name`` of the statement. Each statement is
    one transaction. ``pool`` is the number of connections: 10, or one for each virtual user.
    """
    where = caller_location()
    dialect, url = _database(source, where)
    if not isinstance(statement, str) or not statement.strip():
        raise DeclarationError(f"sql() takes a statement, not {statement!r}", where=where)
    try:
        read = read_statement(statement, dialect)
    except ValueError as error:
        raise DeclarationError(
            f"sql() cannot read the statement: {error}",
            where=where,
            next_step="write one statement, with :name for each value",
        ) from None
    if pool is not None and (not isinstance(pool, int) or isinstance(pool, bool) or not 1 <= pool <= 1000):
        raise DeclarationError(
            f"sql(pool=) is a number of connections from 1 to 1000, not {pool!r}", where=where
        )
    feeder = None
    if params is not None:
        feeder = feed([params] if isinstance(params, Mapping) else params)
    missing = [name for name in read.names if feeder is None or name not in (feeder.columns or read.names)]
    if missing:
        has = f"params= has {', '.join(feeder.columns or ())}" if feeder else "there is no params="
        raise DeclarationError(f"sql(): the statement has :{missing[0]}, and {has}", where=where)
    return SqlTarget(
        dialect,
        url,
        statement,
        read,
        pool,
        read_checks(checks, (RowCountCheck, FunctionCheck), where),
        feeder,
        where,
    )


def _database(source: Any, where: str | None) -> tuple[Dialect, str]:
    url = source if isinstance(source, str) else _url_of(source)
    scheme = _scheme(url) if isinstance(url, str) else ""
    if isinstance(url, str) and REFERENCE.match(url):
        try:
            scheme = _scheme(resolve(url, where))
        except ValueError:
            scheme = ""
    if not isinstance(url, str) or scheme not in SCHEMES:
        shown = mask(source) if isinstance(source, str) else repr(source)
        raise DeclarationError(
            f"sql() takes the URL or the source of a database, not {shown}",
            where=where,
            next_step="write postgresql://…, mysql://…, mariadb://…, sqlite:///file or duckdb:///file",
        )
    if not REFERENCE.search(url):
        _check_url(SCHEMES[scheme], url, where)
    return SCHEMES[scheme], url


def _scheme(url: str) -> str:
    return url.partition(":")[0].partition("+")[0].lower()


def _check_url(dialect: Dialect, url: str, where: str | None) -> None:
    """DeclarationError for a URL that cannot be read; its password is masked from here on."""
    try:
        if dialect in ("postgres", "mysql"):
            split_database_url(url)
        else:
            urlsplit(url)
    except DeclarationError as error:
        raise DeclarationError(error.what, where=where, next_step=error.next_step) from None
    except ValueError:
        raise DeclarationError(
            "the URL of the database cannot be read",
            where=where,
            next_step="write sqlite:///file or duckdb:///file",
        ) from None


def _url_of(source: Any) -> str | None:
    """The URL of a source: its own, or one made of the path of its file."""
    kind = getattr(source, "kind", None)
    path = getattr(source, "path", None)
    if kind in ("sqlite", "duckdb") and path is not None:
        return f"{kind}:///{path}"
    url = getattr(source, "url", None)
    reveal = getattr(url, "get_secret_value", None) or getattr(url, "reveal", None)
    found = reveal() if callable(reveal) else url
    return found if isinstance(found, str) else None
