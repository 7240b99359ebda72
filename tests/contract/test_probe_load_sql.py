"""Load on databases: statements with parameters over a pool of connections, on each of the four."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ematix_probe import check, feed, source, sql
from ematix_probe.errors import HostNotAllowed
from ematix_probe.load.progress import LoadProgress
from tests.contract.load_runs import figure, run_load
from tests.contract.load_server import MutableProxy, refusing_port

DATABASES = ("sqlite", "duckdb", "postgres", "mariadb")


class Database:
    """A database with the table ``orders`` of ids 1 to 100, and ``hits``, to which loads add."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        for statement in (
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, state VARCHAR(20))",
            "INSERT INTO orders VALUES " + ", ".join(f"({n}, 'state {n}')" for n in range(1, 101)),
            "CREATE TABLE hits (id INTEGER)",
        ):
            self.run(statement)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        connection: Any
        path = urlsplit(self.url).path[1:]
        if self.kind == "sqlite":
            connection = sqlite3.connect(path)
        elif self.kind == "duckdb":
            import duckdb

            connection = duckdb.connect(path)
        elif self.kind == "postgres":
            import psycopg

            connection = psycopg.connect(self.url)
        else:
            import pymysql

            parts = urlsplit(self.url)
            connection = pymysql.connect(
                host=parts.hostname or "",
                port=parts.port or 0,
                user=parts.username,
                password=parts.password or "",
                database=parts.path[1:],
            )
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return list(rows)
        finally:
            connection.close()


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    kind = request.param
    if kind in ("sqlite", "duckdb"):
        return Database(kind, f"{kind}:///{tmp_path / 'shop.db'}")
    url = request.getfixturevalue("pg_database" if kind == "postgres" else "mariadb_database")
    return Database(kind, url)


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return Database("sqlite", f"sqlite:///{tmp_path / 'shop.db'}")


def test_rows_of_a_feeder_fill_the_statement_and_checks_see_the_answer(database: Database) -> None:
    target = sql(
        database.url,
        "SELECT state FROM orders WHERE id = :id AND state <> '100 % :id' -- :no",
        params=[{"id": n} for n in range(1, 101)],
        pool=3,
        checks=[
            check.row_count(at_least=1, at_most=1),
            check.that("state", lambda answer: answer.rows[0][0].startswith("state ")),
        ],
    )
    report = run_load(target, rate=100, duration=0.5)
    assert report.verdict == "pass", report.metadata["errors"]
    assert figure(report, "attempts") == figure(report, "received") == 50
    assert 1 <= figure(report, "connections") <= 3
    wrong = sql(database.url, "SELECT 1", checks=[check.row_count(at_least=2, name="two")])
    report = run_load(wrong, rate=10, duration=0.1)
    assert report.metadata["errors"] == {"check: two": 1}
    assert report.metadata["error_messages"] == {"check: two": ["the statement returned 1 rows"]}


def test_each_statement_is_a_transaction_that_is_there_afterwards(database: Database) -> None:
    target = sql(
        database.url, "INSERT INTO hits (id) VALUES (:id)", params=feed([{"id": n} for n in range(40)])
    )
    report = run_load(target, rate=100, duration=0.4)
    assert report.verdict == "pass", report.metadata["errors"]
    assert sorted(n for (n,) in database.run("SELECT id FROM hits")) == list(range(40))


def test_users_share_the_connections_of_the_pool(database: Database) -> None:
    report = run_load(sql(database.url, "SELECT 1", pool=2), users=4, duration=0.5)
    assert report.verdict == "pass", report.metadata["errors"]
    assert figure(report, "connections") <= 2
    assert figure(report, "max_in_flight") <= 2
    assert figure(report, "attempts") > 8  # more than two of each user


def test_a_statement_that_fails_is_an_error_of_its_kind_and_the_load_goes_on(database: Database) -> None:
    report = run_load(sql(database.url, "SELECT * FROM nowhere", pool=1), rate=50, duration=0.2)
    (kind,) = report.metadata["errors"]
    assert report.metadata["errors"][kind] == figure(report, "attempts") == 10
    assert "nowhere" in report.metadata["error_messages"][kind][0]
    assert figure(report, "connections") == 1


SLOW = {
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c",
    "duckdb": "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range % 7 = b.range % 5",
    "postgres": "SELECT pg_sleep(60)",
    "mariadb": "SELECT SLEEP(60)",
}


def test_a_statement_that_takes_too_long_is_a_timeout(database: Database) -> None:
    report = run_load(sql(database.url, SLOW[database.kind], pool=2), rate=10, duration=0.2, timeout=0.5)
    assert report.metadata["errors"] == {"timeout": 2}
    assert figure(report, "latency_with_errors_ms.min") >= 400
    assert report.duration_seconds < 30
    assert run_load(sql(database.url, "SELECT 1"), rate=10, duration=0.1).verdict == "pass"


def test_arrivals_wait_for_a_connection_and_that_is_part_of_their_latency(pg_database: str) -> None:
    # ten arrivals within 100 ms over one connection, each taking 50 ms: the last one waits for nine others
    report = run_load(sql(pg_database, "SELECT pg_sleep(0.05)", pool=1), rate=100, duration=0.1)
    assert figure(report, "attempts") == 10
    assert figure(report, "latency_ms.max") >= 500 - 90 - 5
    assert figure(report, "late_starts") >= 8
    assert figure(report, "max_in_flight") == 1


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_processes_share_a_load_on_a_server(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("pg_database" if kind == "postgres" else "mariadb_database")
    database = Database(kind, url)
    rows = [{"id": n} for n in range(60)]
    target = sql(url, "INSERT INTO hits (id) VALUES (:id)", params=feed(rows, order="once"))
    report = run_load(target, rate=100, duration=0.5, processes=2)
    assert report.metadata["processes"] == 2
    assert Counter(n for (n,) in database.run("SELECT id FROM hits")) == Counter(range(50))


def test_a_database_that_stops_answering_ends_the_load_with_timeouts(pg_database: str) -> None:
    proxy = MutableProxy(urlsplit(pg_database).port or 0)
    try:
        target = sql(
            pg_database.replace(f":{urlsplit(pg_database).port}/", f":{proxy.port}/"), "SELECT 1", pool=2
        )

        def mute(progress: LoadProgress) -> None:
            proxy.mute()

        from ematix_probe import probe

        @probe.load(target=target, rate=20, duration=1.5, timeout=0.3)
        def load(t: Any) -> None:
            t.error_rate_below(0.01)

        report = load.run(progress=mute)  # it is told the first time after a second
    finally:
        proxy.close()
    assert report.verdict == "fail"
    assert set(report.metadata["errors"]) <= {"timeout", "not started"}
    assert figure(report, "attempts") == 30
    assert 1 <= figure(report, "errors") < 30
    assert report.duration_seconds < 20


def test_users_do_not_wait_for_a_connection_for_ever(pg_database: str) -> None:
    report = run_load(sql(pg_database, "SELECT pg_sleep(60)", pool=1), users=3, duration=0.2, timeout=0.3)
    assert report.metadata["errors"]["timeout"] >= 1
    assert figure(report, "attempts") == 3
    assert report.duration_seconds < 20


def test_connections_that_break_are_opened_again(pg_database: str) -> None:
    import psycopg

    target = sql(pg_database, "SELECT pg_terminate_backend(pg_backend_pid())", pool=1)
    report = run_load(target, rate=50, duration=0.1)
    assert figure(report, "connections") == 5
    assert sum(report.metadata["errors"].values()) == 5
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_refuses_makes_errors_and_users_do_not_spin(scheme: str) -> None:
    with refusing_port() as port:
        report = run_load(
            sql(f"{scheme}://me:opensesame@127.0.0.1:{port}/shop", "SELECT 1"), users=2, duration=0.4
        )
    assert set(report.metadata["errors"]) == {"cannot connect"}
    assert 2 <= figure(report, "errors") <= 2 * 9
    assert "opensesame" not in str(report.to_dict())


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://192.0.2.1/shop",
        "postgresql://127.0.0.1,192.0.2.1/shop",
        "postgresql://localhost/shop?hostaddr=192.0.2.1",
        "mysql://192.0.2.1/shop",
    ],
)
def test_no_connection_is_made_to_a_host_that_nobody_allowed(url: str) -> None:
    with pytest.raises(HostNotAllowed, match=r"192\.0\.2\.1"):
        run_load(sql(url, "SELECT 1"), rate=10, duration=0.1)


def test_the_host_of_the_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "192.0.2.1")
    with pytest.raises(HostNotAllowed, match=r"192\.0\.2\.1"):
        run_load(sql("postgresql:///shop", "SELECT 1"), rate=10, duration=0.1)


def test_a_source_of_a_data_probe_names_the_database_too(sqlite: Database) -> None:
    target = sql(source.sqlite(urlsplit(sqlite.url).path[1:]), "SELECT state FROM orders")
    report = run_load(target, rate=10, duration=0.1)
    assert figure(report, "received") == 100


def test_a_database_file_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    for scheme in ("sqlite", "duckdb"):
        report = run_load(sql(f"{scheme}:///{tmp_path}/typo.db", "SELECT 1"), rate=10, duration=0.1)
        assert report.metadata["errors"] == {"cannot connect": 1}
    assert list(tmp_path.iterdir()) == []


def test_large_answers_are_read_in_pieces_and_checks_see_the_first_thousand_rows(sqlite: Database) -> None:
    many = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5000) SELECT n FROM c"
    seen: list[int] = []
    target = sql(
        sqlite.url, many, checks=[check.that("rows", lambda answer: seen.append(len(answer.rows)) or True)]
    )
    report = run_load(target, rate=10, duration=0.1)
    assert (seen, figure(report, "received")) == ([1000], 5000)


def test_a_statement_whose_answer_is_checked_is_no_longer_in_flight(sqlite: Database) -> None:
    calls, second = itertools.count(), threading.Event()

    def wait_for_the_other_user(answer: object) -> bool:
        if next(calls):
            second.set()
        return second.wait(60)

    target = sql(sqlite.url, "SELECT 1", pool=1, checks=[check.that("met", wait_for_the_other_user)])
    report = run_load(target, users=2, duration=0.2)
    assert report.verdict == "pass", report.metadata["errors"]
    assert figure(report, "max_in_flight") == 1


def test_ctrl_c_cancels_what_runs(sqlite: Database) -> None:
    # the stop signal is what the first Ctrl-C sends to every process of a load
    from ematix_probe import probe
    from ematix_probe.load.loop_timer import clock
    from ematix_probe.load.running import build_shares
    from ematix_probe.load.shares import StopSignal
    from ematix_probe.load.sql_load import run_sql_share

    started = threading.Event()

    @probe.load(target=sql(sqlite.url, SLOW["sqlite"], pool=1), users=1, duration=600, timeout=500)
    def load(t: Any) -> None:
        t.error_rate_below(1)

    (share,) = build_shares(load.plan(), ())
    stop = StopSignal()
    threading.Thread(target=lambda: (started.wait(60), stop.set()), daemon=True).start()
    result = run_sql_share(share, clock, lambda snapshot: started.set(), stop)
    assert result.interrupted
    assert result.abandoned == 1
