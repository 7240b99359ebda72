"""Splits the URL of a database server, also one whose password holds ``@``, ``/`` or ``?`` as written.

The user ends at the first ``:`` and the password at the last ``@``. References to the environment must be
replaced before. What cannot be read is refused without being shown, because it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

from ematix_probe.errors import DeclarationError
from ematix_probe.redaction import MASK, mask, remember_password

# an "@" after "?" belongs to the query only if drivers know every option of the query
_OPTION = re.compile(
    "user|password|passfile|host|hostaddr|port|dbname|database|schema|search_path|options|service|servicefile"
    "|ssl[a-z_-]*|application_name|fallback_application_name|connect[_-]timeout|client_encoding|charset"
    "|unix[_-]socket|target_session_attrs|load_balance_hosts|channel_binding|require_auth|gss[a-z]*|krbsrvname"
    "|keepalives[a-z_]*|tcp_user_timeout|replication|access_mode"
)
_HOST = r"(?:\[[^\]@]*\]|[^:/?@\[\],]*)(?::[0-9]*)?"
_ADDRESS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_ADDRESS_AND_PATH = re.compile(rf"{_HOST}(?:,{_HOST})*(?:/.*)?", re.DOTALL)


@dataclass(frozen=True)
class DatabaseUrl:
    """The pieces of a URL, decoded, but ``address``, ``path`` and ``query`` as written.

    ``host`` and ``port`` are those of the first server of ``hosts``.
    """

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    address: str
    path: str
    query: str = field(repr=False)

    @property
    def hosts(self) -> tuple[tuple[str, int | None], ...]:
        """Each server with its port, as in ``first:5432,second``."""
        return tuple(map(_split_host, self.address.split(","))) if self.address else ()

    @property
    def host(self) -> str | None:
        return (self.hosts[0][0] or None) if self.hosts else None

    @property
    def port(self) -> int | None:
        return self.hosts[0][1] if self.hosts else None

    @property
    def database(self) -> str:
        return unquote(self.path.lstrip("/"))

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the query, decoded."""
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def encoded(self) -> str:
        """The URL with percent signs, as every driver reads it. It holds the password."""
        return self._written(None if self.password is None else quote(self.password, safe=""), self.query)

    @property
    def masked(self) -> str:
        """The URL without secrets."""
        return mask(self._written(None if self.password is None else MASK, self.query))

    def _written(self, password: str | None, query: str) -> str:
        user = "" if self.user is None else quote(self.user, safe="")
        user += "" if password is None else f":{password}"
        at = "" if self.user is None else "@"
        return f"{self.scheme}://{user}{at}{self.address}{self.path}{'?' if query else ''}{query}"


def split_database_url(url: str) -> DatabaseUrl:
    """The pieces of ``scheme://user:password@host:port/database?option=value``; the password is masked later.

    A driver in the scheme, as in ``postgresql+psycopg://``, is left out. DeclarationError for what is no URL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.\-]*", scheme):
        raise DeclarationError(
            "this is not the URL of a database", next_step="write scheme://user:password@host:port/database"
        )
    head, query = _cut_query(rest)
    userinfo, at, place = head.rpartition("@")
    if at and "/" in userinfo.partition(":")[0]:  # a path with an "@", not a user
        at, userinfo, place = "", "", head
    user, colon, password = userinfo.partition(":")
    address, slash, path = place.partition("/")
    secret = unquote(password) if colon else None
    for each in (secret, password, dict(parse_qsl(query)).get("password")):
        remember_password(each or "")
    if not _ADDRESS.fullmatch(address):
        raise DeclarationError(
            "the URL of the database has no host that can be read, or its port is not a number",
            next_step="write scheme://user:password@host:port/database, "
            "with special characters of the password as %XX",
        )
    return DatabaseUrl(
        scheme.partition("+")[0].lower(), unquote(user) if at else None, secret, address, slash + path, query
    )


def _cut_query(rest: str) -> tuple[str, str]:
    last_at = rest.rfind("@")
    for position in (place for place, letter in enumerate(rest[: last_at + 1]) if letter == "?"):
        before, query = rest[:position], rest[position + 1 :]
        names = [pair.partition("=")[0] for pair in query.split("&")]
        if all(map(_OPTION.fullmatch, names)) and _ADDRESS_AND_PATH.fullmatch(before.rpartition("@")[2]):
            return before, query
    head, _, query = rest[last_at + 1 :].partition("?")
    return rest[: last_at + 1] + head, query


def _split_host(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = entry.partition(":")
    return unquote(host), int(port) if port else None
