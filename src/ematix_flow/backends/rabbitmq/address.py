"""The address, login and TLS settings of a connection, and the driver's parameters made from them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import unquote

import pika
from pika.exceptions import AMQPError

from ematix_flow.backends.rabbitmq.failures import URL_FIELDS, cannot_connect
from ematix_flow.errors import CannotConnect, ConfigError
from ematix_flow.spec.connections.brokers import RabbitMQConnection
from ematix_probe.redaction import remember_secret

APPLICATION = "ematix-flow"
HEARTBEAT = 20  # seconds after which each side considers the other dead
_CONNECT_SECONDS = 10
_PORTS = {"amqp": 5672, "amqps": 5671}

if logging.getLogger("pika").level == logging.NOTSET:  # failures are raised as errors
    logging.getLogger("pika").setLevel(logging.CRITICAL)


@dataclass(frozen=True, repr=False)
class RabbitMQAddress:
    """Pickles with its password, but never shows it. ``name`` is the connection's name."""

    name: str
    host: str
    port: int
    vhost: str
    user: str
    password: str = field(compare=False)
    tls: bool = False
    tls_verify: bool = True
    tls_ca_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    consumer_tag: str = ""

    def __repr__(self) -> str:
        return f"RabbitMQAddress({self.name!r}, {self.label!r}, user={self.user!r})"

    @property
    def label(self) -> str:
        scheme = "amqps" if self.tls else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{'' if self.vhost == '/' else self.vhost}"

    def parameters(self, heartbeat: int = HEARTBEAT) -> pika.ConnectionParameters:
        """The driver's connection parameters, with a timeout for every wait."""
        secure = None
        if self.tls:
            context = self._context()
            secure = pika.SSLOptions(context, self.host)
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.vhost,
            credentials=pika.PlainCredentials(self.user, self.password, erase_on_connect=False),
            heartbeat=heartbeat,
            socket_timeout=_CONNECT_SECONDS,
            stack_timeout=_CONNECT_SECONDS + 5,
            blocked_connection_timeout=60,
            connection_attempts=1,
            ssl_options=secure,
            client_properties={"connection_name": f"{APPLICATION} {self.name}", "product": APPLICATION},
        )

    def connect(self) -> pika.BlockingConnection:
        """Open a connection; CannotConnect with the reason when it fails."""
        try:
            return pika.BlockingConnection(self.parameters())
        except (AMQPError, OSError, EOFError, ValueError) as error:
            raise self.connection_error(error) from error

    def connection_error(self, error: BaseException) -> CannotConnect:
        """Our error for a connection that cannot be opened or used."""
        return cannot_connect(error, self.name, self.label, self.vhost, self.user)

    @contextmanager
    def open_connection(self) -> Iterator[pika.BlockingConnection]:
        connection = self.connect()
        try:
            yield connection
        finally:
            with suppress(AMQPError, OSError):  # it may be closed already
                if connection.is_open:
                    connection.close()

    def server_properties(self) -> dict[str, Any]:
        """The properties that the broker reports."""
        with self.open_connection() as connection:
            properties = connection._impl.server_properties or {}  # the driver has no public method
            return {str(key): value for key, value in properties.items()}

    def _context(self) -> ssl.SSLContext:
        try:
            return _context(self.tls_verify, self.tls_ca_path, self.tls_cert_path, self.tls_key_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the TLS files of connection {self.name!r} cannot be used: {error}",
                next_step="fix tls_ca_path, tls_cert_path and tls_key_path",
            ) from error


@cache  # loading the system's authorities takes longer than connecting
def _context(verify: bool, authority: str, certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority or None)
    # self-made server certificates often lack extensions that newer Python versions require
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def address_of(connection: RabbitMQConnection) -> RabbitMQAddress:
    """Parse the connection's URL. ConfigError when it is invalid; the text contains no secrets."""
    scheme, _, rest = str(connection.amqp_url).partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    login, at, where = place.rpartition("@")
    user, _, password = login.partition(":")
    host, port = _host_and_port(where, connection.name, _PORTS.get(scheme, 5672))
    if scheme not in _PORTS:
        raise ConfigError(
            f"connection {connection.name!r}: {URL_FIELDS} begins neither with amqp:// nor with amqps://"
        )
    if "/" in path:
        raise ConfigError(
            f"connection {connection.name!r}: the virtual host in {URL_FIELDS} has a slash",
            next_step="write a slash that belongs to its name as %2F",
        )
    tls = scheme == "amqps"
    if not tls and (connection.tls_ca_path or connection.tls_cert_path):
        raise ConfigError(
            f"connection {connection.name!r} has TLS files, but its {URL_FIELDS} begins with amqp://",
            next_step="begin it with amqps://",
        )
    secret = unquote(password) if at else "guest"
    if at:
        remember_secret(secret)
    return RabbitMQAddress(
        connection.name,
        host,
        port,
        unquote(path) if slash and path else "/",
        unquote(user) if at else "guest",
        secret,
        tls,
        connection.tls_verify,
        connection.tls_ca_path,
        connection.tls_cert_path,
        connection.tls_key_path,
        connection.consumer_tag,
    )


def _host_and_port(where: str, name: str, default: int) -> tuple[str, int]:
    if where.startswith("["):  # an IPv6 address
        host, _, port = where[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = where.partition(":")
    if not port:
        return unquote(host) or "localhost", default
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"connection {name!r}: the port in {URL_FIELDS} is not a number from 1 to 65535",
            next_step="write it as  amqp://user:password@host:5672/vhost",
        )
    return unquote(host) or "localhost", int(port)
