"""Opening connections: psycopg for control, ADBC for bulk rows, from one address that pickles.

Every session speaks UTC and UTF-8 and calls itself ``ematix-flow``. A connection that cannot be had
raises CannotConnect with the address, the reason and the next step, never the password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from ematix_flow.backends.postgres.failures import ADBC_ERRORS
from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections import PostgresConnection, dsn_parts, libpq_parameters

APPLICATION = "ematix-flow"
DEFAULT_PORT = 5432

# a load may be silent for long on its control connection: keep what lies between from forgetting it
_DEFAULTS = {
    "application_name": APPLICATION,
    "client_encoding": "UTF8",
    "connect_timeout": "15",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "6",
}
_SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "standard_conforming_strings": "on",
    "idle_in_transaction_session_timeout": "0",
}
_REASON_PREFIX = re.compile(
    r"^(?:connection (?:failed|is bad): )?(?:connection to server .*? failed: )?(?:FATAL: +)?"
)


@dataclass(frozen=True, repr=False)
class Address:
    """Where and as whom to connect. Pickles with its password, shows none."""

    name: str
    label: str
    user: str | None
    parameters: Mapping[str, str] = field(compare=False)

    def __repr__(self) -> str:
        return f"Address({self.name!r}, {self.label!r}, user={self.user!r})"

    def conninfo(self, **extra: str) -> str:
        try:
            return make_conninfo("", **{**_DEFAULTS, **self.parameters, **extra})
        except psycopg.ProgrammingError as error:
            raise ConfigError(
                f"connection {self.name!r} cannot be used: {error}",
                next_step="mend the options after the ? of its url",
            ) from None


def address_of(connection: PostgresConnection) -> Address:
    """The address of an expanded connection."""
    parts = dsn_parts(connection)
    hosts = parts.hosts or (("", None),)
    shown = ",".join(f"{host or 'localhost'}:{port or DEFAULT_PORT}" for host, port in hosts)
    database = parts.database or parts.user or ""
    return Address(connection.name, f"{shown}/{database}", parts.user, libpq_parameters(connection))


@contextmanager
def control(address: Address, **extra: str) -> Iterator[psycopg.Connection[Any]]:
    """A psycopg connection without transaction of its own; closed at the end."""
    try:
        connection = psycopg.connect(address.conninfo(**extra), autocommit=True)
    except psycopg.OperationalError as error:
        raise cannot_connect(address, error) from error
    with closing(connection):
        chosen = settings(connection.info.server_version)
        calls = ", ".join(["set_config(%s, %s, false)"] * len(chosen))
        connection.execute(f"SELECT {calls}", [part for pair in chosen.items() for part in pair])
        yield connection


@contextmanager
def bulk(address: Address) -> Iterator[Any]:
    """An ADBC connection inside a transaction; without a commit, nothing that was written stays.

    Typed Any: the driver's package carries no types.
    """
    import adbc_driver_postgresql.dbapi

    try:
        connection = adbc_driver_postgresql.dbapi.connect(address.conninfo(), autocommit=False)
    except ADBC_ERRORS as error:
        raise cannot_connect(address, error) from error
    try:
        yield connection
    finally:
        connection.close()


def settings(server_version: int) -> dict[str, str]:
    """What every session of ours sets."""
    return _SETTINGS | ({"idle_session_timeout": "0"} if server_version >= 140000 else {})


def execute_bulk(connection: Any, sql: str) -> None:
    """One statement without a result on an ADBC connection."""
    with connection.cursor() as cursor:
        cursor.execute(sql)


def cannot_connect(address: Address, error: Exception) -> CannotConnect:
    lines = str(error).removeprefix("IO: [libpq] Failed to connect: ").strip().splitlines()
    reason = _REASON_PREFIX.sub("", lines[0]) if lines else type(error).__name__
    user = f" as user {address.user!r}" if address.user else ""
    check = f"flow connections check {address.name}"
    advice = _advice(reason)
    return CannotConnect(
        f"connection {address.name!r} cannot reach PostgreSQL at {address.label}{user}: {reason}",
        next_step=f"{advice}, then  {check}" if advice else check,
    )


def _advice(reason: str) -> str | None:
    lowered = reason.lower()
    if "does not support ssl" in lowered:
        return 'have TLS switched on at the server, or set sslmode = "disable" if the network is trusted'
    if "certificate" in lowered:
        return "give the server's authority as ssl_root_cert, or choose another sslmode"
    if "authentication failed" in lowered or "no password supplied" in lowered:
        return "mend user and password"
    if "does not exist" in lowered:
        return "mend the name in the url"
    if any(word in lowered for word in ("refused", "timeout", "resolve", "translate host", "unreachable")):
        return "see that the server runs and that host and port are right"
    return None
