"""Splits the address of a database server for drivers: `dsn_parts`, and the two forms of libpq."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import quote, unquote

from ematix_flow.errors import ConfigError
from ematix_flow.spec.connections.base import Connection, DriverProperties
from ematix_flow.spec.connections.databases import MySQLConnection, PostgresConnection
from ematix_flow.spec.connections.references import has_reference
from ematix_flow.spec.connections.urls import is_conninfo, parse_conninfo, split_url
from ematix_flow.spec.connections.warehouses import RedshiftConnection
from ematix_probe.redaction import MASK

ServerConnection = PostgresConnection | MySQLConnection | RedshiftConnection
_TLS_OPTIONS = {
    "sslmode": "sslmode",
    "sslrootcert": "ssl_root_cert",
    "sslcert": "ssl_cert",
    "sslkey": "ssl_key",
}


@dataclass(frozen=True, repr=False)
class DsnParts:
    """The decoded parts of an address. A driver tries several hosts in turn; most URLs have one."""

    hosts: tuple[tuple[str, int | None], ...]
    user: str | None
    password: str | None
    database: str | None
    options: Mapping[str, str] = field(default_factory=DriverProperties)

    @property
    def host(self) -> str | None:
        return self.hosts[0][0] or None if self.hosts else None

    @property
    def port(self) -> int | None:
        return self.hosts[0][1] if self.hosts else None

    @property
    def is_local(self) -> bool:
        """Whether every host is this machine: a socket, ``localhost`` or a loopback address."""
        return all(_is_local(host) for host, _ in self.hosts)

    def __repr__(self) -> str:
        password = MASK if self.password else self.password
        return (
            f"DsnParts(hosts={self.hosts!r}, user={self.user!r}, password={password!r}, "
            f"database={self.database!r}, options={self.options!r})"
        )


def dsn_parts(connection: Connection) -> DsnParts:
    """The parts of an expanded connection to a database server. Its fields override its URL."""
    if not isinstance(connection, ServerConnection):
        raise ConfigError(f"connection {connection.name!r} is {connection.kind}, not a database server")
    for name in ("url", "host", "database", "user", "password"):
        if has_reference(getattr(connection, name)):
            raise ConfigError(f"{name} of connection {connection.name!r} is not expanded yet")
    found = _parts_of_url(connection)
    options = dict(found.options)
    for option, name in _TLS_OPTIONS.items():
        if getattr(connection, name, ""):
            options[option] = getattr(connection, name)
    hosts = found.hosts
    if connection.host:
        hosts = ((connection.host, connection.port),)
    elif connection.port and hosts:
        hosts = tuple((host, connection.port) for host, _ in hosts)
    return DsnParts(
        hosts=hosts,
        user=connection.user or found.user,
        password=connection.password or found.password,
        database=connection.database or found.database,
        options=DriverProperties(options),
    )


def libpq_parameters(connection: PostgresConnection | RedshiftConnection) -> dict[str, str]:
    """The parameters for ``psycopg.connect(**…)``, with the TLS default of `PostgresConnection`."""
    parts = dsn_parts(connection)
    out = dict(parts.options)
    if parts.hosts:
        out["host"] = ",".join(host for host, _ in parts.hosts)
        if any(port for _, port in parts.hosts):
            out["port"] = ",".join(str(port or "") for _, port in parts.hosts)
    for name, value in (("user", parts.user), ("password", parts.password), ("dbname", parts.database)):
        if value:
            out[name] = value
    if "sslmode" not in out and not parts.is_local:
        out["sslmode"] = "verify-full"
    if out.get("sslmode") == "verify-full" and "sslrootcert" not in out:
        out["sslrootcert"] = "system"
    return out


def libpq_uri(connection: PostgresConnection | RedshiftConnection) -> str:
    """The same as one percent-encoded ``postgresql://`` URI, for drivers that only take a URI."""
    parameters = libpq_parameters(connection)
    user, password = parameters.pop("user", None), parameters.pop("password", None)
    userinfo = "" if user is None else quote(user, safe="")
    if password is not None:
        userinfo += f":{quote(password, safe='')}"
    database = parameters.pop("dbname", "")
    query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in parameters.items())
    return f"postgresql://{userinfo + '@' if userinfo else ''}/{quote(database, safe='')}?{query}"


def _parts_of_url(connection: ServerConnection) -> DsnParts:
    if not connection.url:
        return DsnParts((), None, None, None)
    if is_conninfo(connection.url):
        try:
            return _parts_of_parameters(parse_conninfo(connection.url), connection)
        except ValueError as error:
            raise ConfigError(f"url of connection {connection.name!r} cannot be read: {error}") from None
    pieces = split_url(connection.url)
    given = _parts_of_parameters(dict(pieces.parameters), connection)
    hosts = tuple((unquote(host), _port(port, connection)) for host, port in pieces.hosts)
    return DsnParts(
        hosts=hosts or given.hosts,
        user=_decode(pieces.user) or given.user,
        password=_decode(pieces.password) or given.password,
        database=_decode(pieces.path.removeprefix("/")) or given.database,
        options=given.options,
    )


def _parts_of_parameters(parameters: dict[str, str], connection: ServerConnection) -> DsnParts:
    hosts = parameters.pop("host", "")
    ports = parameters.pop("port", "").split(",")
    names = hosts.split(",") if hosts else []
    ports = ports if len(ports) == len(names) else ports[:1] * len(names)
    return DsnParts(
        hosts=tuple((host, _port(port, connection)) for host, port in zip(names, ports, strict=True)),
        user=parameters.pop("user", None),
        password=parameters.pop("password", None),
        database=parameters.pop("dbname", None) or parameters.pop("database", None),
        options=DriverProperties(parameters),
    )


def _port(port: str, connection: ServerConnection) -> int | None:
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        # the error does not show the port: it may be a password whose "@host" is missing
        raise ConfigError(
            f"url of connection {connection.name!r} has a port that is not a number from 1 to 65535",
            next_step=f"write {connection.schemes[0]}://user:password@host:port/database",
        )
    return int(port) if port else None


def _decode(piece: str | None) -> str | None:
    return None if piece is None else unquote(piece)


def _is_local(host: str) -> bool:
    if host == "" or host.startswith(("/", "@")) or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
