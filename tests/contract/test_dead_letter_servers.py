"""Dead letters in a database server that refuses, stops, or has another program's table."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from ematix_flow.backends.state_stores.dead_letters import open_dead_letters
from ematix_flow.errors import CannotConnect, TargetFailed
from ematix_flow.state.dead_letters.base import DeadLetter, LetterSelection
from tests.services.mysql_server import MySQLServer
from tests.services.postgres import PostgresServer
from tests.services.shared import private_server

postgres = private_server("postgres")  # tests here stop it

ALL = LetterSelection(all=True)


def a_letter(number: int = 0) -> DeadLetter:
    return DeadLetter.create("orders", "decode", "x", payload=b"x", position=str(number))


def test_the_table_is_in_the_schema_of_the_control_tables_or_where_it_is_wanted(pg_database: str) -> None:
    for table in (None, "other.rejected"):
        open_dead_letters(pg_database, env={}, table=table).close()
    with psycopg.connect(pg_database) as connection:
        found = connection.execute(
            "SELECT schemaname || '.' || tablename FROM pg_tables"
            " WHERE schemaname IN ('ematix_flow', 'other')"
        ).fetchall()
    assert sorted(name for (name,) in found) == [
        "ematix_flow.dead_letters",
        "ematix_flow.dead_letters_version",
        "other.rejected",
        "other.rejected_version",
    ]


def test_a_server_that_is_not_there_is_reported_without_the_password() -> None:
    for url in ("postgres://ann:hunter22@127.0.0.1:9/x", "mysql://ann:hunter22@127.0.0.1:9/x"):
        with pytest.raises(CannotConnect) as raised:
            open_dead_letters(url, env={})
        assert "hunter22" not in str(raised.value)
        assert raised.value.next_step is not None


def test_a_user_who_may_not_create_the_table_gets_an_error_and_one_who_may_use_it_is_enough(
    pg_database: str,
) -> None:
    address = urlsplit(pg_database)
    role = f"reader_{abs(hash(pg_database)) % 10**8}"
    theirs = f"postgres://{role}:pw@{address.hostname}:{address.port}{address.path}"
    with psycopg.connect(pg_database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
        try:
            with pytest.raises(TargetFailed, match="permission denied") as raised:
                open_dead_letters(theirs, env={})
            assert raised.value.next_step is not None
            open_dead_letters(pg_database, env={}).close()
            connection.execute(f"GRANT USAGE ON SCHEMA ematix_flow TO {role}")
            connection.execute(
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ematix_flow TO {role}"
            )
            with open_dead_letters(theirs, env={}) as store:
                assert store.add([a_letter()]) == 1
                assert store.purge("orders", ALL) == 1
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


@pytest.mark.fault
def test_a_store_goes_on_after_its_postgres_was_restarted(postgres: PostgresServer, pg_database: str) -> None:
    with open_dead_letters(pg_database, env={}) as store:
        store.add([a_letter(1)])
        postgres.stop()
        try:
            with pytest.raises(CannotConnect):
                store.add([a_letter(2)])
        finally:
            postgres.start()
        assert store.add([a_letter(1), a_letter(2)]) == 1


@pytest.mark.fault
def test_a_store_goes_on_after_its_mariadb_was_restarted(mariadb: MySQLServer, mariadb_database: str) -> None:
    with open_dead_letters(mariadb_database, env={}) as store:
        store.add([a_letter(1)])
        mariadb.stop()
        try:
            with pytest.raises(CannotConnect):
                store.list("orders")
        finally:
            mariadb.start()
        assert store.add([a_letter(1), a_letter(2)]) == 1
        store.purge("orders", ALL)
