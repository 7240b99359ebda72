"""A source query has the meaning of the source's own connection, on every path and in a preview.

Each case is a pair of connections that reach one server or file and differ in one thing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import duckdb
import pytest

from ematix_flow import (
    Connection,
    DuckDBConnection,
    MySQLConnection,
    Pipeline,
    PostgresConnection,
    SQLiteConnection,
    ematix,
    register_connection,
)
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import SourceFailed, Unsupported
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from tests.reading import read_table
from tests.services.mysql_server import MySQLServer
from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.usefixtures("spark")

FIRST, SECOND = [1, 2], [7, 8, 9]  # what the source's own table holds, and the target's of the same name
LANDED = TableSpec("landing", "landed", (ColumnSpec("id", DataType("big_int")),))
PASSWORD = "secret"


@dataclass(frozen=True)
class Case:
    """What differs, the query, and the text that names it; without a text both give the same rows."""

    source: Connection
    target: Connection
    query: str
    told: str | None = None


def declare(case: Case, **options: Any) -> Pipeline:
    """``query`` is SQL, or the name of a table."""
    is_sql = case.query.startswith("SELECT")
    options |= {} if is_sql else {"source_table": case.query}

    @ematix.pipeline(target=LANDED, source_connection="source", target_connection="target", **options)
    def load(conn: Any) -> str | None:
        return case.query if is_sql else None

    return load


def landed_ids(case: Case) -> list[int]:
    return sorted(row["id"] for row in read_table(open_backend(case.target), LANDED))


def assert_every_path_reads_the_sources_rows(case: Case, expected: list[int] = FIRST) -> None:
    for connection in (case.source, case.target):
        register_connection(connection)
    load = declare(case, mode="truncate", max_shrink=1.0)
    assert sorted(row[0] for row in load.preview().rows) == expected
    done = load.sync()
    assert (done.path, landed_ids(case)) == ("same_db" if case.told is None else "copy", expected)
    if case.told is None:
        assert load.sync(force_path="copy").rows_inserted == len(expected)
        assert landed_ids(case) == expected
        return
    assert case.told in str(load.plan().targets[0].path.reason)
    with pytest.raises(Unsupported, match="only the source's own is sure to read its SQL") as refused:
        load.sync(force_path="same_db")
    assert case.told in refused.value.what
    assert landed_ids(case) == expected


# ------------------------------------------------------------------ PostgreSQL

POSTGRES_SETUP = """
CREATE SCHEMA one; CREATE SCHEMA two; CREATE SCHEMA landing;
CREATE TABLE one.src AS SELECT unnest(ARRAY[1, 2])::bigint AS id;
CREATE TABLE two.src AS SELECT unnest(ARRAY[7, 8, 9])::bigint AS id;
CREATE TABLE public."Odd ""Name" AS TABLE one.src;
CREATE TABLE public.owned (id bigint, owner text);
INSERT INTO public.owned VALUES (1, '{reader}'), (2, '{reader}'), (7, '{loader}'), (8, '{loader}');
ALTER TABLE public.owned ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON public.owned USING (owner = current_user);
CREATE TABLE public.closed AS TABLE one.src;
CREATE FUNCTION public.found() RETURNS SETOF bigint LANGUAGE plpgsql
AS 'BEGIN RETURN QUERY SELECT id FROM src; END';
CREATE ROLE {reader} LOGIN PASSWORD 'secret'; CREATE ROLE {loader} LOGIN PASSWORD 'secret';
GRANT {reader} TO {loader};
GRANT ALL ON DATABASE "{database}" TO {reader}, {loader};
GRANT ALL ON SCHEMA one, two, landing, public TO {reader}, {loader};
GRANT ALL ON ALL TABLES IN SCHEMA one, two, public TO {reader}, {loader};
REVOKE ALL ON public.closed FROM {reader};
"""


@dataclass(frozen=True)
class Roles:
    """A database with a table `src` in two schemas, and two roles; `url` makes one of the other."""

    server: PostgresServer
    database: str
    reader: str
    loader: str

    def url(self, user: str, options: str = "") -> str:
        query = f"?options={quote(options, safe='')}" if options else ""
        return self.server.url(self.database, user=user, password=PASSWORD) + query

    def case(self, source: str, target: str, query: str, told: str | None = None) -> Case:
        return Case(
            PostgresConnection(name="source", url=source),
            PostgresConnection(name="target", url=target),
            query,
            told,
        )


@pytest.fixture
def roles(postgres: PostgresServer, pg_database: str) -> Any:
    database = urlsplit(pg_database).path[1:]
    mark = database.rsplit("_", 1)[-1]
    found = Roles(postgres, database, f"reader_{mark}", f"loader_{mark}")
    setup = POSTGRES_SETUP.format(reader=found.reader, loader=found.loader, database=database)
    for statement in filter(str.strip, setup.split(";\n")):
        postgres.execute(statement, database)
    yield found
    postgres.drop_database(database)
    postgres.execute(f"DROP ROLE {found.reader}, {found.loader}")


ONE, TWO = "-c search_path=one", "-c search_path=two"
SAME_USER = {  # options of the source, options of the target, the query, what the plan says
    "nothing": (ONE, ONE, "SELECT id FROM src", None),
    "spelling": (ONE, "--search_path=one", "src", None),
    "time zone, which every session sets": (
        f"{ONE} -c TimeZone=Asia/Tokyo",
        ONE,
        "SELECT id FROM src WHERE extract(hour FROM timestamptz '2026-01-01 12:00+00') = 12",
        None,
    ),
    "search path of SQL": (ONE, TWO, "SELECT id FROM src", "search_path ('one' and 'two')"),
    "search path of a table's name": (ONE, TWO, "src", "search_path"),
    "search path inside a function": (
        f"{ONE},public",
        f"{TWO},public",
        "SELECT found AS id FROM found()",
        "search_path",
    ),
    "a setting of the user's own": (
        "-c app.upto=2",
        "-c app.upto=0",
        "SELECT id FROM one.src WHERE id <= current_setting('app.upto')::int",
        "app.upto",
    ),
    "a setting of the user's own on one side": (
        "-c app.upto=2",
        "",
        "SELECT id FROM one.src WHERE id <= current_setting('app.upto')::int",
        "app.upto",
    ),
    "a setting of the server": (
        "-c transform_null_equals=on",
        "",
        "SELECT id FROM one.src WHERE (NULL = NULL)",
        "transform_null_equals",
    ),
    "role of the session": ("-c role={reader}", "", "SELECT id FROM owned", "user ('reader_"),
}


@pytest.mark.parametrize("what", SAME_USER)
def test_postgres_connections_of_one_user_that_differ_in_one_thing(roles: Roles, what: str) -> None:
    source, target, query, told = SAME_USER[what]
    urls = [roles.url(roles.loader, options.format(reader=roles.reader)) for options in (source, target)]
    assert_every_path_reads_the_sources_rows(roles.case(*urls, query, told))


@pytest.mark.parametrize("query", ["SELECT id FROM src", "src"])
def test_postgres_roles_with_a_search_path_each(roles: Roles, query: str) -> None:
    roles.server.execute(f"ALTER ROLE {roles.reader} SET search_path = one")
    roles.server.execute(f"ALTER ROLE {roles.loader} SET search_path = two")
    urls = roles.url(roles.reader), roles.url(roles.loader)
    assert_every_path_reads_the_sources_rows(roles.case(*urls, query, "user ('reader_"))


@pytest.mark.parametrize("query", ["SELECT id FROM owned", 'public."owned"', 'public."Odd ""Name"'])
def test_postgres_roles_that_may_see_different_rows(roles: Roles, query: str) -> None:
    urls = roles.url(roles.reader), roles.url(roles.loader)
    assert_every_path_reads_the_sources_rows(roles.case(*urls, query, "user ('reader_"))


def test_what_the_sources_role_may_not_read_is_not_read_as_the_targets(roles: Roles) -> None:
    case = roles.case(roles.url(roles.reader), roles.url(roles.loader), "SELECT id FROM public.closed")
    for connection in (case.source, case.target):
        register_connection(connection)
    for forced in (None, "copy"):
        with pytest.raises(SourceFailed, match="permission denied"):
            declare(case, name=f"load_{forced}", force_path=forced).sync()
    with pytest.raises(Unsupported, match="differ in user"):
        declare(case, force_path="same_db").sync()


# ------------------------------------------------------------------ MySQL and MariaDB


@pytest.fixture(params=["mysql", "mariadb"])
def mysql_server(request: pytest.FixtureRequest) -> MySQLServer:
    server: MySQLServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def two_databases(mysql_server: MySQLServer, request: pytest.FixtureRequest) -> Any:
    """A server's two databases of one table name each, by their names."""
    before = set(mysql_server.databases())
    first, second = (mysql_server.create_database(name) for name in ("first", "second"))
    for database, ids in ((first, FIRST), (second, SECOND)):
        mysql_server.execute("CREATE TABLE src (id BIGINT)", database)
        mysql_server.execute(f"INSERT INTO src VALUES {', '.join(f'({number})' for number in ids)}", database)
        mysql_server.execute("CREATE VIEW `odd ``view` AS SELECT id FROM src", database)
        mysql_server.execute(
            "CREATE FUNCTION largest() RETURNS BIGINT READS SQL DATA RETURN (SELECT max(id) FROM src)",
            database,
        )
    yield first, second
    for name in sorted(set(mysql_server.databases()) - before):
        mysql_server.drop_database(name)


def mysql_case(source: str, target: str, query: str, told: str | None = None) -> Case:
    return Case(
        MySQLConnection(name="source", url=source), MySQLConnection(name="target", url=target), query, told
    )


MYSQL_QUERIES = {
    "SQL": ("SELECT id FROM src", FIRST),
    "a table's name": ("src", FIRST),
    "a quoted name": ("`odd ``view`", FIRST),
    "a function's name": ("SELECT largest() AS id", [2]),
    "the default database itself": ("SELECT id FROM src WHERE DATABASE() = '{first}'", FIRST),
}


@pytest.mark.parametrize("what", MYSQL_QUERIES)
def test_mysql_connections_with_a_default_database_each(
    mysql_server: MySQLServer, two_databases: tuple[str, str], what: str
) -> None:
    query, expected = MYSQL_QUERIES[what]
    urls = [mysql_server.url(name) for name in two_databases]
    case = mysql_case(*urls, query.format(first=two_databases[0]), "default database ('t_first_")
    assert_every_path_reads_the_sources_rows(case, expected)


def test_mysql_connections_that_differ_in_nothing_or_in_their_user(
    mysql_server: MySQLServer, two_databases: tuple[str, str]
) -> None:
    first, second = two_databases
    url = mysql_server.url(first)
    assert_every_path_reads_the_sources_rows(mysql_case(url, url, "SELECT id FROM src"))
    user = f"reader_{first[-8:]}"
    mysql_server.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'")
    try:
        mysql_server.execute(f"GRANT SELECT ON `{first}`.src TO '{user}'@'%'")
        own = mysql_server.url(first, user=user, password=PASSWORD)
        mine = f"SELECT id FROM src WHERE CURRENT_USER() LIKE '{user}%'"
        assert_every_path_reads_the_sources_rows(mysql_case(own, url, mine, f"user ('{user}"))
        with pytest.raises(SourceFailed, match="denied"):
            declare(mysql_case(own, url, f"SELECT id FROM `{second}`.src"), name="denied").sync()
    finally:
        mysql_server.execute(f"DROP USER '{user}'@'%'")


def test_a_statement_after_the_load_means_what_the_targets_connection_makes_of_it(
    mysql_server: MySQLServer, two_databases: tuple[str, str]
) -> None:
    first, second = two_databases
    case = mysql_case(mysql_server.url(first), mysql_server.url(second), "SELECT id FROM src")
    for connection in (case.source, case.target):
        register_connection(connection)
    declare(case, transforms_post=["DELETE FROM src"]).sync()
    counts = [mysql_server.execute("SELECT count(*) FROM src", database)[0][0] for database in two_databases]
    assert (counts, landed_ids(case)) == ([len(FIRST), 0], FIRST)


# ------------------------------------------------------------------ databases in files


def _sqlite(path: Path, ids: list[int]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE src (id INTEGER)")
        connection.executemany("INSERT INTO src VALUES (?)", [(number,) for number in ids])


def _duckdb(path: Path, ids: list[int]) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE src AS SELECT unnest($ids)::BIGINT AS id", {"ids": ids})


EMBEDDED: dict[str, tuple[Callable[..., Connection], Callable[[Path, list[int]], None]]] = {
    "sqlite": (SQLiteConnection, _sqlite),
    "duckdb": (DuckDBConnection, _duckdb),
}


@pytest.mark.parametrize("kind", EMBEDDED)
def test_embedded_databases_by_every_name_of_one_file(tmp_path: Path, kind: str) -> None:
    connect, create = EMBEDDED[kind]
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "shop.db"
    create(path, FIRST)
    (folder / "link.db").symlink_to(path)
    (tmp_path / "elsewhere").symlink_to(folder)
    names = [
        str(path),
        os.path.relpath(path),
        str(folder / "link.db"),
        str(tmp_path / "elsewhere" / "shop.db"),
    ]
    for name in names:
        case = Case(connect(name="source", path=name), connect(name="target", path=str(path)), "src")
        for connection in (case.source, case.target):
            register_connection(connection)
        load = declare(case, name="load", mode="truncate", max_shrink=1.0)
        assert (load.sync().path, landed_ids(case)) == ("same_db", FIRST), name
    hard = folder / "hard.db"
    os.link(path, hard)
    case = Case(
        connect(name="source", path=str(hard)),
        connect(name="target", path=str(path)),
        "src",
        "differ in file",
    )
    assert_every_path_reads_the_sources_rows(case)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_embedded_databases_with_a_table_of_one_name_each(tmp_path: Path, kind: str) -> None:
    connect, create = EMBEDDED[kind]
    source, target = tmp_path / "first.db", tmp_path / "second.db"
    create(source, FIRST)
    create(target, SECOND)
    case = Case(connect(name="source", path=str(source)), connect(name="target", path=str(target)), "src")
    for connection in (case.source, case.target):
        register_connection(connection)
    load = declare(case)
    assert [row[0] for row in load.preview().rows] == FIRST
    assert (load.sync().path, landed_ids(case)) == ("copy", FIRST)


def test_a_relative_path_in_duckdbs_sql_counts_from_the_folder_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ids in (("first", FIRST), ("second", SECOND)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rows.csv").write_text("id\n" + "\n".join(map(str, ids)))
    _duckdb(tmp_path / "first.db", FIRST)
    for folder_name, expected in (("second", SECOND), ("first", FIRST)):
        monkeypatch.chdir(tmp_path / folder_name)
        case = Case(
            DuckDBConnection(name="source", path=str(tmp_path / "first.db")),
            DuckDBConnection(name="target", path=str(tmp_path / "second.db")),
            "SELECT id FROM 'rows.csv'",
        )
        for connection in (case.source, case.target):
            register_connection(connection)
        load = declare(case, name="load", mode="truncate", max_shrink=1.0)
        assert sorted(row[0] for row in load.preview().rows) == expected
        assert (load.sync().path, landed_ids(case)) == ("copy", expected)
