"""Opens connections, with the settings of every session: UTC, strict mode, long timeouts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from ematix_flow.backends.mysql.address import APPLICATION, MySQLAddress, connect_error
from ematix_flow.backends.mysql.wire_protocol import GuardedConnection

DriverError = pymysql.err.MySQLError

# a value that does not fit is an error and never cut. The user's other modes stay, except that a backslash
# must escape: generated constants rely on it
_STRICT = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION"
_MODE = f"CONCAT_WS(',', NULLIF(REPLACE(@@sql_mode, 'NO_BACKSLASH_ESCAPES', ''), ''), '{_STRICT}')"
_SETTINGS = (
    f"sql_mode = {_MODE}",
    "time_zone = '+00:00'",
    # a slow source or target at the other end may keep this connection waiting
    "net_read_timeout = 3600",
    "net_write_timeout = 3600",
    "wait_timeout = 604800",
    "group_concat_max_len = 4294967295",
)
_GRACE_SECONDS = 5.0  # the server's own timeout error says more, so it comes first
_TLS_REQUIRED = ((1045,), (3159,))  # the account or the server requires it
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


@contextmanager
def open_connection(
    address: MySQLAddress, *, program: str = APPLICATION, local_infile: bool = False
) -> Iterator[pymysql.Connection[Any]]:
    """An autocommit connection; closed at the end, which rolls back an open transaction."""
    connection = connect(address, program=program, local_infile=local_infile)
    try:
        yield connection
    finally:
        with suppress(pymysql.MySQLError, OSError):
            connection.close()


def connect(
    address: MySQLAddress,
    *,
    program: str = APPLICATION,
    local_infile: bool = False,
    seconds: float | None = None,
) -> pymysql.Connection[Any]:
    """Open a connection. Mode ``allow``, the default on this machine, uses TLS if the server requires it.

    With ``seconds`` no statement waits longer for a lock, nor much longer for the server.
    """
    limit = None if seconds is None else seconds + _GRACE_SECONDS
    try:
        if address.sslmode != "allow":
            connection = _open(address, program, local_infile, limit, tls=address.sslmode != "disable")
        else:
            try:
                connection = _open(address, program, local_infile, limit, tls=False)
            except pymysql.MySQLError as refused:
                if refused.args[:1] not in _TLS_REQUIRED:
                    raise
                try:
                    connection = _open(address, program, local_infile, limit, tls=True)
                except pymysql.MySQLError:
                    raise refused from None
    except (pymysql.MySQLError, OSError, RuntimeError, ValueError) as error:
        raise connect_error(address, error) from None  # the driver's traceback contains the password
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {', '.join((*_SETTINGS, *_lock_timeouts(seconds)))}")
    except pymysql.MySQLError as error:
        connection.close()
        raise connect_error(address, error) from None
    _keep_alive(connection)
    return connection


def _open(
    address: MySQLAddress, program: str, local_infile: bool, limit: float | None, *, tls: bool
) -> pymysql.Connection[Any]:
    flags = CLIENT.FOUND_ROWS  # an UPDATE counts matched rows
    if local_infile:  # tell the server, but not the driver, which would open any file the server asks for
        flags |= CLIENT.LOCAL_FILES
    connection = GuardedConnection(
        host=address.host,
        port=address.port,
        unix_socket=address.unix_socket,
        user=address.user or "",
        password=(address.password or "").encode(),  # the driver itself would encode it as latin1
        database=address.database or None,
        charset="utf8mb4",
        autocommit=True,
        local_infile=False,
        connect_timeout=address.connect_timeout,
        read_timeout=limit,
        write_timeout=limit,
        client_flag=flags,
        ssl=address.tls_context() if tls else None,
        ssl_disabled=not tls,
        program_name=program,
        defer_connect=True,
    )
    if tls and address.sslmode == "prefer":
        connection._ssl_required = False
        connection.client_flag &= ~CLIENT.SSL
    connection.connect()
    return connection


def _lock_timeouts(seconds: float | None) -> tuple[str, ...]:
    """Time limits for table locks and for row locks."""
    if seconds is None:
        return ()
    whole = max(1, round(seconds))
    return f"lock_wait_timeout = {whole}", f"innodb_lock_wait_timeout = {whole}"


def _keep_alive(connection: Any) -> None:
    """Set TCP keepalives: a load may be silent for long, and proxies drop silent connections."""
    peer = connection._sock
    if is_tcp_socket(peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_tcp_socket(peer: Any) -> bool:
    return peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6)
