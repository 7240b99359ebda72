"""A MySQL or MariaDB connection: connecting, TLS, identity, and loads that meet failures."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pytest

from ematix_flow import fault_points
from ematix_flow.backends.base import SameDatabaseRows, SourceQuery
from ematix_flow.backends.mysql import target as mysql_target
from ematix_flow.backends.mysql.failures import is_conflict
from ematix_flow.backends.registry import open_backend
from ematix_flow.errors import (
    CannotConnect,
    ConfigError,
    FlowError,
    PipelineLocked,
    RowRejected,
    SourceFailed,
    TargetFailed,
)
from ematix_flow.spec.connections import MySQLConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load, prepare
from ematix_flow.testing.samples import every_type, every_value
from tests.contract.mysql_setup import FAMILY, backend_of, read_all, server_of, sql
from tests.reading import read_table
from tests.services import mariadb as mariadb_service
from tests.services.certificates import make_certificates
from tests.services.mysql_server import MySQLServer

HOSTILE_PASSWORD = "p@ss:w/rd %#?&='\"\\ü"
TABLE = TableSpec(
    None,
    "orders",
    (
        ColumnSpec("id", DataType("big_int"), primary_key=True),
        ColumnSpec("amount", DataType("numeric", precision=12, scale=2), nullable=True),
        ColumnSpec("note", DataType("text"), nullable=True),
    ),
)


def orders(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": i, "amount": Decimal(i) / 4, "note": f"n\t{i}\\\n'"} for i in range(first, last)]


@pytest.fixture(params=FAMILY)
def server(request: pytest.FixtureRequest) -> MySQLServer:
    return server_of(request, request.param)


@pytest.fixture
def url(server: MySQLServer, request: pytest.FixtureRequest) -> str:
    product = "mariadb" if "MariaDB" in server.execute("SELECT VERSION()")[0][0] else "mysql"
    found: str = request.getfixturevalue(f"{product}_database")
    return found


# --- reaching it -----------------------------------------------------------------------------------


def test_check_names_product_version_and_address(url: str, server: MySQLServer) -> None:
    said = open_backend(MySQLConnection(name="wh", url=url)).check()
    assert said.startswith(("MySQL 9", "MariaDB 10.11"))
    assert f"127.0.0.1:{server.port}/" in said


def test_a_password_of_special_characters_works_unencoded_and_encoded(url: str, server: MySQLServer) -> None:
    quoted = HOSTILE_PASSWORD.replace("\\", "\\\\").replace("'", "''")
    server.execute("DROP USER IF EXISTS hostile")
    server.execute(f"CREATE USER hostile IDENTIFIED BY '{quoted}'")
    plain = f"mysql://hostile:{HOSTILE_PASSWORD}@127.0.0.1:{server.port}/"
    for spelt in (plain, server.url(user="hostile", password=HOSTILE_PASSWORD)):
        assert read_all(backend_of(spelt), "SELECT 1 AS one") == [{"one": 1}]
    server.execute("DROP USER hostile")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"port": 1}, "refused"),
        ({"database": "no_such_db"}, "no_such_db"),
        ({"user": "nobody_here"}, "(?i)access denied"),
        ({"password": "wrong-secret"}, "(?i)access denied"),
        ({"host": "no-such-host.invalid", "sslmode": "disable"}, "not known"),
    ],
)
def test_a_failed_connection_says_where_why_and_what_next(
    url: str, server: MySQLServer, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(CannotConnect, match=reason) as raised:
        backend_of(url, **change).check()
    assert "flow connections check wh" in str(raised.value)
    for secret in (server.password, "wrong-secret"):
        assert secret not in str(raised.value)
    assert raised.value.exit_code == 5
    assert raised.value.__cause__ is None  # the driver's own frames hold the password


def test_an_option_that_is_not_known_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        backend_of(f"{url}?no_such_option=1")


def test_two_databases_of_one_server_are_one_to_a_load(url: str, server: MySQLServer) -> None:
    same = backend_of(url).identity()
    assert backend_of(url.replace("127.0.0.1", "localhost")).identity() == same
    assert backend_of(server.url()).identity() == same


@pytest.mark.mariadb
@pytest.mark.mysql
def test_two_servers_have_two_identities(mariadb_database: str, mysql_database: str) -> None:
    assert backend_of(mariadb_database).identity() != backend_of(mysql_database).identity()


def test_what_travels_to_tasks_pickles_and_shows_no_password(url: str, server: MySQLServer) -> None:
    backend = backend_of(url)
    with backend.source().split(SourceQuery("SELECT 1 AS a"), {}, 1) as splits:
        staging = backend.target().create_staging(new_load(TABLE), TABLE.arrow_schema())
        for handle in (splits[0], staging, backend.address):
            assert server.password not in repr(handle)
            assert pickle.loads(pickle.dumps(handle)) == handle
        backend.target().drop_staging(staging)


# --- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls() -> Iterator[MySQLServer]:
    """A server with a certificate of the tests' own authority."""
    with mariadb_service.running_server(certificates=make_certificates) as server:
        yield server


def cipher(server: MySQLServer, **fields: Any) -> str:
    found = backend_of(server.url(), **fields).query("SHOW STATUS LIKE 'Ssl_cipher'")[1]
    return str(found[0][1])


@pytest.mark.mariadb
def test_a_certificate_of_the_given_authority_is_trusted(tls: MySQLServer) -> None:
    assert tls.certificates is not None
    authority = str(tls.certificates.authority)
    for mode in ("verify-full", "verify-ca", "VERIFY_IDENTITY"):
        assert cipher(tls, sslmode=mode, ssl_root_cert=authority)
    url = f"{tls.url()}?ssl_mode=VERIFY_CA&ssl_ca={authority}"
    assert backend_of(url).query("SHOW STATUS LIKE 'Ssl_cipher'")[1][0][1]


@pytest.mark.mariadb
def test_another_authority_is_refused_and_the_way_out_named(tls: MySQLServer, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    for fields in ({"ssl_root_cert": str(other.authority)}, {}):
        with pytest.raises(CannotConnect, match="certificate") as raised:
            cipher(tls, sslmode="verify-full", **fields)
        assert "ssl_root_cert" in str(raised.value)
        assert tls.password not in str(raised.value)


@pytest.mark.mariadb
def test_plain_text_is_refused_where_tls_is_required(tls: MySQLServer, mariadb: MySQLServer) -> None:
    assert cipher(tls, sslmode="require")
    with pytest.raises(CannotConnect, match="SSL") as raised:
        cipher(mariadb, sslmode="require")
    assert "sslmode" in str(raised.value)
    assert cipher(mariadb, sslmode="prefer") == ""
    assert cipher(tls, sslmode="prefer")
    assert cipher(tls, sslmode="disable") == ""


@pytest.mark.mariadb
def test_a_local_server_that_wants_tls_gets_it_unasked(tls: MySQLServer) -> None:
    assert cipher(tls) == ""
    tls.execute("SET GLOBAL require_secure_transport = ON")
    try:
        assert cipher(tls)
        with pytest.raises(CannotConnect, match=r"insecure transport|Access denied"):
            cipher(tls, sslmode="disable")
    finally:
        tls.restart()


def test_a_server_elsewhere_is_verified_by_default() -> None:
    far = backend_of("mysql://u:p@db.example.com/x")
    assert far.address.sslmode == "verify-full"
    assert backend_of("mysql://u:p@db.example.com/x", sslmode="require").address.sslmode == "require"


# --- loading without LOAD DATA LOCAL ---------------------------------------------------------------


def test_a_server_that_forbids_local_files_gets_inserts_and_the_plan_says_so(
    url: str, server: MySQLServer
) -> None:
    server.execute("SET GLOBAL local_infile = OFF")
    try:
        backend = backend_of(url)
        assert "LOAD DATA LOCAL" in backend.target().warnings()[0]
        table = every_type()
        load_rows(backend.target(), new_load(table), every_value())
        found = {row["id"]: row for row in read_table(backend, table)}
        for expected in every_value():
            assert found[expected["id"]] == expected
        many = orders(0, 20_000)
        load_rows(backend.target(), new_load(TABLE), many)
        assert read_table(backend, TABLE) == many
    finally:
        server.execute("SET GLOBAL local_infile = ON")
    assert backend_of(url).target().warnings() == ()


@pytest.mark.parametrize("infile", ["ON", "OFF"])
def test_numbers_at_the_edges_of_their_types_arrive_exactly_on_either_way(
    url: str, server: MySQLServer, infile: str
) -> None:
    kinds = {
        "tiny": (DataType("numeric", precision=38, scale=30), ["0.000000012345678901234567890123", "-1E-30"]),
        "long": (DataType("numeric", precision=38, scale=0), ["9" * 38, "-" + "9" * 38]),
        "half": (DataType("numeric", precision=38, scale=19), ["9" * 19 + "." + "9" * 19, "-0." + "1" * 19]),
        "double": (DataType("double"), [1.7976931348623157e308, 2.2250738585072014e-308, 0.1 + 0.2, 2.0**68]),
        "float": (DataType("float"), [16777216.0, 1.1754943508222875e-38, -0.10000000149011612, 2.0**68]),
    }
    columns = tuple(ColumnSpec(name, kind, nullable=True) for name, (kind, _) in kinds.items())
    table = TableSpec(None, "edges", (ColumnSpec("id", DataType("integer"), primary_key=True), *columns))
    values = {
        name: [Decimal(value) if isinstance(value, str) else value for value in found]
        for name, (_, found) in kinds.items()
    }
    rows = [{"id": i, **{n: (v[i] if i < len(v) else None) for n, v in values.items()}} for i in range(4)]
    server.execute(f"SET GLOBAL local_infile = {infile}")
    try:
        backend = backend_of(url)
        load_rows(backend.target(), new_load(table), rows)
    finally:
        server.execute("SET GLOBAL local_infile = ON")
    assert read_table(backend, table) == rows


def test_a_server_that_forbids_it_only_now_gets_inserts_too(url: str, server: MySQLServer) -> None:
    backend = backend_of(url)
    assert backend.server.facts.local_infile
    server.execute("SET GLOBAL local_infile = OFF")
    try:
        load_rows(backend.target(), new_load(TABLE), orders(0, 3))
    finally:
        server.execute("SET GLOBAL local_infile = ON")
    assert read_table(backend, TABLE) == orders(0, 3)


# --- values that do not fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DataType("double"), math.nan),
        (DataType("float"), math.inf),
        (DataType("uuid"), "no-uuid"),
        (DataType("json"), "{broken"),
    ],
)
def test_a_value_that_mysql_cannot_hold_is_refused_by_column(url: str, kind: DataType, value: Any) -> None:
    table = TableSpec(None, "t", (ColumnSpec("id", DataType("integer")), ColumnSpec("odd", kind)))
    target = backend_of(url).target()
    with pytest.raises((RowRejected, TargetFailed), match=r"odd|CONSTRAINT|[Jj][Ss][Oo][Nn]"):
        load_rows(target, new_load(table), [{"id": 1, "odd": value}])
    assert read_table(backend_of(url), table) == []


def test_a_repeated_key_is_refused_and_changes_nothing(url: str) -> None:
    backend = backend_of(url)
    load_rows(backend.target(), new_load(TABLE), orders(0, 3))
    with pytest.raises(RowRejected, match="Duplicate entry"):
        load_rows(backend.target(), new_load(TABLE), orders(2, 5))
    assert read_table(backend, TABLE) == orders(0, 3)


def test_a_key_that_is_longer_than_mysql_keeps_is_refused_and_never_cut(url: str) -> None:
    table = TableSpec(None, "t", (ColumnSpec("code", DataType("text"), primary_key=True),))
    backend = backend_of(url)
    load_rows(backend.target(), new_load(table), [{"code": "a"}, {"code": "a "}, {"code": "A"}])
    with pytest.raises(RowRejected, match="code"):
        load_rows(backend.target(), new_load(table), [{"code": "x" * 256}])
    assert sorted(row["code"] for row in read_table(backend, table)) == ["A", "a", "a "]


def test_nothing_is_rounded_within_one_server(url: str) -> None:
    sql(url, "CREATE TABLE s (id int, amount decimal(60,4))")
    sql(url, "INSERT INTO s VALUES (1, 1.2500), (2, 1.2345)")
    backend = backend_of(url)
    prepare(backend.target(), TABLE)
    rows = "SELECT id, amount, NULL AS note FROM s"
    backend.target().apply(new_load(TABLE), SameDatabaseRows(f"{rows} WHERE id = 1"))
    with pytest.raises(RowRejected, match=r"'amount'.*more digits"):
        backend.target().apply(new_load(TABLE), SameDatabaseRows(f"{rows} WHERE id = 2"))
    assert read_table(backend, TABLE) == [{"id": 1, "amount": Decimal("1.25"), "note": None}]


def test_wrong_sql_of_a_same_database_load_is_the_sources_fault(url: str) -> None:
    target = backend_of(url).target()
    prepare(target, TABLE)
    with pytest.raises(SourceFailed, match="nowhere"):
        target.apply(new_load(TABLE), SameDatabaseRows("SELECT * FROM nowhere"))


# --- queries of a pipeline's own -------------------------------------------------------------------


def test_a_query_reads_no_more_rows_than_were_asked_for(url: str) -> None:
    backend = backend_of(url)
    ten = " UNION ALL ".join(["SELECT 1"] * 10)
    many = " CROSS JOIN ".join(f"({ten}) AS t{i}" for i in range(9))
    # its own LIMIT overrides the session's setting
    select = f"SELECT 'x' AS a, 1 AS b FROM {many} LIMIT 1000000000"
    assert backend.query(select, 2) == (["a", "b"], [("x", 1), ("x", 1)])
    assert backend.query("SELECT 1 AS a WHERE 1 = 0") == (["a"], [])
    assert backend.query("SELECT 1 AS a UNION ALL SELECT 2") == (["a"], [(1,), (2,)])
    with pytest.raises(SourceFailed, match="BIGINT"):
        backend.query("SELECT 9223372036854775807 + (SELECT 1) AS a")


# --- rights ----------------------------------------------------------------------------------------


def test_a_database_that_may_not_be_created_is_asked_for_by_name(url: str, server: MySQLServer) -> None:
    database = url.rpartition("/")[2]
    server.execute("DROP USER IF EXISTS plain")
    server.execute("CREATE USER plain IDENTIFIED BY 'plain-secret'")
    server.execute(f"GRANT ALL ON `{database}`.* TO plain")
    backend = backend_of(server.url(database, user="plain", password="plain-secret"))
    with pytest.raises(TargetFailed, match=r"'ematix_flow'.*'plain'") as raised:
        prepare(backend.target(), TABLE)
    assert "CREATE DATABASE" in str(raised.value)
    server.execute("DROP USER plain")


# --- lock, ledger, crashes -------------------------------------------------------------------------


def test_the_holder_of_a_lock_is_shown(url: str) -> None:
    target = backend_of(url).target()
    other = backend_of(url).target()
    with (
        target.lock(PIPELINE, TARGET, uuid.uuid4()),
        pytest.raises(PipelineLocked) as raised,
        other.lock(PIPELINE, TARGET, uuid.uuid4()),
    ):
        pass
    assert "'tester'" in str(raised.value)
    assert "KILL" in str(raised.value)


def test_the_next_run_need_not_wait_until_the_server_has_seen_the_last_one_go(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclosed: list[pymysql.Connection[Any]] = []
    with monkeypatch.context() as slow:
        slow.setattr(pymysql.Connection, "close", lambda self: unclosed.append(self))
        for _ in range(2):
            with backend_of(url).target().lock(PIPELINE, TARGET, uuid.uuid4()):
                pass
    for connection in unclosed:
        connection.close()
    assert len(unclosed) == 2


def test_databases_of_one_server_share_no_lock_and_no_ledger(url: str, server: MySQLServer) -> None:
    other = server.url(server.create_database("other"))
    first, second = backend_of(url).target(), backend_of(other).target()
    with first.lock(PIPELINE, TARGET, uuid.uuid4()), second.lock(PIPELINE, TARGET, uuid.uuid4()):
        load_rows(first, new_load(TABLE, batch_key="slot:1"), orders(0, 2))
        again = load_rows(second, new_load(TABLE, batch_key="slot:1"), orders(0, 3))
    assert not again.duplicate
    assert [entry.rows.read for entry in first.ledger(PIPELINE, TARGET)] == [2]
    assert read_table(backend_of(other), TABLE) == orders(0, 3)


def test_a_batch_key_of_any_length_is_kept_whole_and_found_again(url: str) -> None:
    target = backend_of(url).target()
    key = "k" * 5_000
    load_rows(target, new_load(TABLE, batch_key=f"{key}1"), orders(0, 1))
    load_rows(target, new_load(TABLE, batch_key=f"{key}2"), orders(1, 2))
    assert load_rows(target, new_load(TABLE, batch_key=f"{key}2"), orders(2, 3)).duplicate
    assert [e.batch_key for e in target.ledger(PIPELINE, TARGET)] == [f"{key}2", f"{key}1"]


@pytest.mark.fault
@pytest.mark.parametrize("point", ["apply.began", "apply.rows_written", "apply.before_commit"])
def test_a_server_that_dies_in_mid_load_has_all_or_nothing_and_the_next_run_finishes(
    url: str, server: MySQLServer, point: str
) -> None:
    backend = backend_of(url)
    load_rows(backend.target(), new_load(TABLE), orders(0, 100))
    load = new_load(TABLE, "truncate", max_shrink=1.0)
    with (
        pytest.raises(TargetFailed) as raised,
        backend.target().lock(PIPELINE, TARGET, load.run_id),
        fault_points.inject(point, _killing(server)),
    ):
        load_rows(backend.target(), load, orders(50, 80), drop=False)
    server.start()
    fresh = backend_of(url)
    assert fresh.target().ledger(PIPELINE, TARGET, run_id=str(load.run_id)) == [], raised.value
    assert read_table(fresh, TABLE) == orders(0, 100)
    with fresh.target().lock(PIPELINE, TARGET, uuid.uuid4()):
        assert fresh.target().sweep_staging(PIPELINE, TARGET)
        load_rows(fresh.target(), replace(load, run_id=uuid.uuid4()), orders(50, 80))
    assert read_table(fresh, TABLE) == orders(50, 80)


@pytest.mark.fault
def test_a_commit_whose_answer_was_lost_leaves_it_to_the_ledger(url: str) -> None:
    import pymysql

    from ematix_flow.backends.mysql.session import open_session

    with open_session(backend_of(url).address) as session:
        session.begin()
        session.connection._sock.close()
        session.connection._rfile.close()
        with pytest.raises(TargetFailed) as raised:
            session.commit()
    assert "ledger" in str(raised.value)
    assert isinstance(raised.value.__cause__, (pymysql.MySQLError, OSError, ValueError))


def test_a_load_whose_rows_another_session_locks_is_retried(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session locks the rows until the first try has timed out."""
    import threading

    backend = backend_of(url)
    load_rows(backend.target(), new_load(TABLE), orders(0, 10))
    began, conflicted = threading.Event(), threading.Event()

    def observed(error: FlowError) -> bool:
        if is_conflict(error):
            conflicted.set()
        return is_conflict(error)

    monkeypatch.setattr(mysql_target, "is_conflict", observed)

    def hold() -> None:
        from contextlib import closing

        from ematix_flow.backends.mysql.connection import connect

        with closing(connect(backend.address)) as connection, connection.cursor() as cursor:
            connection.begin()
            cursor.execute("UPDATE orders SET note = 'held'")
            began.set()
            conflicted.wait(60)
            connection.rollback()

    sql(url, "SET GLOBAL innodb_lock_wait_timeout = 1")
    thread = threading.Thread(target=hold)
    try:
        thread.start()
        began.wait(10)
        applied = load_rows(backend.target(), new_load(TABLE, "truncate"), orders(0, 9))
    finally:
        thread.join()
        sql(url, "SET GLOBAL innodb_lock_wait_timeout = 50")
    assert conflicted.is_set()
    assert (applied.rows.deleted, applied.rows.inserted) == (10, 9)
    assert read_table(backend, TABLE) == orders(0, 9)


def test_times_are_utc_in_any_zone_of_the_server(url: str, server: MySQLServer) -> None:
    before = server.execute("SELECT @@GLOBAL.time_zone")[0][0]
    server.execute("SET GLOBAL time_zone = '+09:00'")
    try:
        select = "SELECT TIMESTAMP '2024-01-01 00:00:00' AS at, @@SESSION.time_zone AS zone"
        assert read_all(backend_of(url), select) == [{"at": dt.datetime(2024, 1, 1), "zone": "+00:00"}]
    finally:
        server.execute(f"SET GLOBAL time_zone = '{before}'")


def _killing(server: MySQLServer) -> Any:
    return lambda: server.stop(crash=True)
