"""The address of a MySQL or MariaDB server, and what it must prove by TLS.

The connection to a server on this machine is not encrypted unless the URL asks for TLS. Any other server must
show a certificate for its name, unless ``sslmode`` says otherwise.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field

from ematix_probe.database_urls import split_database_url
from ematix_probe.errors import DeclarationError

SCHEMES = ("mysql", "mariadb")
_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_SPELLINGS = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify-identity": "verify-full",
}
_OPTIONS = {
    "sslmode": "mode",
    "ssl-mode": "mode",
    "sslrootcert": "authority",
    "ssl-ca": "authority",
    "sslcert": "certificate",
    "ssl-cert": "certificate",
    "sslkey": "key",
    "ssl-key": "key",
    "unix-socket": "unix_socket",
    "connect-timeout": "connect_timeout",
    "charset": "charset",  # accepted, and always utf8mb4
}


@dataclass(frozen=True)
class MySQLAddress:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    mode: str
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    unix_socket: str | None = None
    connect_timeout: int = 15

    @property
    def label(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"mysql://{user}{self.unix_socket or f'{self.host}:{self.port}'}/{self.database}"

    def tls(self) -> ssl.SSLContext | None:
        if self.mode == "disable":
            return None
        verified = self.mode.startswith("verify") or (self.authority is not None and self.mode != "prefer")
        if verified:
            context = ssl.create_default_context(cafile=self.authority)
            # self-generated server certificates lack fields that newer Pythons require
            context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
            context.check_hostname = self.mode == "verify-full"
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


def parse_address(url: str) -> MySQLAddress:
    """The address in a URL; DeclarationError for what is no such URL, without showing it."""
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme not in SCHEMES or "://" not in url:
        raise DeclarationError("mysql() takes a url that begins with mysql:// or mariadb://")
    parts = split_database_url(url)
    given: dict[str, str] = {}
    for name, value in parts.options.items():
        known = _OPTIONS.get(name.lower().replace("_", "-"))
        if known is None:
            raise DeclarationError(
                f"MySQL has no option {name!r}", next_step=f"options are {', '.join(_OPTIONS)}"
            )
        given[known] = value
    given.pop("charset", None)
    host = parts.host or "localhost"
    local = _is_local(host) or "unix_socket" in given
    written = given.pop("mode", "disable" if local and "authority" not in given else "verify-full").lower()
    mode = _SPELLINGS.get(written.replace("_", "-"), written.replace("_", "-"))
    if mode not in _MODES:
        raise DeclarationError(f"sslmode is {written!r}", next_step=f"it is one of {', '.join(_MODES)}")
    seconds = given.pop("connect_timeout", "15")
    if not (seconds.isascii() and seconds.isdigit() and int(seconds)):
        raise DeclarationError(f"connect_timeout is {seconds!r}: it is a whole number of seconds")
    return MySQLAddress(
        host,
        parts.port or 3306,
        parts.user or "",
        parts.password or "",
        parts.database,
        mode,
        connect_timeout=int(seconds),
        **given,
    )


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
