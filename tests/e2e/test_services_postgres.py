"""The tests' own PostgreSQL server: private, restartable, and gone when its owner is."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.services.postgres import PostgresServer
from tests.services.shared import private_server

postgres = private_server("postgres")  # tests here stop it

REPOSITORY = Path(__file__).resolve().parents[2]


def test_each_test_gets_an_empty_database(postgres: PostgresServer, pg_database: str) -> None:
    with psycopg.connect(pg_database) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert tables == (0,)


def test_a_dropped_database_is_gone_even_while_someone_is_connected(postgres: PostgresServer) -> None:
    name = postgres.create_database("a hint, with ünusual characters")
    with psycopg.connect(postgres.url(name)):
        postgres.drop_database(name)
    assert (name,) not in postgres.execute("SELECT datname FROM pg_database")


def test_the_server_can_be_read_by_logical_replication(postgres: PostgresServer) -> None:
    assert postgres.execute("SHOW wal_level") == [("logical",)]


def test_a_wrong_password_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="authentication"):
        psycopg.connect(postgres.url(password="p@ss/w:rd"))


@pytest.mark.fault
@pytest.mark.parametrize("crash", [False, True])
def test_committed_rows_outlive_a_restart_on_the_same_url(
    postgres: PostgresServer, pg_database: str, crash: bool
) -> None:
    with psycopg.connect(pg_database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
    postgres.stop(crash=crash)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(pg_database, connect_timeout=5)
    postgres.start()
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]


OWNER = """
import time
from tests.services.postgres import running_server
with running_server() as server:
    print(server.port, server.folder, flush=True)
    time.sleep(120)
"""


@pytest.mark.fault
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_the_process_that_started_it(end: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER]
    owner = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout is not None
    with owner.stdout as output:
        port, folder = output.readline().split()
    assert _answers(int(port))
    owner.send_signal(end)
    owner.wait(60)
    deadline = time.monotonic() + 30
    while _answers(int(port)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _answers(int(port))
    if end is signal.SIGINT:
        assert not Path(folder).exists()
    else:
        shutil.rmtree(folder)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True
