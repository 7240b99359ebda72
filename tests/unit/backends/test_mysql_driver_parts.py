"""The private parts of pymysql that `mysql.wire_protocol` and `mysql.connection` use, in the locked version.

A new version of the driver that lacks one fails here. Raise the cap in pyproject.toml only with this test
and the contract tests of MySQL green.
"""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import version
from pathlib import Path

import pymysql
import pytest
from pymysql.connections import MySQLResult
from pymysql.cursors import SSCursor
from pymysql.protocol import EOFPacketWrapper, FieldDescriptorPacket, MysqlPacket, OKPacketWrapper

from ematix_flow.backends.mysql.wire_protocol import GuardedConnection

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def test_the_driver_is_capped_to_the_versions_that_are_tested() -> None:
    (capped,) = PROJECT["project"]["optional-dependencies"]["mysql"]
    assert capped == "pymysql[rsa]>=1.2,<1.3"
    assert version("pymysql").startswith("1.2.")


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (pymysql.Connection, "_read_query_result", ["self", "unbuffered"]),
        (pymysql.Connection, "_read_packet", ["self", "packet_type"]),
        (pymysql.Connection, "_execute_command", ["self", "command", "sql"]),
        (pymysql.Connection, "_force_close", ["self"]),
        (pymysql.Connection, "write_packet", ["self", "payload"]),
        (SSCursor, "fetchall_unbuffered", ["self"]),
        (MysqlPacket, "__init__", ["self", "data", "encoding"]),
        (MysqlPacket, "check_error", ["self"]),
        (MysqlPacket, "get_all_data", ["self"]),
        (MysqlPacket, "is_load_local_packet", ["self"]),
        (MysqlPacket, "is_ok_packet", ["self"]),
        (MysqlPacket, "read_length_encoded_integer", ["self"]),
        (OKPacketWrapper, "__init__", ["self", "from_packet"]),
        (EOFPacketWrapper, "__init__", ["self", "from_packet"]),
    ],
)
def test_a_method_that_is_used_takes_the_same_arguments(
    owner: type, name: str, parameters: list[str]
) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_an_unopened_connection_has_the_attributes_that_are_used() -> None:
    connection = GuardedConnection(host="localhost", defer_connect=True)
    for name in ("_sock", "_rfile", "_result", "_ssl_required", "client_flag"):
        assert hasattr(connection, name), name
    assert connection._sock is None and connection._result is None


def test_a_result_says_whether_rows_are_still_to_be_read() -> None:
    assert MySQLResult(GuardedConnection(host="localhost", defer_connect=True)).unbuffered_active is False


def test_a_field_is_described_by_the_attributes_that_are_used() -> None:
    texts = b"".join(bytes([len(text)]) + text for text in (b"def", b"d", b"t", b"t", b"amount", b"amount"))
    numbers = b"\x0c" + (63).to_bytes(2, "little") + (12).to_bytes(4, "little")
    field = FieldDescriptorPacket(
        texts + numbers + b"\xf6" + (1).to_bytes(2, "little") + b"\x02\x00\x00", "utf-8"
    )
    found = (field.name, field.charsetnr, field.length, field.type_code, field.flags, field.scale)
    assert found == ("amount", 63, 12, 0xF6, 1, 2)
