"""A server that asks for a file of this machine: LOAD DATA LOCAL sends rows of ours and nothing else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ematix_flow.backends.mysql.address import parse_address
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.wire_protocol import (
    describe_statement,
    fetch_first_rows,
    load_data_local,
    stream_columns,
)
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import MySQLConnection

OK = b"\x00\x00\x00\x02\x00\x00\x00"
GREETING = b"\x0a9.9.9\x00" + struct.pack("<I", 1) + b"12345678\x00" + struct.pack("<H", 0xF7FF)
GREETING += b"\x2d" + struct.pack("<HH", 2, 0x000F) + b"\x15" + bytes(10) + b"123456789012\x00"
GREETING += b"mysql_native_password\x00"
STATEMENT = "LOAD DATA LOCAL INFILE 'mine' INTO TABLE t"


class Asking:
    """Accepts every login and setting, and then answers each statement by requesting ``path``."""

    def __init__(self, path: bytes, *, at_once: bool) -> None:
        self.heard: list[bytes] = []
        self._path = path
        self._at_once = at_once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rwb") as line:
            _send(line, 0, GREETING)
            login, number = _receive(line)
            _send(line, number + 1, OK)
            while login:
                said, number = _receive(line)
                if said is None:
                    return
                self.heard.append(said)
                is_statement, is_piece = number == 0, number > 0 and said
                asks = is_statement and (self._at_once or b"SET " not in said)
                if not is_piece:
                    _send(line, number + 1, b"\xfb" + self._path if asks else OK)

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)


def _send(line, number: int, payload: bytes) -> None:
    line.write(struct.pack("<I", len(payload))[:3] + bytes([number % 256]) + payload)
    line.flush()


def _receive(line) -> tuple[bytes | None, int]:
    """A packet and its number; None where the client has gone."""
    try:
        header = line.read(4)
        return (line.read(int.from_bytes(header[:3], "little")), header[3]) if header else (None, 0)
    except OSError:
        return None, 0


@contextmanager
def asking(path: Path | str, *, at_once: bool = False) -> Iterator[Asking]:
    server = Asking(str(path).encode(), at_once=at_once)
    try:
        yield server
    finally:
        server.close()


def opened(server: Asking):
    url = f"mysql://u:p@127.0.0.1:{server.port}/d"
    return open_connection(parse_address(MySQLConnection(name="x", url=url)), local_infile=True)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("very secret")
    return path


@pytest.mark.parametrize(
    "statement",
    [
        lambda connection: connection.query("SELECT 1"),
        lambda connection: fetch_first_rows(connection, "SELECT 1", None),
        lambda connection: describe_statement(connection, "SELECT 1"),
        lambda connection: list(stream_columns(connection, "SELECT 1", 1)),
        lambda connection: load_data_local(connection, STATEMENT, "mine", [b"rows"]),
    ],
)
def test_no_answer_to_any_statement_makes_us_send_a_file(secret, statement):
    with asking(secret) as server, opened(server) as connection:
        with pytest.raises(DriverError, match="asked for a file"):
            statement(connection)
        assert not connection.open
    assert not [said for said in server.heard if b"secret" in said or b"rows" in said]


def test_a_server_that_asks_while_we_connect_gets_no_file(secret):
    with asking(secret, at_once=True) as server, pytest.raises(CannotConnect), opened(server):
        pass
    assert not [said for said in server.heard if b"very secret" in said]


def test_the_file_that_we_named_is_made_of_our_rows():
    with asking("mine") as server, opened(server) as connection:
        load_data_local(connection, STATEMENT, "mine", [b"rows"])
    assert server.heard[-3:-1] == [b"rows", b""]
