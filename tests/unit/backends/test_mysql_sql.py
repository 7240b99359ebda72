"""What MySQL's backend decides without a server: types both ways, names, keys, TLS, errors in words."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from sqlglot import exp

from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.create_table import with_key_lengths
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.failures import diagnose, find_rejection, is_conflict, target_failure
from ematix_flow.backends.mysql.insert_values import insert_values
from ematix_flow.backends.mysql.names import parse_table_name, require_names
from ematix_flow.backends.mysql.row_text import encode_rows
from ematix_flow.errors import ConfigError, RowRejected, SchemaMismatch, SourceFailed, TargetFailed
from ematix_flow.spec.connections import MySQLConnection
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import KINDS, DataType
from ematix_flow.strategies.functions.zone_offsets import utc_offsets
from ematix_flow.strategies.sql import ascending, column


class Here:
    collation = "utf8mb4_0900_bin"
    is_mariadb = False


DIALECT = MySQLDialect(Here())
TEXT, BIG = DataType("text"), DataType("big_int")


def of_kind(kind: str) -> DataType:
    if kind == "string":
        return DataType(kind, length=20)
    return DataType(kind, precision=12, scale=2) if kind == "numeric" else DataType(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_we_made_holds_what_was_declared(kind):
    declared = of_kind(kind)
    native = DIALECT.native_type(declared).lower().partition(" character")[0]
    assert DIALECT.can_hold(declared, TEXT, native)


@pytest.mark.parametrize(
    ("declared", "native", "holds"),
    [
        (DataType("integer"), "int(11)", True),
        (DataType("integer"), "int(10) unsigned", False),
        (BIG, "bigint(20)", True),
        (DataType("timestamp_tz"), "timestamp(6)", True),
        (DataType("timestamp"), "timestamp(6)", False),
        (DataType("timestamp"), "datetime", False),
        (DataType("json"), "longtext", True),
        (TEXT, "mediumtext", False),
        (DataType("string", length=20), "varchar(20) collate utf8mb4_general_ci", False),
        (DataType("boolean"), "tinyint(4)", False),
        (DataType("numeric", precision=40 - 2, scale=2), "decimal(60,2)", False),
    ],
)
def test_a_live_column_is_taken_for_what_it_holds(declared, native, holds):
    assert DIALECT.can_hold(declared, TEXT, native) is holds


def test_text_and_bytes_in_keys_get_a_length_that_fits():
    columns = [ColumnSpec(name, TEXT, primary_key=True) for name in "abcd"]
    columns += [ColumnSpec("at", DataType("timestamp"), primary_key=True), ColumnSpec("free", TEXT)]
    sized = with_key_lengths(TableSpec(None, "t", tuple(columns)))
    assert {c.type.length for c in sized.columns if c.primary_key and c.name != "at"} == {190}
    assert sized.column("free").type == TEXT
    lone = with_key_lengths(TableSpec(None, "t", (ColumnSpec("a", DataType("bytes"), primary_key=True),)))
    assert DIALECT.native_type(lone.column("a").type) == "VARBINARY(255)"


@pytest.mark.parametrize("name", ["\U0001f600", "x" * 65, "trailing "])
def test_names_that_mysql_cannot_keep_are_refused(name):
    with pytest.raises(SchemaMismatch, match="name"):
        require_names(TableSpec(None, "t", (ColumnSpec(name, TEXT),)))


def test_a_name_may_hold_dots_and_quotes_when_it_is_quoted():
    assert parse_table_name("shop.orders") == ["shop", "orders"]
    assert parse_table_name("`a.b`.`c``d`") == ["a.b", "c`d"]
    assert parse_table_name('"x"') == ["x"]
    with pytest.raises(SourceFailed):
        parse_table_name("a.b.c")


def test_updates_and_deletes_are_joined():
    target, source = DIALECT.table("shop", "orders"), DIALECT.table("st", "w")
    condition = column("id", "t").eq(column("id", "s"))
    update = DIALECT.update_from(target, source, {"a": column("a", "s")}, condition)
    assert DIALECT.render(update) == (
        "UPDATE `shop`.`orders` AS `_ematix_t` INNER JOIN `st`.`w` AS `_ematix_s` "
        "ON `_ematix_t`.`id` = `_ematix_s`.`id` "
        "SET `_ematix_t`.`a` = `_ematix_s`.`a`"
    )
    delete = DIALECT.delete_from(target, source, {"id": "id"}, None)
    assert DIALECT.render(delete) == (
        "DELETE `shop`.`orders` FROM `shop`.`orders` INNER JOIN `st`.`w` AS `_ematix_s`"
        " ON `shop`.`orders`.`id` = `_ematix_s`.`id`"
    )


def test_rows_are_written_as_load_data_reads_them():
    batch = pa.record_batch(
        {"a": ["x\ty", None, "\\N"], "b": [b"\x00\xff", b"", None], "c": [True, None, False]}
    )
    assert bytes(encode_rows(batch, "7")) == b"x\\ty\t00FF\t1\t7\n\\N\t\t\\N\t7\n\\\\N\t\\N\t0\t7\n"
    assert bytes(encode_rows(batch.slice(1, 1), "7")) == b"\\N\t\t\\N\t7\n"


def test_rows_are_written_as_constants_where_files_are_forbidden():
    batch = pa.record_batch({"a": ["it's \\", None], "b": [b"\x01", None], "c": [5, None], "d": [True, None]})
    batch = batch.append_column("e", pa.array([Decimal("0.000000012"), None]))
    batch = batch.append_column("f", pa.array([1.5, None]))
    assert list(insert_values(batch, 7)) == [
        b"('it''s \\\\',x'01',5,1,'1.2E-8',1.5,7),(NULL,NULL,NULL,NULL,NULL,NULL,7)"
    ]


@pytest.mark.parametrize(
    ("url", "fields", "mode"),
    [
        ("mysql://u:p@localhost/d", {}, "allow"),
        ("mysql://u:p@127.0.0.1/d", {}, "allow"),
        ("mysql://u:p@db.example.com/d", {}, "verify-full"),
        ("mysql://u:p@db.example.com/d?ssl_mode=REQUIRED", {}, "require"),
        ("mysql://u:p@db.example.com/d?ssl-mode=DISABLED", {}, "disable"),
        ("mysql://u:p@db.example.com/d", {"sslmode": "VERIFY_CA"}, "verify-ca"),
        ("mysql://u:p@db.example.com/d?unix_socket=/run/s.sock", {}, "allow"),
    ],
)
def test_a_server_elsewhere_is_verified_by_default(url, fields, mode):
    address = parse_address(MySQLConnection(name="x", url=url, **fields))
    assert address.sslmode == mode
    assert "p@" not in repr(address)


@pytest.mark.parametrize("option", ["sslmode=perhaps", "no_such=1", "connect_timeout=soon"])
def test_a_wrong_option_is_named(option):
    with pytest.raises(ConfigError, match=option.partition("=")[0]):
        parse_address(MySQLConnection(name="x", url=f"mysql://h/d?{option}"))


@pytest.mark.parametrize(
    ("number", "message", "kind", "word"),
    [
        (1062, "Duplicate entry '1' for key 'orders.PRIMARY'", RowRejected, "Duplicate"),
        (1406, "Data too long for column 'c0' at row 3", RowRejected, "'name'"),
        (
            1366,
            "Incorrect integer value: 'x' for column `d`.`_ematix_t`.`c0` at row 1",
            RowRejected,
            "'name'",
        ),
        (1048, "Column 'c0' cannot be null", RowRejected, "'name'"),
        (1213, "Deadlock found when trying to get lock", TargetFailed, "Deadlock"),
        (2013, "Lost connection to MySQL server during query", TargetFailed, "broke"),
        (1044, "Access denied for user 'u'@'%' to database 'd'", TargetFailed, "GRANT"),
    ],
)
def test_an_error_of_the_server_becomes_ours(number, message, kind, word):
    import pymysql

    cause = pymysql.err.OperationalError(number, message)
    failure = target_failure(cause, {"c0": "name"})
    assert isinstance(failure, kind)
    assert word in str(failure)
    failure.__cause__ = cause
    assert is_conflict(failure) is (number == 1213)
    assert diagnose(cause).connection_lost is (number == 2013)


def test_a_refusal_of_ours_is_found_even_when_it_was_cut():
    whole = "User-level lock name '<<ematix_flow: column 'n': 'x' is not a number>>   ' should not exceed"
    assert find_rejection(whole) == "column 'n': 'x' is not a number"
    assert (
        find_rejection("Identifier name '<<ematix_flow: column 'n': 'xx...' is too long")
        == "column 'n': 'xx…"
    )
    assert find_rejection("connection refused") is None


def test_the_offsets_of_a_zone_follow_its_rules():
    import datetime as dt
    from bisect import bisect_right
    from zoneinfo import ZoneInfo

    zone = "America/New_York"
    found = utc_offsets(zone)
    starts = [start for start, _ in found]
    for moment in (dt.datetime(1850, 1, 1), dt.datetime(1943, 7, 1), dt.datetime(2026, 3, 8, 6, 59, 59)):
        for later in (dt.timedelta(), dt.timedelta(seconds=1), dt.timedelta(days=200)):
            at = moment + later
            since = int((at - dt.datetime(1, 1, 1)).total_seconds())
            offset = at.replace(tzinfo=dt.timezone.utc).astimezone(ZoneInfo(zone)).utcoffset()
            assert offset is not None
            assert found[bisect_right(starts, since) - 1][1] == offset.total_seconds()


def test_an_order_without_nulls_has_no_warning(caplog):
    window = exp.Window(
        this=exp.Lag(this=exp.column("a")), order=exp.Order(expressions=[ascending(exp.column("b"))])
    )
    assert DIALECT.render(window) == "LAG(`a`) OVER (ORDER BY `b`)"
    assert caplog.messages == []
