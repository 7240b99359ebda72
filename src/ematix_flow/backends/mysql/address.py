"""The address of a MySQL server, its TLS settings, and the error when it cannot be reached.

Tasks import this module, so it imports no driver.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from ematix_flow.backends.sql_servers import failures
from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections import MySQLConnection, dsn_parts

APPLICATION = "ematix-flow"
DEFAULT_PORT = 3306
# the url options other than those of TLS; unknown ones would be ignored silently
_OPTIONS = ("charset", "connect_timeout", "unix_socket")
_TLS_SPELLINGS = {
    "sslmode": ("sslmode", "ssl_mode", "ssl-mode"),
    "sslrootcert": ("sslrootcert", "ssl_ca", "ssl-ca"),
    "sslcert": ("sslcert", "ssl_cert", "ssl-cert"),
    "sslkey": ("sslkey", "ssl_key", "ssl-key"),
}
_VERIFIED = ("verify-ca", "verify-full")


@dataclass(frozen=True, repr=False)
class MySQLAddress:
    """Pickled with its password, shown without. ``name``: the connection; ``label``: host, port, database."""

    name: str
    label: str
    host: str
    port: int
    user: str | None
    database: str | None
    password: str | None = field(compare=False, default=None)
    tls: Mapping[str, str] = field(compare=False, default_factory=dict)
    unix_socket: str | None = None
    connect_timeout: int = 15

    def __repr__(self) -> str:
        return f"Address({self.name!r}, {self.label!r}, user={self.user!r})"

    @property
    def sslmode(self) -> str:
        return self.tls.get("sslmode", "allow")

    def tls_context(self) -> ssl.SSLContext:
        """The TLS context, with what the server must prove."""
        try:
            return _make_tls_context(*(self.tls.get(name) for name in _TLS_SPELLINGS))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the TLS files of connection {self.name!r} cannot be used: {error}",
                next_step="correct ssl_root_cert, ssl_cert and ssl_key",
            ) from error


@cache  # reading the system's CA file takes longer than connecting
def _make_tls_context(
    mode: str | None, authority: str | None, certificate: str | None, key: str | None
) -> ssl.SSLContext:
    if mode in _VERIFIED or authority is not None:
        context = ssl.create_default_context(cafile=authority)
        # self-generated server certificates lack fields that newer Pythons require
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        context.check_hostname = mode == "verify-full"
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def parse_address(connection: MySQLConnection) -> MySQLAddress:
    """The address of an expanded connection. A remote server without an sslmode must prove its identity."""
    parts = dsn_parts(connection)
    options = dict(parts.options)
    tls: dict[str, str] = {}
    for name, spellings in _TLS_SPELLINGS.items():
        for spelling in spellings:
            if options.get(spelling):
                tls[name] = options.pop(spelling)
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(
            f"connection {connection.name!r}: MySQL has no option {unknown[0]!r}",
            next_step=f"options that the url can have after the ?: {', '.join((*_OPTIONS, *_TLS_SPELLINGS))}",
        )
    if "sslmode" in tls:
        spelt = tls["sslmode"].lower().replace("_", "-")
        tls["sslmode"] = connection.aliases.get(spelt, spelt)
        if tls["sslmode"] not in connection.choices["sslmode"]:
            raise ConfigError(
                f"connection {connection.name!r}: sslmode is {tls['sslmode']!r}",
                next_step=f"it is one of {', '.join(connection.choices['sslmode'])}",
            )
    elif not parts.is_local and "unix_socket" not in options:
        tls["sslmode"] = "verify-full"
    if len(parts.hosts) > 1:
        raise ConfigError(f"connection {connection.name!r} names several hosts; MySQL takes one")
    host, port = parts.host or "localhost", parts.port or DEFAULT_PORT
    where = options.get("unix_socket") or f"{host}:{port}"
    return MySQLAddress(
        connection.name,
        f"{where}/{parts.database or ''}",
        host,
        port,
        parts.user,
        parts.database,
        parts.password,
        tls,
        options.get("unix_socket"),
        _parse_seconds(connection.name, options.get("connect_timeout", "15")),
    )


def _parse_seconds(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"connection {name!r}: connect_timeout must be a whole number of seconds")
    return int(text)


def connect_error(address: MySQLAddress, error: Exception) -> CannotConnect:
    reason = _reason(error)
    return failures.connect_error(
        "MySQL", address.name, address.label, address.user, reason, _advice(reason.lower(), address)
    )


def _reason(error: Exception) -> str:
    """The message of the server, the socket or TLS, without the driver's prefix."""
    texts = [str(part) for part in error.args if isinstance(part, str)]
    reason = (texts[-1] if texts else str(error)).strip() or type(error).__name__
    reason = reason.splitlines()[0]
    inner = re.search(r"Can't connect to MySQL server on '.*?' \((.*)\)$", reason)
    return inner[1] if inner else reason


def _advice(reason: str, address: MySQLAddress) -> str | None:
    if "ssl is required" in reason or "doesn't support it" in reason:
        return 'switch TLS on at the server, or set sslmode = "disable" if you trust the network'
    if "insecure transport" in reason:
        return 'the server requires TLS: set sslmode = "verify-full"'
    if "certificate" in reason or "hostname mismatch" in reason:
        return "set ssl_root_cert to the server's CA certificate, or choose another sslmode"
    if "access denied" in reason and "to database" in reason:
        return "GRANT the user rights on the database, or correct the name in the url"
    if "access denied" in reason or "auth" in reason:
        return "correct user and password"
    if "unknown database" in reason:
        return "correct the name in the url"
    if any(word in reason for word in ("refused", "timed out", "name or service", "resolv", "not known")):
        return "check that the server runs and that host and port are correct"
    return None
