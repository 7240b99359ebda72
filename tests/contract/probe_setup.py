"""Shared by the tests of data probes: databases with orders and customers, and what a probe does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pymysql
import pytest
from sqlglot import exp

from ematix_probe import source
from ematix_probe.declaration import DataPlan, build_subject
from ematix_probe.errors import SourceFailed
from ematix_probe.report import AssertionResult, RunReport
from ematix_probe.running import run_data_probe
from ematix_probe.sources.base import ColumnInfo, OpenSubject, Source, Subject
from ematix_probe.sources.mysql_address import parse_address
from ematix_probe.tester import Tester
from tests.contract.chosen import shared_out

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), *shared_out("duckdb", "mariadb")]
ROWS = 40  # orders: amount is id - 5, every tenth has no customer, two states, one unknown customer


@dataclass
class Database:
    """A database of a kind; ``execute`` is a client that is not the probe's."""

    kind: str
    source: Source
    execute: Callable[[str], None]

    def quote(self, name: str) -> str:
        mark = "`" if self.kind == "mariadb" else '"'
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def database_of(request: pytest.FixtureRequest) -> Database:
    kind, folder = request.param, request.getfixturevalue("tmp_path")
    made = _MAKERS[kind](request, folder)
    made.execute("CREATE TABLE customers (id integer PRIMARY KEY)")
    made.execute(f"INSERT INTO customers VALUES {', '.join(f'({i})' for i in range(1, 40))}")
    made.execute(
        "CREATE TABLE orders (id integer PRIMARY KEY, amount integer, state varchar(20), customer_id integer)"
    )
    rows = (
        f"({i}, {i - 5}, {'paid' if i % 2 else 'new'!r}, {'NULL' if i % 10 == 0 else i + 1})"
        for i in range(ROWS)
    )
    made.execute(f"INSERT INTO orders VALUES {', '.join(rows)}")
    return made


def _sqlite(request: Any, folder: Path) -> Database:
    import sqlite3

    path = folder / "shop.db"

    def execute(statement: str) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(statement)
        connection.close()

    return Database("sqlite", source.sqlite(path), execute)


def _postgres(request: Any, folder: Path) -> Database:
    url = request.getfixturevalue("pg_database")

    def execute(statement: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())

    return Database("postgres", source.postgres(url), execute)


def _mariadb(request: Any, folder: Path) -> Database:
    url = request.getfixturevalue("mariadb_database")
    address = parse_address(url)

    def execute(statement: str) -> None:
        with (
            pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)

    return Database("mariadb", source.mysql(url), execute)


def _duckdb(request: Any, folder: Path) -> Database:
    path = folder / "shop.duckdb"

    def execute(statement: str) -> None:
        with duckdb.connect(str(path)) as connection:
            connection.execute(statement)

    return Database("duckdb", source.duckdb(path), execute)


_MAKERS = {"sqlite": _sqlite, "postgres": _postgres, "mariadb": _mariadb, "duckdb": _duckdb}


def probe(given: Source, declare: Callable[[Tester], object], **subject: Any) -> RunReport:
    """Run a probe of the table orders, or of another subject."""
    tester = Tester()
    declare(tester)
    if not subject and given.default_subject is None:
        subject = {"table": "orders"}
    wanted = build_subject(given, subject.get("table"), subject.get("query"), subject.get("schema"), None)
    return run_data_probe(DataPlan("shop", given, wanted, tester.assertions))


def verdicts(report: RunReport) -> list[str]:
    return [each.verdict for each in report.assertions]


def only(report: RunReport) -> AssertionResult:
    (result,) = report.assertions
    return result


@dataclass
class Watched(Source):
    """A source that tells its statements, and how many rows each gave; ``after_first`` is called after one.

    It refuses the statement with the number ``refused``.
    """

    inner: Source
    after_first: Callable[[], None] | None = None
    rows: list[int] = field(default_factory=list)
    statements: list[exp.Query] = field(default_factory=list)
    refused: int | None = None
    kind = "watched"

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def default_subject(self) -> Subject | None:
        return self.inner.default_subject

    @contextmanager
    def open(self, subject: Subject) -> Iterator[OpenSubject]:
        with self.inner.open(subject) as opened:
            yield _WatchedSubject(opened, self)


class _WatchedSubject(OpenSubject):
    def __init__(self, opened: OpenSubject, watched: Watched) -> None:
        self._opened, self._watched, self.dialect = opened, watched, opened.dialect

    def columns(self) -> Sequence[ColumnInfo]:
        return self._opened.columns()

    def rows(self) -> exp.Query | exp.Table:
        return self._opened.rows()

    def reference(self, table: str) -> exp.Query | exp.Table:
        return self._opened.reference(table)

    def reference_columns(self, table: str) -> Sequence[ColumnInfo] | None:
        return self._opened.reference_columns(table)

    def key(self) -> Sequence[str]:
        return self._opened.key()

    def fetch(self, query: exp.Query) -> list[tuple[Any, ...]]:
        self._watched.statements.append(query)
        if self._watched.refused == len(self._watched.statements):
            raise SourceFailed("refused")
        try:
            found = self._opened.fetch(query)
            self._watched.rows.append(len(found))
            return found
        finally:
            if self._watched.after_first is not None:
                then, self._watched.after_first = self._watched.after_first, None
                then()
