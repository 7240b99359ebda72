"""A PostgreSQL connection: reaching it, knowing whether two of them are one database, asking it."""

from __future__ import annotations

import pickle

import pytest

from ematix_flow.backends.base import SourceQuery
from ematix_flow.backends.postgres.split import PostgresSplit
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import CannotConnect, SourceFailed
from ematix_flow.spec.connections import PostgresConnection
from tests.contract.postgres_setup import backend_of, read_all, sql
from tests.services.postgres import PostgresServer

HOSTILE_PASSWORD = "p@ss:w/rd %#?&='\"\\ü😀"


def test_check_names_product_version_and_address(pg_database: str, postgres: PostgresServer) -> None:
    backend = open_backend(PostgresConnection(name="wh", url=pg_database))
    said = backend.check()
    assert said.startswith("PostgreSQL ")
    assert f"127.0.0.1:{postgres.port}/" in said


def test_a_password_of_special_characters_works_unencoded_and_encoded(
    pg_database: str, postgres: PostgresServer
) -> None:
    quoted = HOSTILE_PASSWORD.replace("'", "''")
    user = f"hostile_{postgres.port}"
    postgres.execute(f"DROP ROLE IF EXISTS {user}")
    postgres.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{quoted}'")
    database = pg_database.rpartition("/")[2]
    plain = f"postgresql://{user}:{HOSTILE_PASSWORD}@127.0.0.1:{postgres.port}/{database}"
    encoded = postgres.url(database, user=user, password=HOSTILE_PASSWORD)
    for url in (plain, encoded):
        backend = backend_of(url)
        assert backend.check()
        assert read_all(backend, "SELECT 1 AS one") == [{"one": 1}]
    postgres.execute(f"DROP ROLE {user}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"port": 1}, "refused"),
        ({"database": "no_such_db"}, 'database "no_such_db" does not exist'),
        ({"user": "nobody_here"}, "authentication failed"),
        ({"password": "wrong-secret"}, "authentication failed"),
        ({"host": "no-such-host.invalid", "sslmode": "disable"}, "not known"),
    ],
)
def test_a_failed_connection_says_where_why_and_what_next(
    pg_database: str, postgres: PostgresServer, change: dict[str, object], reason: str
) -> None:
    backend = backend_of(pg_database, **change)
    task = PostgresSplit(backend.address, "SELECT 1", "SELECT 1", (), None, 150000)
    for attempt in (backend.check, lambda: list(task.read())):
        with pytest.raises(CannotConnect) as raised:
            attempt()
        assert reason in str(raised.value)
        assert "flow connections check wh" in str(raised.value)
        assert postgres.password not in str(raised.value)
        assert "wrong-secret" not in str(raised.value)
        assert raised.value.exit_code == 5


def test_a_server_elsewhere_is_verified_by_default(pg_database: str, postgres: PostgresServer) -> None:
    strict = backend_of(pg_database, sslmode="verify-full")
    with pytest.raises(CannotConnect, match="SSL") as raised:
        strict.check()
    assert "sslmode" in str(raised.value)
    far = PostgresConnection(name="far", url="postgresql://u:p@db.example.com/x")
    assert open_backend(far).address.parameters["sslmode"] == "verify-full"  # type: ignore[attr-defined]
    open_far = PostgresConnection(name="far", url="postgresql://u:p@db.example.com/x", sslmode="require")
    assert open_backend(open_far).address.parameters["sslmode"] == "require"  # type: ignore[attr-defined]


def test_an_option_that_postgres_does_not_know_is_named(pg_database: str) -> None:
    with pytest.raises(CannotConnect, match="no_such_option"):
        backend_of(f"{pg_database}?no_such_option=1").check()


def test_two_spellings_of_one_database_have_one_identity(pg_database: str, postgres: PostgresServer) -> None:
    same = backend_of(pg_database).identity()
    assert backend_of(pg_database.replace("127.0.0.1", "localhost")).identity() == same
    other = postgres.create_database("other")
    assert backend_of(postgres.url(other)).identity() != same
    postgres.drop_database(other)


def test_a_user_without_rights_sees_the_same_identity(pg_database: str, postgres: PostgresServer) -> None:
    postgres.execute("DROP ROLE IF EXISTS plain_reader")
    postgres.execute("CREATE ROLE plain_reader LOGIN PASSWORD 'reader-secret'")
    database = pg_database.rpartition("/")[2]
    reader = backend_of(postgres.url(database, user="plain_reader", password="reader-secret"))
    assert reader.identity() == backend_of(pg_database).identity()
    postgres.execute("DROP ROLE plain_reader")


def test_what_travels_to_tasks_pickles_and_shows_no_password(
    pg_database: str, postgres: PostgresServer
) -> None:
    backend = backend_of(pg_database)
    with backend.source().split(SourceQuery("SELECT 1 AS a"), {}, 1) as splits:
        assert postgres.password not in repr(splits)
        assert postgres.password not in repr(backend.address)
        assert pickle.loads(pickle.dumps(splits[0])) == splits[0]


def test_query_gives_names_and_at_most_the_rows_asked_for(pg_database: str) -> None:
    backend = backend_of(pg_database)
    assert backend.query("SELECT g AS n, '100%' AS share FROM generate_series(1, 1000000) AS g", 2) == (
        ["n", "share"],
        [(1, "100%"), (2, "100%")],
    )
    assert backend.query("SELECT 1 AS one WHERE false") == (["one"], [])


def test_query_cannot_write(pg_database: str) -> None:
    sql(pg_database, "CREATE TABLE t (a int)")
    for statement in (
        "INSERT INTO t VALUES (1) RETURNING a",
        "SELECT 1; DROP TABLE t",
        "COMMIT; DROP TABLE t",
    ):
        with pytest.raises(SourceFailed):
            backend_of(pg_database).query(statement)
    assert sql(pg_database, "SELECT count(*) FROM t") == [(0,)]


def test_sessions_speak_utc_and_carry_our_name(pg_database: str) -> None:
    backend = backend_of(pg_database)
    sql(pg_database, f"ALTER DATABASE \"{pg_database.rpartition('/')[2]}\" SET TimeZone = 'Asia/Tokyo'")
    assert backend.query("SELECT current_setting('TimeZone'), current_setting('application_name')")[1] == [
        ("UTC", "ematix-flow")
    ]
    select = (
        "SELECT current_setting('TimeZone') AS zone, to_json(timestamptz '2024-01-01 00:00Z')::text AS at"
    )
    assert read_all(backend, select) == [{"zone": "UTC", "at": '"2024-01-01T00:00:00+00:00"'}]
