"""The address of a PostgreSQL database, and the error when it cannot be reached.

Tasks import this module, so it imports no driver.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ematix_flow.backends.sql_servers import failures
from ematix_flow.errors import CannotConnect
from ematix_flow.spec.connections import PostgresConnection, dsn_parts, libpq_parameters

APPLICATION = "ematix-flow"
READER_APPLICATION = f"{APPLICATION} reading"  # sessions whose transactions cannot write
DEFAULT_PORT = 5432

# a connection may be silent for long during a load: keepalives stop proxies from dropping it
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
    """Its pickle contains the password, its repr does not. ``label`` is host, port and database."""

    name: str
    label: str
    user: str | None
    parameters: Mapping[str, str] = field(compare=False)

    def __repr__(self) -> str:
        return f"Address({self.name!r}, {self.label!r}, user={self.user!r})"

    def conninfo(self, **extra: str) -> str:
        """The address as libpq's ``name='value'`` pairs."""
        pairs = {**_DEFAULTS, **_with_system_ca(self.parameters), **extra}
        return " ".join(f"{name}={_quote(value)}" for name, value in pairs.items())


def _with_system_ca(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The parameters with this machine's CA file for ``sslrootcert=system``.

    Each driver contains its own OpenSSL, which looks for the system's certificates in another place. As with
    libpq's own ``system``, the default ``sslmode`` is ``verify-full``.
    """
    if parameters.get("sslrootcert") != "system":
        return parameters
    found = _system_ca_file()
    return {"sslmode": "verify-full", **parameters, "sslrootcert": found} if found else parameters


def _system_ca_file() -> str | None:
    """None if OpenSSL uses a folder, or if the file does not exist: OpenSSL then searches itself."""
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
    """The settings of every session."""
    return _SETTINGS | ({"idle_session_timeout": "0"} if server_version >= IDLE_TIMEOUT_SINCE else {})


def connect_error(address: PostgresAddress, error: Exception) -> CannotConnect:
    lines = str(error).strip().splitlines()
    reason = _REASON_PREFIX.sub("", lines[0]) if lines else type(error).__name__
    return failures.connect_error(
        "PostgreSQL", address.name, address.label, address.user, reason, _advice(reason.lower())
    )


def _advice(reason: str) -> str | None:
    if "does not support ssl" in reason:
        return 'switch TLS on at the server, or set sslmode = "disable" if you trust the network'
    if "does not match host name" in reason:
        return "use the host name of the certificate in the url, or choose another sslmode"
    if "certificate" in reason:
        return "set ssl_root_cert to the server's CA certificate, or choose another sslmode"
    if "authentication failed" in reason or "no password supplied" in reason:
        return "correct user and password"
    if "does not exist" in reason:
        return "correct the name in the url"
    if "invalid connection option" in reason:
        return "correct the options after the ? of the url"
    if any(word in reason for word in ("refused", "timeout", "resolve", "translate host", "unreachable")):
        return "check that the server runs and that host and port are correct"
    return None
