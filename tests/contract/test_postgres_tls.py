"""TLS to PostgreSQL: whose certificate is believed, the same on control and on bulk connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.postgres.backend import PostgresBackend
from ematix_flow.backends.postgres.bulk_connection import open_bulk
from ematix_flow.backends.postgres.connection import open_connection
from ematix_flow.errors import CannotConnect
from tests.contract.postgres_setup import backend_of, read_all
from tests.services.certificates import make_certificates
from tests.services.postgres import PostgresServer, running_server

ELSEWHERE = "db.example"  # a name of another machine, which here leads to this one
ENCRYPTED = "SELECT ssl AS encrypted FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server(tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An authority that did not sign the server's certificate."""
    return str(make_certificates(tmp_path_factory.mktemp("stranger")).authority)


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "PGSSLMODE", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)


def authority_of(server: PostgresServer) -> str:
    assert server.certificates is not None
    return str(server.certificates.authority)


def backend_at(server: PostgresServer, host: str = "127.0.0.1", **fields: Any) -> PostgresBackend:
    url = server.url().replace("127.0.0.1", host) + "?hostaddr=127.0.0.1"
    return backend_of(url, **fields)


def connects(backend: PostgresBackend) -> list[Callable[[], object]]:
    """Both kinds of connection, each for itself."""

    def in_bulk() -> None:
        with open_bulk(backend.address) as connection:
            connection.execute("SELECT 1")

    def for_control() -> None:
        with open_connection(backend.address) as connection:
            connection.execute("SELECT 1")

    return [for_control, in_bulk]


def refused(backend: PostgresBackend, reason: str) -> None:
    for connect in connects(backend):
        with pytest.raises(CannotConnect, match=reason) as raised:
            connect()
        assert raised.value.exit_code == 5
        assert "flow connections check wh" in str(raised.value)


def test_a_server_that_the_given_authority_vouches_for_is_reached_encrypted(server: PostgresServer) -> None:
    backend = backend_at(server, sslmode="verify-full", ssl_root_cert=authority_of(server))
    assert backend.check().startswith("PostgreSQL")
    assert backend.query(ENCRYPTED)[1] == [(True,)]
    assert read_all(backend, ENCRYPTED) == [{"encrypted": True}]


def test_a_server_that_the_given_authority_does_not_vouch_for_is_refused(
    server: PostgresServer, stranger: str
) -> None:
    refused(backend_at(server, sslmode="verify-full", ssl_root_cert=stranger), "certificate verify failed")
    refused(backend_at(server, sslmode="verify-ca", ssl_root_cert=stranger), "certificate verify failed")


def test_a_server_elsewhere_is_verified_with_the_systems_authorities(server: PostgresServer) -> None:
    refused(backend_at(server, ELSEWHERE), "certificate verify failed")
    refused(backend_at(server, sslmode="verify-full"), "certificate verify failed")


def test_the_systems_authorities_can_be_a_file_of_ones_own(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority_of(server))
    for connect in connects(backend_at(server, sslmode="verify-full")):
        connect()
    refused(backend_at(server, ELSEWHERE), f"does not match host name .{ELSEWHERE}")


def test_a_certificate_for_another_name_is_refused_and_the_error_says_to_fix_the_name(
    server: PostgresServer,
) -> None:
    backend = backend_at(server, ELSEWHERE, ssl_root_cert=authority_of(server))
    refused(backend, "the host name of the certificate")
    relaxed = backend_at(server, ELSEWHERE, ssl_root_cert=authority_of(server), sslmode="verify-ca")
    for connect in connects(relaxed):
        connect()


@pytest.mark.parametrize("sslmode", ["require", "prefer"])
def test_a_stated_sslmode_wins_over_the_default(server: PostgresServer, sslmode: str) -> None:
    backend = backend_at(server, ELSEWHERE, sslmode=sslmode)
    assert read_all(backend, ENCRYPTED) == [{"encrypted": True}]


def test_a_server_on_this_machine_is_reached_as_it_likes(server: PostgresServer) -> None:
    for connect in connects(backend_at(server)):
        connect()


def test_an_authority_that_is_no_file_is_named(server: PostgresServer, tmp_path: Path) -> None:
    backend = backend_at(server, sslmode="verify-full", ssl_root_cert=str(tmp_path / "missing.pem"))
    refused(backend, "missing.pem")
