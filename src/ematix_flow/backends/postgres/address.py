"""Where and as whom to connect, and how a connection that cannot be had is told.

Imports no driver: tasks import this module, and start with the least.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import PostgresConnection, dsn_parts, libpq_parameters

APPLICATION = "ematix-flow"
READER_APPLICATION = f"{APPLICATION} reading"  # of sessions whose transactions cannot write
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
IDLE_TIMEOUT_SINCE = 140000
_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_REASON_PREFIX = re.compile(
    r"^(?:IO: \[libpq\] Failed to connect: )?"
    r"(?:connection (?:failed|is bad): )?(?:connection to server .*? failed: )?(?:FATAL: +)?"
)


@dataclass(frozen=True, repr=False)
class PostgresAddress:
    """Pickles with its password, shows none. ``name`` is the connection's, ``label`` host, port, database."""

    name: str
    label: str
    user: str | None
    parameters: Mapping[str, str] = field(compare=False)

    def __repr__(self) -> str:
        return f"Address({self.name!r}, {self.label!r}, user={self.user!r})"

    def conninfo(self, **extra: str) -> str:
        """As libpq's ``name='value'`` pairs."""
        pairs = {**_DEFAULTS, **_with_system_ca(self.parameters), **extra}
        return " ".join(f"{name}={_quote(value)}" for name, value in pairs.items())


def _with_system_ca(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """With the file of this machine's authorities for ``sslrootcert=system``.

    The drivers bring an OpenSSL each, which takes the system's certificates to be somewhere else. What
    libpq makes of ``system`` stays: without another ``sslmode`` it verifies in full.
    """
    if parameters.get("sslrootcert") != "system":
        return parameters
    found = _system_ca_file()
    return {"sslmode": "verify-full", **parameters, "sslrootcert": found} if found else parameters


def _system_ca_file() -> str | None:
    """None where OpenSSL is told of a folder, or there is no such file: then it looks for itself."""
    import ssl

    if "SSL_CERT_DIR" in os.environ and "SSL_CERT_FILE" not in os.environ:
        return None
    usual = ssl.get_default_verify_paths().cafile
    return next((path for path in (usual, *_CA_BUNDLES) if path and os.path.isfile(path)), None)


def _quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def parse_address(connection: PostgresConnection) -> PostgresAddress:
    """The address of an expanded connection."""
    parts = dsn_parts(connection)
    hosts = parts.hosts or (("", None),)
    shown = ",".join(f"{host or 'localhost'}:{port or DEFAULT_PORT}" for host, port in hosts)
    database = parts.database or parts.user or ""
    return PostgresAddress(connection.name, f"{shown}/{database}", parts.user, libpq_parameters(connection))


def session_settings(server_version: int) -> dict[str, str]:
    """What every session of ours sets."""
    return _SETTINGS | ({"idle_session_timeout": "0"} if server_version >= IDLE_TIMEOUT_SINCE else {})


def connect_error(address: PostgresAddress, error: Exception) -> CannotConnect:
    lines = str(error).strip().splitlines()
    reason = _REASON_PREFIX.sub("", lines[0]) if lines else type(error).__name__
    user = f" as user {address.user!r}" if address.user else ""
    check = f"flow connections check {address.name}"
    advice = _advice(reason.lower())
    return CannotConnect(
        f"connection {address.name!r} cannot reach PostgreSQL at {address.label}{user}: {reason}",
        next_step=f"{advice}, then  {check}" if advice else check,
    )


def _advice(reason: str) -> str | None:
    if "does not support ssl" in reason:
        return 'have TLS switched on at the server, or set sslmode = "disable" if the network is trusted'
    if "does not match host name" in reason:
        return "write the name that the certificate is for into the url, or choose another sslmode"
    if "certificate" in reason:
        return "give the server's authority as ssl_root_cert, or choose another sslmode"
    if "authentication failed" in reason or "no password supplied" in reason:
        return "mend user and password"
    if "does not exist" in reason:
        return "mend the name in the url"
    if "invalid connection option" in reason:
        return "mend the options after the ? of the url"
    if any(word in reason for word in ("refused", "timeout", "resolve", "translate host", "unreachable")):
        return "see that the server runs and that host and port are right"
    return None
