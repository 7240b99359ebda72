"""Which hosts a load probe may send to. Loopback always; any other host only when it is named.

A name is resolved once, and connections go to the addresses that were found then: a name that later points
elsewhere changes nothing. A name that nobody allowed is not resolved, unless it is ``localhost`` or addresses
are allowed: then all of its addresses must be loopback or allowed. ``0.0.0.0`` and ``::`` stand for loopback.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ematix_probe.errors import CannotConnect, DeclarationError, HostNotAllowed


@dataclass(frozen=True)
class Endpoint:
    """A host and port, and the addresses to connect to."""

    host: str
    port: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class AllowedHost:
    """A name or an address, for one port or for all."""

    host: str
    port: int | None = None

    def covers(self, host: str, port: int) -> bool:
        return self.host == normal_host(host) and self.port in (None, port)


def normal_host(host: str) -> str:
    """The host in lower case, without brackets and a final dot; an address in its shortest form."""
    text = host.strip().strip("[]").rstrip(".").lower()
    try:
        return str(_plain(ipaddress.ip_address(text)))
    except ValueError:
        pass
    try:
        return text.encode("idna").decode("ascii") if not text.isascii() else text
    except UnicodeError:
        return text


def read_allowed(hosts: Iterable[str], where: str | None = None) -> tuple[AllowedHost, ...]:
    """``["api.example", "10.0.0.5:8080", "[::1]:80"]`` as values; DeclarationError for what is no host."""
    if isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise DeclarationError(f"allow_hosts= takes a list of hosts, not {hosts!r}", where=where)
    return tuple(_read_one(host, where) for host in hosts)


def _read_one(given: str, where: str | None) -> AllowedHost:
    wrong = DeclarationError(
        f"{given!r} in allow_hosts= is no host",
        where=where,
        next_step='write a name or an address, with a port or without: "api.example" or "10.0.0.5:8080"',
    )
    if not isinstance(given, str) or not given.strip() or any(char in given for char in "/*@ ?#"):
        raise wrong
    host, port = given, None
    if given.startswith("["):
        host, bracket, rest = given.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise wrong
        host, port_text = host + "]", rest[1:]
    elif given.count(":") == 1:
        host, port_text = given.split(":")
    else:
        port_text = ""
    if port_text:
        if not port_text.isdigit() or not 0 < int(port_text) < 65536:
            raise wrong
        port = int(port_text)
    return AllowedHost(normal_host(host), port)


def resolve_allowed(
    host: str, port: int, allowed: Collection[AllowedHost], *, where: str | None = None
) -> Endpoint:
    """The addresses of a host that a load probe may send to.

    HostNotAllowed when it may not, CannotConnect when the name that may be used has no address.
    """
    named = any(each.covers(host, port) for each in allowed)
    listed = {each.host for each in allowed if each.port in (None, port)}
    literal = _literal(host)
    local = normal_host(host) == "localhost" or normal_host(host).endswith(".localhost")
    if literal is None and not (named or local or any(map(_literal, listed))):
        raise _refused(host, port, host, where)
    found = [str(literal)] if literal is not None else _addresses(host, port, where)
    addresses = list(dict.fromkeys(_as_this_machine(address) for address in found))
    for address in addresses:
        if not (named or is_loopback(address) or normal_host(address) in listed):
            raise _refused(host, port, address, where)
    return Endpoint(host, port, tuple(addresses))


def _as_this_machine(address: str) -> str:
    """The loopback address for ``0.0.0.0`` and ``::``, which stand for this machine; others as they are."""
    literal = _literal(address)
    if literal is None or not literal.is_unspecified:
        return address
    return "127.0.0.1" if literal.version == 4 else "::1"


def is_loopback(address: str) -> bool:
    literal = _literal(address)
    return literal is not None and literal.is_loopback


def same_address(one: str, other: str) -> bool:
    return normal_host(one.split("%")[0]) == normal_host(other.split("%")[0])


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return _plain(ipaddress.ip_address(host.strip().strip("[]").split("%")[0]))
    except ValueError:
        return None


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address that is written as IPv6 counts as the IPv4 address."""
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _addresses(host: str, port: int, where: str | None) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CannotConnect(
            f"the host {host!r} has no address: {error}", where=where, next_step="check the name of the host"
        ) from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _refused(host: str, port: int, address: str, where: str | None) -> HostNotAllowed:
    shown = host if normal_host(host) == normal_host(address) else f"{host} ({address})"
    return HostNotAllowed(
        f"the load probe would send to {shown} port {port}, and nobody allowed that host",
        where=where,
        state="nothing was sent",
        next_step=f'if you may put load on it: allow_hosts=["{host}"] in the probe, or  --allow-host {host}',
    )
