"""Which hosts a load may be sent to: loopback, and what was named."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from ematix_probe.errors import CannotConnect, DeclarationError, HostNotAllowed
from ematix_probe.load.hosts import AllowedHost, read_allowed, resolve_allowed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost"])
def test_loopback_is_always_allowed(host: str) -> None:
    assert resolve_allowed(host, 80, ()).addresses


@pytest.mark.parametrize(("host", "address"), [("0.0.0.0", "127.0.0.1"), ("[::]", "::1")])
def test_the_unspecified_address_is_this_machine(host: str, address: str) -> None:
    assert resolve_allowed(host, 80, ()).addresses == (address,)
    assert resolve_allowed(host, 80, read_allowed([host])).addresses == (address,)


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "0.0.0.1", "10.0.0.1", "169.254.169.254", "::2", "::ffff:8.8.8.8"]
)
def test_every_other_address_must_be_named(host: str) -> None:
    with pytest.raises(HostNotAllowed) as refused:
        resolve_allowed(host, 80, ())
    assert refused.value.state == "nothing was sent"
    assert resolve_allowed(host, 80, read_allowed([host if ":" not in host else f"[{host}]"])).port == 80


def test_a_port_limits_what_is_allowed() -> None:
    allowed = read_allowed(["192.0.2.1:8080", "[2001:db8::1]:443", "Api.Example.", "10.0.0.5"])
    assert allowed == (
        AllowedHost("192.0.2.1", 8080),
        AllowedHost("2001:db8::1", 443),
        AllowedHost("api.example"),
        AllowedHost("10.0.0.5"),
    )
    assert resolve_allowed("192.0.2.1", 8080, allowed).addresses == ("192.0.2.1",)
    assert resolve_allowed("2001:DB8:0::1", 443, allowed).addresses == ("2001:db8::1",)
    with pytest.raises(HostNotAllowed):
        resolve_allowed("192.0.2.1", 80, allowed)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What the machine's resolver answers, for names that no test may ask a name server for."""
    known: dict[str, list[str]] = {}

    def resolve(host: str, port: int, **given: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror("Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


def test_a_name_is_allowed_by_its_name_or_when_all_its_addresses_are(names: dict[str, list[str]]) -> None:
    names["shop.test"] = ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
    names["db.localhost"] = ["127.0.0.1"]
    names["evil.localhost"] = ["127.0.0.1", "192.0.2.9"]
    names["rebound.test"] = ["127.0.0.1", "192.0.2.9"]
    assert resolve_allowed("db.localhost", 80, ()).addresses == ("127.0.0.1",)
    found = resolve_allowed("shop.test", 80, read_allowed(["SHOP.test"]))
    assert (found.host, found.addresses) == ("shop.test", ("192.0.2.1", "192.0.2.2"))
    assert resolve_allowed("shop.test", 80, read_allowed(["192.0.2.1", "192.0.2.2"])).addresses
    for host, allowed in (
        ("shop.test", ["192.0.2.1"]),
        ("evil.localhost", []),
        ("rebound.test", ["192.0.2.1"]),
        ("shop.test", ["shop.test:81"]),
    ):
        with pytest.raises(HostNotAllowed):
            resolve_allowed(host, 80, read_allowed(allowed))


def test_a_name_without_an_address_cannot_be_connected(names: dict[str, list[str]]) -> None:
    with pytest.raises(CannotConnect, match=r"'typo\.test' has no address"):
        resolve_allowed("typo.test", 80, read_allowed(["typo.test"]))


def test_a_name_that_nobody_allowed_is_not_even_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    for allowed in ([], ["other.test"], ["shop.test:81"], ["192.0.2.1:81"]):
        with pytest.raises(HostNotAllowed, match=r"would send to shop\.test port 80") as refused:
            resolve_allowed("shop.test", 80, read_allowed(allowed))
        assert refused.value.exit_code == 2
        assert "--allow-host shop.test" in str(refused.value.next_step)
    assert asked == []


@pytest.mark.parametrize(
    "wrong", ["http://x", "a/b", "*", "a:b", "a:0", "a:70000", "", " ", "[::1", "x y", 7]
)
def test_what_is_no_host_is_refused(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match="is no host"):
        read_allowed([wrong])


def test_a_text_is_no_list_of_hosts() -> None:
    with pytest.raises(DeclarationError, match="takes a list of hosts"):
        read_allowed("api.example")
